// SPDX-License-Identifier: Apache-2.0
// 1. state_all() adds the dependencies, the order of a block's micro-batches and the limit as arcs, and
//    settles.
// 2. settle(), until nothing changes: a pair that has no slack in one order gets the other one; then, for
//    each step on a device with limited memory, what is in use at least when it starts decides what must run
//    before or after it.
// 3. branch() takes the open pair with the least slack, first in the order that has more, and recurses; at
//    most as deep as there are pairs.
// 4. If every pair is decided, the longest paths are the starts, and sorted they are the sequence.
// run_near() keeps the orders of a given sequence except between steps that it frees (two micro-batches, or
// a window of the sequence), again and again until one attempt succeeds or the work is used up. Only run()
// proves anything: `complete` unless work or time cut it.
#include "search/schedule/order_search.h"

#include <algorithm>
#include <tuple>

#include "search/bounds/feasible.h"
#include "search/numbers/random.h"
#include "search/schedule/longest_paths.h"

namespace ostinato {
namespace {

/// The work of a step grows with their square.
constexpr std::int64_t kMostOrderedSteps = 160;
/// Steps that are free at once, on average, and the work that is spent on them.
constexpr int kFreeSteps = 60;
constexpr std::int64_t kNearWork = 10'000'000;
/// No path is longer: far from kNoPath.
constexpr Nanoseconds kLongestPath = Nanoseconds{1} << 58;

class OrderSearch {
 public:
  OrderSearch(const Instance& in, int micro_batches, const OrderSearchOptions& options)
      : in_(in),
        n_(micro_batches),
        options_(options),
        paths_(in.blocks() * micro_batches),
        limit_(options.work) {
    on_.resize(in.devices());
    for (int s = 0; s < steps(); ++s)
      for (const int d : in.devices_of(block(s))) on_[d].push_back(s);
    list_pairs();
  }

  OrderSearchResult run() {
    OrderSearchResult result;
    if (state_all() && branch()) result.sequence = found_;
    result.complete = !cut_;
    result.work = work();
    return result;
  }

  OrderSearchResult run_near(const std::vector<int>& sequence, std::uint64_t seed) {
    OrderSearchResult result;
    Random random(seed);
    steps_of(sequence);
    const std::size_t root = state_all() ? paths_.mark() : 0;
    while (root > 0 && found_.empty() && work() < options_.work && !stopped()) {
      free_some(random);
      limit_ = std::min(options_.work, work() + kNearWork);
      cut_ = false;
      if (!keep_order() || !settle() || !branch()) paths_.undo(root);
    }
    result.sequence = found_;
    result.work = work();
    return result;
  }

 private:
  struct Pair {
    int first, second;
  };

  int steps() const { return in_.blocks() * n_; }
  int block(int step) const { return step % in_.blocks(); }
  int micro_batch(int step) const { return step / in_.blocks(); }
  Nanoseconds time(int step) const { return in_.time(block(step)); }
  std::int64_t work() const { return work_ + paths_.work(); }

  bool stopped() const { return options_.stop && options_.stop(); }

  bool out_of_work() {
    cut_ = cut_ || work() > limit_ || ((++asked_ & 63) == 0 && stopped());
    return cut_;
  }

  bool before(int a, int b) const { return paths_.get(a, b) >= time(a); }
  bool runs_before(int a, int b) { return paths_.add(a, b, time(a)); }
  /// What is left of the limit if a runs before b; below 0: it cannot.
  Nanoseconds slack(int a, int b) const {
    const Nanoseconds back = paths_.get(b, a);
    return back == kNoPath ? -kNoPath : -back - time(a);
  }

  /// Each pair of steps that share a device, once; steps of one block run in micro-batch order. Two that take
  /// no time need no order: they may run at one instant, and nothing that they hold tells which is first.
  void list_pairs() {
    for (const std::vector<int>& all : on_)
      for (std::size_t i = 0; i < all.size(); ++i)
        for (std::size_t k = i + 1; k < all.size(); ++k)
          if (block(all[i]) != block(all[k]) && time(all[i]) + time(all[k]) > 0)
            pairs_.push_back({all[i], all[k]});
    const auto key = [](const Pair& pair) { return std::tuple(pair.first, pair.second); };
    std::sort(pairs_.begin(), pairs_.end(), [&](const Pair& a, const Pair& b) { return key(a) < key(b); });
    const auto last = std::unique(pairs_.begin(), pairs_.end(),
                                  [&](const Pair& a, const Pair& b) { return key(a) == key(b); });
    pairs_.erase(last, pairs_.end());
  }

