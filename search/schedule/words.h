// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule as one word of steps per device, with what a local search asks of it: starts, tails, and what a
// move would do.
//
//   Words words(in, 12, sequence);
//   for (const Words::Run& run : words.critical_runs(0)) ...             // what holds the objective
//   if (words.fits(move) && words.estimate(move) < best) words.apply(move);
//
// Every step starts as early as the words and its group (group_starts.h) allow: starts are longest paths in
// the disjunctive graph (Roy, Sussmann 1964), and so are tails, from the end of a step to the end of all. The
// memory of a device depends on its word alone. A linear order of all steps that agrees with every word is
// kept beside them, so that longest paths are one pass, and where there are several groups one for each.

#include <cstdint>
#include <utility>
#include <vector>

#include "search/placement/instance.h"
#include "search/plan/plan.h"
#include "search/schedule/group_starts.h"

namespace ostinato {

class Words {
 public:
  /// `sequence`: blocks; the i-th mention of one is micro-batch i, inputs first, within the memory.
  Words(const Instance& instance, int micro_batches, const std::vector<int>& sequence,
        Objective objective = Objective::makespan);

  /// A step is micro_batch * blocks + block.
  int steps() const { return static_cast<int>(head_.size()); }
  int block(int step) const { return step % blocks_; }
  /// Of the objective: the least that these words allow.
  Nanoseconds value() const { return value_; }
  /// As the constructor takes it.
  std::vector<int> sequence() const;
  /// The starts that reach the value.
  std::vector<ScheduledBlock> schedule() const;
  /// Steps that apply() looks at.
  std::int64_t work() const {
    return static_cast<std::int64_t>(steps()) * (several() ? 3 + start_.size() : 3);
  }

  /// Steps that follow each other on `device` without a gap and hold the value, at least two.
  struct Run {
    int device;
    std::vector<int> steps;
  };
  /// Of one longest path. Where several lead to a step, `choice` picks. O(steps).
  std::vector<Run> critical_runs(std::uint64_t choice) const;

  /// `first` and `last` stand in one run. Right: first goes behind last; else last goes before first. On
  /// its other devices it moves past every step that stands between it and a step of the run there.
  struct Move {
    int device;
    int first;
    int last;
    bool right;
  };
  int mover(const Move& move) const { return move.right ? move.first : move.last; }
  /// Devices of the step that moves.
  std::int64_t width(const Move& move) const {
    return static_cast<std::int64_t>(in_->devices_of(block(mover(move))).size());
  }
  /// The steps that it passes, in the order of their starts.
  std::vector<int> passed(const Move& move) const;

  /// False if it passes a step of its block or a direct input, or if the device lacks the memory.
  bool fits(const Move& move) const;
  /// The longest path through what moves and what is passed, if nothing else changed, the starts of groups
  /// neither: most often the new makespan, else a little off. Source: Balas, Vazacopoulos (1998), section 3.
  /// O(passed).
  Nanoseconds estimate(const Move& move);
  /// Makes the move, or leaves all as it was and returns false where the words would contradict each other.
  /// O(steps), of several groups O(groups * steps).
  bool apply(const Move& move);

 private:
  static constexpr int kNone = -1;

  /// Place of `step` in the links of its k-th device.
  std::size_t link(int step, std::size_t k) const {
    return static_cast<std::size_t>(step / blocks_) * links_ + first_link_[block(step)] + k;
  }
  std::size_t link_on(int step, int device) const;
  bool is_on(int step, int device) const;
  Nanoseconds end(int step) const { return head_[step] + in_->time(block(step)); }
  Nanoseconds head_without(int step, int device, int mover, const std::vector<int>& steps) const;
  Nanoseconds tail_without(int step, int device, int mover, const std::vector<int>& steps) const;
  Nanoseconds after(int step) const {  ///< from the start of `step`, kNone: nothing follows
    return step == kNone ? kNoPath : in_->time(block(step)) + tail_[step];
  }
  bool several() const { return objective_ != Objective::makespan; }
  Nanoseconds release(int step) const;  ///< no group of the step has begun before
  Nanoseconds due(int step) const;      ///< the least tail that its groups leave it
  bool in_group(int step, int group) const;
  void start_groups();
  void add_paths_from(int group, std::vector<Nanoseconds>& longest);
  void find_heads();
  void measure();
  void hold(int device, int from, int to);
  bool holds(int step, Bytes before, int device) const;
  void relink(const Move& move, const std::vector<int>& steps, int device);
  std::pair<int, int> ends_on(const std::vector<int>& steps, int device) const;
  bool goes_along(const Move& move, const std::vector<int>& steps, int step) const;
  bool reorder(const Move& move, const std::vector<int>& steps);
  int critical_before(int step, std::uint64_t choice, int& device) const;

  const Instance* in_;
  int n_;
  int blocks_;
  std::size_t links_ = 0;                ///< of one micro-batch
  std::vector<std::size_t> first_link_;  ///< per block
  std::vector<int> order_, place_;    ///< all steps in an order that agrees with every word, and its inverse
  std::vector<int> previous_, next_;  ///< per link: neighbours in the word
  std::vector<Bytes> before_;         ///< per link: in use on that device before the step starts
  std::vector<Nanoseconds> head_, tail_;  ///< per step
  std::vector<int> stay_, go_;            ///< scratch of reorder()
  std::vector<char> moves_;               ///< scratch of reorder(), per step
  std::vector<Nanoseconds> heads_;        ///< scratch of estimate()
  Objective objective_;
  std::vector<Nanoseconds> start_;  ///< per group
  Nanoseconds value_ = 0;
};

}  // namespace ostinato
