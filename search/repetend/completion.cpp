// SPDX-License-Identifier: Apache-2.0
// 1. Cut the plain repetition twice: the head is what starts before the latest first start of a block; the
//    tail is the head of the reversed problem. If the two overlap there is nothing to complete, and the
//    plain repetition is returned where no search is asked for (width 0).
// 2. Search each end alone by a beam. Due dates are what waits behind the cut, so the repetend's own order
//    has the value 0, and only an order below that replaces it. Its first flavour alone: the others rarely
//    lead to shorter ends, and a wider beam does.
// 3. Join head, middle (by start) and tail to one sequence; whoever takes it starts each step as early as
//    possible.
// The width of the beam is such that all searches of an end stay within `work`.
#include "search/repetend/completion.h"

#include <algorithm>
#include <numeric>

#include "search/schedule/beam.h"

namespace ostinato {
namespace {

/// Start of block b of micro-batch m.
using Starts = std::function<Nanoseconds(int b, int m)>;

/// A search of one end may take one part in this many of the work.
constexpr std::int64_t kShares = 4;

/// The steps before a cut, in a better order.
struct End {
  std::vector<int> count;     ///< per block: steps before the cut
  std::vector<int> sequence;  ///< empty: no better order than the repetend's own was found
  std::int64_t work = 0;
};

/// Counts what starts before the latest first start of a block.
std::vector<int> counts_before_cut(const Instance& in, const Starts& starts, int micro_batches) {
  Nanoseconds cut = 0;
  for (int b = 0; b < in.blocks(); ++b) cut = std::max(cut, starts(b, 0));
  std::vector<int> count(in.blocks(), 0);
  for (int b = 0; b < in.blocks(); ++b) {
    while (count[b] < micro_batches && starts(b, count[b]) < cut) ++count[b];
  }
  return count;
}

/// Due dates: a step must end, with its transfers, before what waits for it behind the cut.
BeamGoal goal_before_cut(const Instance& in, const Starts& starts, const std::vector<int>& count) {
  BeamGoal goal;
  goal.target = count;
  goal.tail.resize(count.size());
  goal.device_tail.assign(in.devices(), 0);
  Nanoseconds latest = 0;
  for (int b = 0; b < in.blocks(); ++b) latest = std::max(latest, starts(b, count[b]));
  for (int d = 0; d < in.devices(); ++d) {
    Nanoseconds first = latest;
    for (const int b : in.blocks_on(d)) first = std::min(first, starts(b, count[b]));
    goal.device_tail[d] = -first;
  }
  for (auto b = in.topological().rbegin(); b != in.topological().rend(); ++b) {
    for (int m = 0; m < count[*b]; ++m) {
      Nanoseconds tail = -latest;
      for (const Edge& e : in.followers(*b)) {
        const Nanoseconds behind =
            m < count[e.block] ? in.time(e.block) + goal.tail[e.block][m] : -starts(e.block, m);
        tail = std::max(tail, e.transfer + behind);
      }
      goal.tail[*b].push_back(tail);
    }
  }
  return goal;
}

End warm_up(const Instance& in, const Starts& starts, const CompletionOptions& options) {
  End end;
  end.count = counts_before_cut(in, starts, options.micro_batches - 1);
  if (options.width == 0 || *std::max_element(end.count.begin(), end.count.end()) == 0) return end;
  const std::int64_t steps = std::accumulate(end.count.begin(), end.count.end(), std::int64_t{0});
  const std::int64_t width =
      std::min<std::int64_t>(options.width, options.work / kShares / beam_work(in, steps, 1));
  if (width <= 0) return end;
  const BeamGoal goal = goal_before_cut(in, starts, end.count);
  BeamOptions beam;
  beam.width = static_cast<int>(width);
  beam.give_up = 0;  // the repetend's own order is never late
  beam.stop = options.stop;
  BeamResult found = beam_search(in, goal, beam);
  end.work = found.work;
  end.sequence = std::move(found.order);
  return end;
}

/// The steps with first[b] <= micro-batch < last[b], by start.
std::vector<int> by_start(const Instance& in, const Starts& starts, const std::vector<int>& first,
                          const std::vector<int>& last) {
  struct Entry {
    Nanoseconds start;
    int rank;
    int block;
  };
  std::vector<Entry> entries;
  for (int b = 0; b < in.blocks(); ++b) {
    for (int m = first[b]; m < last[b]; ++m) entries.push_back({starts(b, m), in.rank(b), b});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.start != b.start ? a.start < b.start : a.rank < b.rank;
  });
  std::vector<int> sequence;
  for (const Entry& entry : entries) sequence.push_back(entry.block);
  return sequence;
}

}  // namespace

Completed complete(const Instance& in, const Instance& mirror, const Repetend& repetend,
                   const CompletionOptions& options) {
  const int n = options.micro_batches;
  const std::size_t blocks = in.blocks();
  const Starts forwards = [&](int b, int m) {
    const int copy = m % repetend.unroll;
    return repetend.start[static_cast<std::size_t>(copy) * blocks + b] +
           static_cast<Nanoseconds>(m / repetend.unroll) * repetend.period;
  };
  Nanoseconds end = 0;
  for (int b = 0; b < in.blocks(); ++b) end = std::max(end, forwards(b, n - 1) + in.time(b));
  const Starts backwards = [&](int b, int m) { return end - forwards(b, n - 1 - m) - in.time(b); };

  const std::vector<int> none(blocks, 0);
  const std::vector<int> all(blocks, n);
  std::vector<int> first = counts_before_cut(in, forwards, n);
  std::vector<int> last = counts_before_cut(mirror, backwards, n);
  for (std::size_t b = 0; b < blocks; ++b) {
    if (first[b] + last[b] >= n)
      return {options.width == 0 ? by_start(in, forwards, none, all) : std::vector<int>{}, 0};
    last[b] = n - last[b];
  }
  const End head = warm_up(in, forwards, options);
  const End tail = warm_up(mirror, backwards, options);
  std::vector<int> sequence = head.sequence.empty() ? by_start(in, forwards, none, first) : head.sequence;
  const std::vector<int> middle = by_start(in, forwards, first, last);
  sequence.insert(sequence.end(), middle.begin(), middle.end());
  if (tail.sequence.empty()) {
    const std::vector<int> rest = by_start(in, forwards, last, all);
    sequence.insert(sequence.end(), rest.begin(), rest.end());
  } else {
    sequence.insert(sequence.end(), tail.sequence.rbegin(), tail.sequence.rend());
  }
  return {std::move(sequence), head.work + tail.work};
}

}  // namespace ostinato