  bool state_blocks() {
    for (int s = 0; s < steps(); ++s) {
      for (const Edge& e : in_.inputs(block(s))) {
        const int input = micro_batch(s) * in_.blocks() + e.block;
        if (!paths_.add(input, s, time(input) + e.transfer)) return false;
      }
      if (micro_batch(s) > 0 && !runs_before(s - in_.blocks(), s)) return false;
    }
    return true;
  }

  bool state_objective() {
    for (int a = 0; a < steps(); ++a) {
      if (out_of_work()) return false;
      for (int b = 0; b < steps(); ++b)
        if (in_one_group(a, b) && !paths_.add(b, a, time(b) - (options_.below - 1))) return false;
    }
    return true;
  }

  bool in_one_group(int a, int b) const {
    if (options_.objective == Objective::makespan) return true;
    if (options_.objective == Objective::latency) return micro_batch(a) == micro_batch(b);
    const auto of_a = in_.devices_of(block(a)), of_b = in_.devices_of(block(b));
    return std::any_of(of_a.begin(), of_a.end(),
                       [&](int d) { return std::find(of_b.begin(), of_b.end(), d) != of_b.end(); });
  }

  bool state_all() { return state_blocks() && state_objective() && settle(); }

  /// Fills in_turn_ and place_.
  void steps_of(const std::vector<int>& sequence) {
    std::vector<int> count(in_.blocks(), 0);
    place_.resize(steps());
    for (const int b : sequence) {
      const int s = count[b]++ * in_.blocks() + b;
      place_[s] = static_cast<int>(in_turn_.size());
      in_turn_.push_back(s);
    }
  }

  void free_some(Random& random) {
    free_.assign(steps(), 0);
    if (n_ > 2 && random.below(2) == 0) {
      const int first = random.below(n_), second = random.below(n_);
      for (int s = 0; s < steps(); ++s) free_[s] = micro_batch(s) == first || micro_batch(s) == second;
      return;
    }
    const int length = std::min(steps(), kFreeSteps / 2 + random.below(kFreeSteps));
    const int from = random.below(steps() - length + 1);
    for (int i = from; i < from + length; ++i) free_[in_turn_[i]] = 1;
  }

  bool keep_order() {
    work_ += static_cast<std::int64_t>(pairs_.size());
    for (const auto& [a, b] : pairs_) {
      if (free_[a] || free_[b]) continue;
      if (!(place_[a] < place_[b] ? runs_before(a, b) : runs_before(b, a))) return false;
    }
    return true;
  }

  /// Decides every pair that has no choice. False: nothing below the limit is left.
  bool settle() {
    for (std::size_t known = paths_.mark(), first = 1; first != 0 || paths_.mark() != known; first = 0) {
      known = paths_.mark();
      if (!settle_pairs() || !settle_memory()) return false;
    }
    return true;
  }

  bool settle_pairs() {
    work_ += static_cast<std::int64_t>(pairs_.size());
    for (const auto& [a, b] : pairs_) {
      if (before(a, b) || before(b, a)) continue;
      if (slack(a, b) < 0 && !runs_before(b, a)) return false;
      if (slack(b, a) < 0 && !runs_before(a, b)) return false;
    }
    return true;
  }

  bool settle_memory() {
    for (int d = 0; d < in_.devices(); ++d) {
      if (!in_.limited(d)) continue;
      for (const int s : on_[d])
        if (!settle_memory(s, d)) return false;
    }
    return true;
  }

