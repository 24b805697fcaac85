// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every schedule that ends before a given time has in common: earliest starts, times to the end, and
// orders.
//
//   Propagation common(in, mirror, 12);
//   if (!common.run(best))          // no schedule ends before `best`: it is optimal
//   common.before(a, b, j)          // this many steps of block a run before micro-batch j of block b
//
// Every block runs its micro-batches in index order (instance.h), so what is known about two blocks that
// share a device is one number for each micro-batch. To a fixpoint:
// - Heads and tails: a step starts after its inputs, after its block's previous step, and after all steps
//   that must run before it on a device, which take their time one after another (for every set of those with
//   heads of at least h: h + their work). Tails are the heads of the reversed problem.
// - Selection (Carlier, Pinson 1989, "immediate selection"): where b_j first, then a_i, cannot end in time,
//   a_i runs before b_j.
// - Memory: when x_i starts, what must have been taken and cannot have been given back is in use. If that is
//   too much while fewer than g steps of c have given back, the g-th one runs before x_i.

#include <cstdint>
#include <vector>

#include "search/placement/instance.h"

namespace ostinato {

class Propagation {
 public:
  /// `mirror` is instance.reversed(). Both must outlive this. O(pairs * micro-batches) memory.
  Propagation(const Instance& instance, const Instance& mirror, int micro_batches);

  /// Whether run() takes milliseconds. Where a block that takes no time changes memory it does not hold.
  static bool affordable(const Instance& instance, int micro_batches);

  /// Makes known what follows if the makespan is below `limit`. False: no such schedule exists. A later run
  /// must have a lower limit; it starts from what is known. O(sweeps * steps * steps on a device).
  bool run(Nanoseconds limit);

  /// Least start of step i of b.
  Nanoseconds head(int b, int i) const { return sides_[0].head[slot(b, i)]; }
  /// Least time from the end of step i of b to the end of all.
  Nanoseconds tail(int b, int i) const { return sides_[1].head[slot(b, n_ - 1 - i)]; }
  /// True if a and b are two blocks that share a device.
  bool conflict(int a, int b) const { return pair_[a * blocks_ + b] >= 0; }
  /// Steps of a that run before step j of b. The blocks must conflict.
  int before(int a, int b, int j) const { return forced(0, a, b, j); }
  /// Steps of b that run after step i of a. The blocks must conflict.
  int after(int a, int b, int i) const { return n_ - first_after(0, a, i, b); }
  /// Steps that were looked at: a clock that runs alike on every machine.
  std::int64_t work() const { return work_; }

  /// Bytes that `take` takes and `give`, which comes after it, gives back, on one device.
  struct MemoryPair {
    int take;
    int give;  ///< -1: nothing gives them back
    Bytes bytes;
  };

 private:
  /// The problem in one direction of time.
  struct Side {
    const Instance* in;
    std::vector<Nanoseconds> head;
    std::vector<std::vector<MemoryPair>> pairs;  ///< per device; empty: memory says nothing there
  };
  struct Conflict {
    int a;
    int b;
  };

  std::size_t slot(int b, int i) const { return static_cast<std::size_t>(b) * n_ + i; }
  int& count(std::vector<int>& table, int a, int b, int i) {
    return table[static_cast<std::size_t>(pair_[a * blocks_ + b]) * n_ + i];
  }
  void find_conflicts();
  void order_paths();
  int forced(int side, int a, int b, int j) const;
  int first_after(int side, int x, int i, int c) const;
  void fix(int side, int a, int i, int b, int j);
  bool raise_heads(int side, Nanoseconds limit);
  Nanoseconds behind_forced(int side, int d, int b, int j);
  void select(Nanoseconds limit);
  bool wait_for_memory(int side);
  bool wait_for_memory(int side, int d, int x, int i);
  Bytes least_in_use(int side, int d, int x, int i, int give, int given) const;
  void close();

  int n_;
  int blocks_;
  Side sides_[2];
  std::vector<int> pair_;            ///< index of (a, b) in before_ and after_; -1: they share no device
  std::vector<Conflict> conflicts_;  ///< of that index
  std::vector<int> before_;          ///< per pair and step of b: steps of a that run before it
  std::vector<int> after_;           ///< per pair and step of a: steps of b that run after it
  std::vector<int> left_;            ///< scratch
  bool changed_ = false;
  std::int64_t work_ = 0;
};

}  // namespace ostinato
