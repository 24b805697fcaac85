// SPDX-License-Identifier: Apache-2.0
// One level holds partial schedules of equally many steps. From level to level:
// 1. Every state of the level lists its children (beam_state.h), each with a lower bound on what it can
//    become.
// 2. The children are sorted by bound; ties are broken by rank, start, parent and block, the same way
//    everywhere.
// 3. In this order they are kept, up to `width`. The usual search keeps the first one for each vector of
//    counts, if its memory cannot deadlock; the exact search keeps all that no kept one with the same counts
//    dominates.
// 4. If none is kept, the first child goes on, although its memory might deadlock.
// In an exact search, only the width and a stop drop children below `give_up` that nothing dominates, and
// both set `truncated`: without it, an empty result is a proof. Work counts children times blocks.
#include "search/schedule/beam.h"

#include <algorithm>
#include <unordered_map>

#include "search/schedule/beam_state.h"

namespace ostinato {
namespace {

class Beam {
 public:
  Beam(const Instance& in, const BeamGoal& goal, const BeamOptions& options)
      : moves_(in, goal, options.flavour), options_(options), blocks_(in.blocks()) {
    for (const int t : goal.target) steps_ += static_cast<std::size_t>(t);
  }

  BeamResult run() {
    level_ = {moves_.root()};
    hashes_ = {0};
    for (std::size_t step = 0; step < steps_; ++step) {
      if (options_.stop && options_.stop()) {
        truncated_ = true;
        return failed();
      }
      children_.clear();
      for (std::size_t i = 0; i < size_; ++i) {
        moves_.children(level_[i], hashes_[i], static_cast<int>(i), children_);
      }
      work_ += static_cast<std::int64_t>(children_.size()) * blocks_;
      if (!select()) return failed();
    }
    return best();
  }

 private:
  struct Trace {
    int parent;
    int block;
  };

  /// Builds the survivors of children_; false if there is none.
  bool select() {
    std::sort(children_.begin(), children_.end(), [](const BeamChild& a, const BeamChild& b) {
      if (a.bound != b.bound) return a.bound < b.bound;
      if (a.rank != b.rank) return a.rank < b.rank;
      if (a.start != b.start) return a.start < b.start;
      return a.parent != b.parent ? a.parent < b.parent : a.block < b.block;
    });
    next_size_ = 0;
    next_hashes_.clear();
    same_counts_.clear();
    for (const BeamChild& child : children_) {
      if (child.bound >= options_.give_up) break;
      if (next_size_ == static_cast<std::size_t>(options_.width)) {
        truncated_ = true;
        break;
      }
      keep(child);
    }
    // Only if everything else is stuck may a state go on that might deadlock.
    for (std::size_t i = 0; next_size_ == 0 && i < children_.size() && children_[i].bound < options_.give_up;
         ++i) {
      build(children_[i]);
      accept(children_[i].hash);
    }
    std::swap(level_, next_);
    size_ = next_size_;
    std::swap(hashes_, next_hashes_);
    return next_size_ > 0;
  }

  BeamState& build(const BeamChild& child) {
    if (next_.size() <= next_size_) next_.resize(next_size_ + 1);
    BeamState& state = next_[next_size_];
    state = level_[child.parent];
    moves_.apply(state, child.block, child.start);
    block_ = child.block;
    return state;
  }

  /// What build() left becomes part of the next level.
  void accept(std::uint64_t hash) {
    BeamState& state = next_[next_size_];
    trace_.push_back({state.trace, block_});
    state.trace = static_cast<int>(trace_.size()) - 1;
    next_hashes_.push_back(hash);
    same_counts_[hash].push_back(next_size_++);
  }

  void keep(const BeamChild& child) {
    const auto found = same_counts_.find(child.hash);
    if (!options_.exact && found != same_counts_.end()) return;
    const BeamState& state = build(child);
    if (!options_.exact && !moves_.safe(state)) return;
    if (found != same_counts_.end() &&
        std::any_of(found->second.begin(), found->second.end(),
                    [&](std::size_t i) { return moves_.dominates(next_[i], state); })) {
      return;
    }
    accept(child.hash);
  }

  BeamResult failed() const {
    BeamResult result;
    result.work = work_;
    result.truncated = truncated_;
    return result;
  }

  BeamResult best() const {
    const auto last = level_.begin() + static_cast<std::ptrdiff_t>(size_);
    const auto least = std::min_element(
        level_.begin(), last, [](const BeamState& a, const BeamState& b) { return a.value < b.value; });
    if (least == last || least->value >= options_.give_up) return failed();
    BeamResult result = failed();
    result.value = least->value;
    for (int t = least->trace; t >= 0; t = trace_[t].parent) {
      result.order.push_back(trace_[t].block);
    }
    std::reverse(result.order.begin(), result.order.end());
    return result;
  }

  BeamMoves moves_;
  const BeamOptions& options_;
  std::int64_t blocks_;
  std::int64_t work_ = 0;
  std::size_t steps_ = 0;
  std::vector<BeamState> level_, next_;
  std::vector<std::uint64_t> hashes_, next_hashes_;
  std::size_t size_ = 1;
  std::size_t next_size_ = 0;
  std::vector<BeamChild> children_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>>
      same_counts_;  ///< in next_, by hash of the counts
  int block_ = -1;   ///< last step of what build() left
  bool truncated_ = false;
  std::vector<Trace> trace_;
};

}  // namespace

BeamGoal whole_horizon(const Instance& in, int micro_batches) {
  BeamGoal goal;
  goal.target.assign(in.blocks(), micro_batches);
  for (int b = 0; b < in.blocks(); ++b) {
    goal.tail.emplace_back(micro_batches, in.tail(b));
  }
  goal.device_tail.assign(in.devices(), 0);
  return goal;
}

BeamGoal whole_horizon(const Instance& in, int micro_batches, const Propagation& common, bool backwards) {
  BeamGoal goal = whole_horizon(in, micro_batches);
  const int last = micro_batches - 1;
  goal.head = goal.tail;
  goal.waits.resize(goal.tail.size());
  for (int b = 0; b < in.blocks(); ++b) {
    for (int i = 0; i < micro_batches; ++i) {
      const std::size_t at = i;
      goal.head[b][at] = backwards ? common.tail(b, last - i) : common.head(b, i);
      goal.tail[b][at] = backwards ? common.head(b, last - i) : common.tail(b, i);
    }
    for (int a = 0; a < in.blocks(); ++a) {
      if (!common.conflict(a, b)) continue;
      BeamGoal::Wait wait{a, {}};
      for (int i = 0; i < micro_batches; ++i) {
        wait.count.push_back(backwards ? common.after(b, a, last - i) : common.before(a, b, i));
      }
      if (wait.count.back() > 0) goal.waits[b].push_back(std::move(wait));
    }
  }
  return goal;
}

std::int64_t beam_work(const Instance& in, std::int64_t steps, int width) {
  // About a third of the devices' blocks may come next.
  return steps * width * (1 + in.blocks() / 3) * in.blocks();
}

BeamResult beam_search(const Instance& instance, const BeamGoal& goal, const BeamOptions& options) {
  return Beam(instance, goal, options).run();
}

}  // namespace ostinato
