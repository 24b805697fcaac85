// SPDX-License-Identifier: Apache-2.0
#pragma once
// One partial schedule of the exhaustion (checker/exhaust.h): what may start next, and whether all that is
// left can still end in time.
//
// Steps are appended by start; steps of one start by (takes time, place in the order of the graph). Every
// step starts as soon as its devices are free and its inputs are there: a device's memory depends only on the
// order of its steps, so a later start gains nothing. The state is a count per block, the time from which
// each device is free, and the ends that other steps still wait for.

#include <cstdint>
#include <vector>

#include "search/checker/windows.h"

namespace ostinato::checker {

/// As it is stored. States with equal counts have `times` of equal length that mean the same.
struct Partial {
  std::vector<int> count;          ///< steps begun, per block
  std::vector<Nanoseconds> times;  ///< per device from when it is free; then the ends still waited for
  Nanoseconds cursor = 0;          ///< start of the last step
  int last = -1;                   ///< place of its block among those of one start
  Wide sum = 0;                    ///< of all starts

  /// Whatever can follow `other` can follow this one, no later; both have the same counts.
  bool dominates(const Partial& other) const;
};

/// A step that may come next.
struct Choice {
  int block;
  Nanoseconds start;
};

/// The rules for one placement, number of micro-batches and deadline. One partial schedule is open at a time.
class Moves {
 public:
  /// Only schedules that end by `deadline` are of interest; if the windows have an origin, schedules that end
  /// there by it. `windows` must be known. Backwards, time runs from the end to the start: edges are turned
  /// round, and what gives back takes. Each step's earliest start must be known.
  Moves(const Graph& graph, const Windows& windows, int n, Nanoseconds deadline, bool backwards);

  Partial root() const;
  void open(const Partial& state);
  /// What may be appended to the open one. O(blocks + edges).
  const std::vector<Choice>& choices() const { return choices_; }
  /// The open one with `choice` appended; false if it cannot end in time. O(blocks * k + edges).
  bool append(const Choice& choice, Partial& result);

 private:
  struct Input {
    int block;
    Nanoseconds transfer;
  };
  Nanoseconds& end(int b, int i) { return end_[static_cast<std::size_t>(b) * n_ + i]; }
  Nanoseconds end(int b, int i) const { return end_[static_cast<std::size_t>(b) * n_ + i]; }
  Nanoseconds windows_earliest(int b, int i) const {
    return backwards_ ? windows_.after(b, static_cast<int>(n_) - 1 - i) : windows_.earliest(b, i);
  }
  Nanoseconds windows_after(int b, int i) const {
    return backwards_ ? windows_.earliest(b, static_cast<int>(n_) - 1 - i) : windows_.after(b, i);
  }
  int oldest_end(int b) const;
  bool fits(int b) const;
  bool harmless(int b) const;
  bool passed(int b) const;
  void find_starts();
  void propagate();
  void find_choices();
  bool raise_floors();
  bool wait_for_memory(int b);
  bool wait_for_device(int b);
  bool in_time();
  bool device_in_time(int d) const;
  void run(const Choice& choice, int sign);
  void store(Partial& result) const;

  const Graph& graph_;
  const Windows& windows_;
  std::size_t n_;
  Nanoseconds deadline_;
  bool backwards_;
  std::vector<int> order_;  ///< every block after its inputs
  std::vector<int> place_;  ///< of each block among those of one start
  std::vector<std::vector<Input>> inputs_;
  std::vector<std::vector<int>> followers_;
  std::vector<Nanoseconds> longest_transfer_;  ///< from each block
  std::vector<int> due_;  ///< of each block: from this micro-batch on, no step waits for its end
  std::vector<Nanoseconds> time_;
  std::vector<Bytes> memory_, needed_, room_;
  // The open partial schedule.
  std::vector<int> count_;
  std::vector<Nanoseconds> free_, free_before_, end_;
  std::vector<Bytes> used_;
  Nanoseconds cursor_ = 0;
  int last_ = -1;
  Wide sum_ = 0;
  std::vector<Nanoseconds> start_;  ///< least start of the next step of each block
  std::vector<Nanoseconds> floor_;
  std::vector<char> ready_;  ///< start_ is exact: nothing but its turn is missing
  std::vector<Choice> choices_;
};

}  // namespace ostinato::checker