  /// What is in use when the step starts, at least, decides what must run before and after it.
  bool settle_memory(int step, int device) {
    work_ += static_cast<std::int64_t>(on_[device].size());
    Bytes least = std::max<Bytes>(0, in_.memory(block(step))) + in_.workspace(block(step));
    open_.clear();
    for (const int s : on_[device]) {
      if (s == step || before(step, s)) continue;
      const Bytes memory = in_.memory(block(s));
      const bool decided = before(s, step);
      if (decided || memory < 0) least += memory;
      if (!decided && memory != 0) open_.push_back(s);
    }
    if (least > in_.room(device)) return false;
    for (const int s : open_) {
      const Bytes memory = in_.memory(block(s));
      if (least + (memory < 0 ? -memory : memory) <= in_.room(device)) continue;
      if (!(memory < 0 ? runs_before(s, step) : runs_before(step, s))) return false;
    }
    return true;
  }

  /// The open pair with the least slack; nullptr: none is open.
  const Pair* tightest() {
    const Pair* best = nullptr;
    std::pair<Nanoseconds, Nanoseconds> least;
    work_ += static_cast<std::int64_t>(pairs_.size());
    for (const Pair& pair : pairs_) {
      if (before(pair.first, pair.second) || before(pair.second, pair.first)) continue;
      const Nanoseconds one = slack(pair.first, pair.second), other = slack(pair.second, pair.first);
      const std::pair tightness = {std::min(one, other), std::max(one, other)};
      if (best != nullptr && least <= tightness) continue;
      best = &pair;
      least = tightness;
    }
    return best;
  }

  /// True: found_ is below the limit. The order with more slack first.
  bool branch() {
    const Pair* open = tightest();
    if (open == nullptr) return keep();
    const auto [a, b] = *open;
    const bool as_listed = slack(a, b) >= slack(b, a);
    for (const bool first : {as_listed, !as_listed}) {
      if (out_of_work()) return false;
      const std::size_t mark = paths_.mark();
      if ((first ? runs_before(a, b) : runs_before(b, a)) && settle() && branch()) return true;
      paths_.undo(mark);
    }
    return false;
  }

  /// Every pair is decided: starts that keep all arcs. Of one start, what takes no time comes first, inputs
  /// before what reads them.
  bool keep() {
    std::vector<std::tuple<Nanoseconds, bool, int, int>> starts;
    for (int s = 0; s < steps(); ++s) {
      Nanoseconds start = 0;
      for (int from = 0; from < steps(); ++from) start = std::max(start, paths_.get(from, s));
      starts.emplace_back(start, time(s) > 0, in_.rank(block(s)), s);
    }
    std::sort(starts.begin(), starts.end());
    for (const auto& [start, takes_time, rank, s] : starts) found_.push_back(block(s));
    return true;
  }

  const Instance& in_;
  const int n_;
  const OrderSearchOptions& options_;
  LongestPaths paths_;
  std::vector<std::vector<int>> on_;  ///< steps of each device
  std::vector<Pair> pairs_;
  std::vector<int> in_turn_, place_;  ///< of run_near(): its sequence as steps, and where each stands
  std::vector<char> free_;            ///< of run_near(), per step
  std::vector<int> open_;             ///< scratch of settle_memory()
  std::vector<int> found_;
  std::int64_t work_ = 0, limit_;
  unsigned asked_ = 0;
  bool cut_ = false;
};

}  // namespace

Nanoseconds beyond_all_schedules(const Instance& in, int micro_batches) {
  Nanoseconds one = 0;
  for (int b = 0; b < in.blocks(); ++b) {
    one += in.time(b);
    for (const Edge& e : in.inputs(b)) one += e.transfer;
  }
  return one * micro_batches + 1;
}

bool orders_can_be_searched(const Instance& in, int micro_batches) {
  const std::int64_t steps = static_cast<std::int64_t>(in.blocks()) * micro_batches;
  if (steps > kMostOrderedSteps || beyond_all_schedules(in, micro_batches) > kLongestPath / steps)
    return false;
  return !memory_in_no_time(in);
}

OrderSearchResult search_orders(const Instance& in, int micro_batches, const OrderSearchOptions& options) {
  return OrderSearch(in, micro_batches, options).run();
}

OrderSearchResult search_near(const Instance& in, int micro_batches, const OrderSearchOptions& options,
                              const std::vector<int>& sequence, std::uint64_t seed) {
  return OrderSearch(in, micro_batches, options).run_near(sequence, seed);
}

}  // namespace ostinato
