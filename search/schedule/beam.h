// SPDX-License-Identifier: Apache-2.0
#pragma once
// Beam search over partial schedules, in the order of time.
//
// A partial schedule is one count per block (instance.h), the time from which each device is free, and the
// ends that later steps still wait for. Every child starts one more step, no earlier than the step before, so
// each semi-active schedule is reached in exactly one way. Of all children of a level the `width` with the
// least lower bound survive, a few per vector of counts. Source: Sabuncuoglu, Bayiz (1999), beam search for
// job shops; here with memory and identical jobs.
//
//   BeamResult r = beam_search(in, whole_horizon(in, 8), {.width = 64});
//   r.order      // blocks in the order of their starts; the i-th mention of a block is its micro-batch i

#include <cstdint>
#include <functional>
#include <vector>

#include "search/placement/instance.h"
#include "search/schedule/propagation.h"

namespace ostinato {

/// What a partial schedule has to reach, and what lateness costs.
struct BeamGoal {
  std::vector<int> target;  ///< per block: steps to run; micro-batches 0 .. target - 1
  /// Per block and micro-batch: from its end to the end of all that depends on it alone.
  std::vector<std::vector<Nanoseconds>> tail;
  std::vector<Nanoseconds> device_tail;  ///< per device: what follows its last step
  /// Per block and micro-batch: its least start; empty: nothing is known.
  std::vector<std::vector<Nanoseconds>> head = {};
  /// `count[i]` steps of `block` must have run before micro-batch i of the block that waits.
  struct Wait {
    int block;
    std::vector<int> count;
  };
  std::vector<std::vector<Wait>> waits = {};  ///< per block; empty: nothing is known
};

/// All of `micro_batches`: the makespan is the goal.
BeamGoal whole_horizon(const Instance& instance, int micro_batches);
/// The same with what is known of every schedule that is good enough; `backwards`: for the mirror.
BeamGoal whole_horizon(const Instance& instance, int micro_batches, const Propagation& common,
                       bool backwards);

struct BeamOptions {
  int width = 64;
  int flavour = 0;  ///< 0 .. kBeamFlavours - 1: how children of equal bound are ranked
  /// Keep every state that no other with its counts dominates, and states that might deadlock. If nothing was
  /// cut off then, all schedules below `give_up` were covered.
  bool exact = false;
  Nanoseconds give_up = std::numeric_limits<Nanoseconds>::max();  ///< only results below this are wanted
  std::function<bool()> stop;                                     ///< asked once a level; empty: never
};

inline constexpr int kBeamFlavours = 3;

struct BeamResult {
  std::vector<int> order;                                       ///< empty: nothing below `give_up` was found
  Nanoseconds value = std::numeric_limits<Nanoseconds>::max();  ///< largest end + tail
  /// Some state was cut off because of the width (or the stop): a wider beam differs.
  bool truncated = false;
  std::int64_t work = 0;  ///< children * blocks that were looked at: a clock that runs alike on every machine
};

/// Work that a search of this many steps is likely to need, in units of BeamResult::work.
std::int64_t beam_work(const Instance& instance, std::int64_t steps, int width);

/// O(steps * width * children * (blocks + edges)).
BeamResult beam_search(const Instance& instance, const BeamGoal& goal, const BeamOptions& options);

}  // namespace ostinato
