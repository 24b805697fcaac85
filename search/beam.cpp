#include "search/beam.h"

#include <algorithm>
#include <unordered_map>

#include "search/beam_state.h"

namespace ostinato {
namespace {

class Beam {
 public:
  Beam(const Instance& in, const BeamGoal& goal, const BeamOptions& options)
      : moves_(in, goal, options.flavour), options_(options) {
    for (const int t : goal.target) steps_ += static_cast<std::size_t>(t);
  }

  BeamResult run() {
    level_ = {moves_.root()};
    hashes_ = {0};
    for (std::size_t step = 0; step < steps_; ++step) {
      if (options_.stop && options_.stop()) return {};
      children_.clear();
      for (std::size_t i = 0; i < level_.size(); ++i) {
        moves_.children(level_[i], hashes_[i], static_cast<int>(i), children_);
      }
      if (!select()) return {};
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
    equal_counts_.clear();
    for (const BeamChild& child : children_) {
      if (child.bound >= options_.give_up || next_size_ == static_cast<std::size_t>(options_.width)) break;
      if (equal_counts_[child.hash] >= options_.per_count || !keep(child, true)) continue;
      ++equal_counts_[child.hash];
    }
    // Only if everything else is stuck may a state go on that might deadlock.
    for (const BeamChild& child : children_) {
      if (next_size_ > 0 || child.bound >= options_.give_up) break;
      keep(child, false);
    }
    std::swap(level_, next_);
    level_.resize(next_size_);
    std::swap(hashes_, next_hashes_);
    return next_size_ > 0;
  }

  bool keep(const BeamChild& child, bool only_safe) {
    if (next_.size() <= next_size_) next_.resize(next_size_ + 1);
    BeamState& state = next_[next_size_];
    state = level_[static_cast<std::size_t>(child.parent)];
    moves_.apply(state, child.block, child.start);
    if (only_safe && !moves_.safe(state)) return false;
    trace_.push_back({state.trace, child.block});
    state.trace = static_cast<int>(trace_.size()) - 1;
    next_hashes_.push_back(child.hash);
    ++next_size_;
    return true;
  }

  BeamResult best() const {
    const auto least =
        std::min_element(level_.begin(), level_.end(),
                         [](const BeamState& a, const BeamState& b) { return a.value < b.value; });
    if (least == level_.end() || least->value >= options_.give_up) return {};
    BeamResult result;
    result.value = least->value;
    for (int t = least->trace; t >= 0; t = trace_[static_cast<std::size_t>(t)].parent) {
      result.order.push_back(trace_[static_cast<std::size_t>(t)].block);
    }
    std::reverse(result.order.begin(), result.order.end());
    return result;
  }

  BeamMoves moves_;
  const BeamOptions& options_;
  std::size_t steps_ = 0;
  std::vector<BeamState> level_, next_;
  std::vector<std::uint64_t> hashes_, next_hashes_;
  std::size_t next_size_ = 0;
  std::vector<BeamChild> children_;
  std::unordered_map<std::uint64_t, int> equal_counts_;
  std::vector<Trace> trace_;
};

}  // namespace

BeamGoal whole_horizon(const Instance& in, int micro_batches) {
  BeamGoal goal;
  goal.target.assign(static_cast<std::size_t>(in.blocks()), micro_batches);
  for (int b = 0; b < in.blocks(); ++b) {
    goal.tail.emplace_back(static_cast<std::size_t>(micro_batches), in.tail(b));
  }
  goal.device_tail.assign(static_cast<std::size_t>(in.devices()), 0);
  return goal;
}

BeamResult beam_search(const Instance& instance, const BeamGoal& goal, const BeamOptions& options) {
  return Beam(instance, goal, options).run();
}

}  // namespace ostinato
