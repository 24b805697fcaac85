// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule of unequal micro-batches as one list of all steps: every step starts as soon as its devices have
// ended what stands before it, and its inputs have arrived.
//
//   Sequence now(jobs);
//   if (now.load(order)) now.makespan();                       // false: inputs come later, or memory lacks
//   if (now.shift(move, now.makespan() - 1)) ...               // taken, for it ends no later than that
//
// Each list in which every step comes after its inputs is a schedule, and each schedule in which no step
// could start sooner alone is one of them. What a device holds depends on its part of the list alone.

#include <cstdint>
#include <limits>
#include <vector>

#include "search/numbers/random.h"
#include "search/unequal/jobs.h"

namespace ostinato::unequal {

inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

class Sequence {
 public:
  explicit Sequence(const Jobs& jobs);

  /// Takes the list, or leaves all as it was where a step stands before an input, the memory does not hold
  /// it, or it ends later than `limit`. O(steps).
  bool load(const std::vector<int>& order, Nanoseconds limit = kNever);

  /// Moves step `last` to before step `first` (or, `right`, `first` to behind `last`) with the steps of its
  /// micro-batch that must go with it; false, and no change, as for load(). O(steps).
  struct Shift {
    int first;
    int last;
    bool right;
  };
  bool shift(const Shift& move, Nanoseconds limit);
  /// All steps of micro-batch i and of micro-batch j change places.
  bool exchange(int i, int j, Nanoseconds limit);

  /// All steps of micro-batch i go this many places forward in the list (below 0: back); the rest close up.
  bool slide(int i, int places, Nanoseconds limit);

  /// Pairs of steps that follow each other without a gap on a device and hold the makespan; neither waits for
  /// the other's output: one longest path, chosen by `random`. O(its length).
  struct Pair {
    int before;
    int after;
    bool joined;  ///< the pair before this one ends where this one begins, on the same device
  };
  const std::vector<Pair>& critical(Random& random);

  const std::vector<int>& order() const { return order_; }
  Nanoseconds makespan() const { return makespan_; }
  Nanoseconds start(int s) const { return end(s) - jobs_.time(s); }
  Nanoseconds end(int s) const { return now_.end[s]; }
  /// Steps looked at so far: a clock that runs alike on every machine.
  std::int64_t work() const { return work_; }

 private:
  struct Times {
    std::vector<Nanoseconds> end;
    std::vector<int> before;  ///< of each step on each of its devices: the step before it there; -1: none
  };
  Nanoseconds measure(const std::vector<int>& order, Nanoseconds limit);
  bool take(Nanoseconds limit);
  void sort_by_start();

  const Jobs& jobs_;
  std::size_t width_ = 1;  ///< most devices of a step
  std::vector<int> order_, trial_, place_;
  Times now_, next_;
  std::vector<Nanoseconds> free_;
  std::vector<Bytes> used_;
  std::vector<int> last_, with_, rest_;
  std::vector<int> next_of_;  ///< of each block that keeps the order, the micro-batch that it may run next
  std::vector<Pair> pairs_;
  Nanoseconds makespan_ = kNever;
  std::int64_t work_ = 0;
};

}  // namespace ostinato::unequal
