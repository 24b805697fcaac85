// SPDX-License-Identifier: Apache-2.0
#pragma once
// The chain partition with one number of micro-batches in flight: what a device carries when stages are put
// on it, and the algorithms that cut. Private to search/partition.

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "search/partition/chain.h"
#include "search/partition/chain_costs.h"

namespace ostinato::chain {

/// What one device carries: stages and shards are added in the order of the chain.
struct Load {
  Nanoseconds time = 0;
  Bytes fixed = 0;
  Bytes kept = 0;                    ///< of all micro-batches in flight
  Bytes together = 0, alone = 0;     ///< of the end of a step, when nothing is kept (LayerCost)
  Bytes buffered = 0, gradient = 0;  ///< messages (transit.h): of each size, and the largest sent back
  std::array<Bytes, 4> sizes{};      ///< the first sizes; later ones may be buffered twice
  Bytes workspace = 0;  ///< above fixed + kept; where one micro-batch is in flight at a time: above fixed

  /// Of a stage that receives and hands on this much.
  void add_messages(Bytes in, Bytes out);
};

/// One level of the partition: which device runs stage s, and how many micro-batches of it are in flight.
struct Problem {
  const Model& model;
  const ChainCosts& costs;
  std::vector<int> device_of;        ///< per stage
  std::vector<int> in_flight;        ///< per stage
  std::vector<int> shard_in_flight;  ///< per shard
  bool unlimited = false;            ///< the memory of the devices does not count
  bool serial = false;   ///< one micro-batch at a time: later stages keep nothing while an earlier one runs
  bool may_keep = true;  ///< a stage may keep its activations
  bool may_recompute = false;
  bool least = false;    ///< counts only what every placement needs: no messages, what is surely in flight
  bool in_part = false;  ///< the first layers of a stage may recompute alone, as a separate stage
  bool in_any_part = false;  ///< counts of each stage the least that any such number of layers takes
  std::function<bool()> stop = {};

  bool stopped() const { return stop && stop(); }
  /// Throws StoppedError where there is nothing to return yet.
  void check_stop() const {
    if (stopped()) throw StoppedError();
  }

  int devices() const { return model.devices(); }
  int stages() const { return static_cast<int>(device_of.size()); }
  Bytes memory(int device) const { return unlimited ? kUnlimited : model.memory_of(device); }
  const LayerSums& sums(int device) const { return costs.on(model.kind_of(device)); }

  /// Which neighbours of a stage are on its device: what they read and hand on is no message.
  struct Beside {
    bool before = false, behind = false;
  };
  Beside beside(int stage, int first, int end) const;
  /// `load` of this device with layers [first, end) as stage `stage` added.
  Load add(Load load, int device, int stage, int first, int end, bool recompute) const {
    return add(load, device, stage, first, end, recompute, beside(stage, first, end));
  }
  Load add(Load load, int device, int stage, int first, int end, bool recompute, Beside beside) const;
  /// The same; the first `recomputed` layers recompute.
  Load add_stage(const Load& load, int device, int stage, int first, int end, int recomputed) const;
  Load add_parts(const Load& load, int device, int stage, int first, int end, int recomputed) const;
  /// Of an inference, which keeps nothing: inference.h.
  Load add_forward(Load load, int device, int first, int end) const;
  Load add_shard(Load load, int shard, Beside beside) const;
  /// Adds what a stage or shard keeps, and takes above that while it runs.
  void hold(Load& load, Bytes own, Bytes above) const;
  Bytes needed(const Load& load) const;
  bool fits(const Load& load, int device) const {
    return memory(device) == kUnlimited || needed(load) <= memory(device);
  }

  /// The device with this stage and all shards, with as many layers recomputed as is quickest of what takes
  /// at most `limit` and fits its memory; nullopt where nothing does. O(layers of the stage) in part, else
  /// O(1).
  struct Fitting {
    Load load;
    int recomputed;  ///< this many of its first layers
  };
  std::optional<Fitting> fitting(int device, int stage, int first, int end, Nanoseconds limit) const;
  /// The same, whether it fits or not.
  Load with_shards(int device, int stage, int first, int end, int recomputed) const;
  /// No stage that starts at `first` or before and ends at `end` fits or takes at most `limit`: what is left
  /// out here is what does not grow with the run (its input).
  bool beyond(int device, int stage, int first, int end, Nanoseconds limit) const;
};

/// Ends of the stages; empty: none was found.
using Ends = std::vector<int>;

struct Found {
  Ends ends;
  std::vector<int> device_of;   ///< per stage
  std::vector<int> recomputed;  ///< per stage: this many of its first layers
  Nanoseconds busiest = 0;
  Nanoseconds lower_bound = 0;  ///< proven for this problem
  bool proved_empty = false;    ///< nothing fits, and every partition was excluded
};

/// One stage per device: exact, or StoppedError. Bisection on the busiest device, then a dynamic program that
/// among the partitions with that optimum takes the least transfer time, then the smallest sum of squared
/// loads, then the fewest bytes over the cuts. Devices of several kinds, and those that must run certain
/// layers, are put in the best order first.
Found solve_single(const Problem& problem);

/// The device of every stage, where devices of several kinds may stand in any order: exact in
/// O(product of (devices of a kind + 1) * layers * kinds * log(time)); nullopt where no order fits, or where
/// that would be more than kMostKindWork (`complete` is false then).
struct KindOrder {
  std::optional<std::vector<int>> device_of;
  bool complete = true;
};
KindOrder best_kind_order(const Problem& problem);
inline constexpr long kMostKindWork = 8'000'000;

/// Positions at which `stage` on `device` can end within `limit`, given those at which the stage before can.
/// O(layers * stage length) where the limit cuts runs short.
std::vector<char> reachable_ends(const Problem& problem, int device, int stage,
                                 const std::vector<char>& starts, Nanoseconds limit);

/// Upper end of every bisection on the busiest device.
Nanoseconds longest_load(const Problem& problem);

/// Several stages per device: see cut_chain(). All of them keep, or all recompute. `nodes`: of branch and
/// bound, all its runs together. A stop ends it as if these were used up.
Found solve_chunks(const Problem& problem, long nodes);

/// Given stages that all recompute, lets those that fit keep their activations, longest forward first; then,
/// if stages may recompute in part, the rest keep as many of their last layers as fit. O(stages * (stages +
/// layers)).
void keep_what_fits(const Problem& problem, Found& found);

/// Branch and bound over the cuts: the first partition with no device above `limit`, assigning layers from
/// the front. `nodes` is counted down; where it reaches 0 the answer is open (`complete` is false).
struct Searched {
  Ends ends;
  bool complete = true;
};
Searched search_cuts(const Problem& problem, Nanoseconds limit, long& nodes);

/// Moves cuts, one at a time and in runs, while that makes (bytes over the memory, busiest, sum of squares,
/// bytes over the cuts) smaller, compared in this order. Looks at up to `scores` partitions, each in
/// O(stages).
Ends improve_cuts(const Problem& problem, Ends ends, long scores);

/// What a device carries under these cuts, one entry per device. `recomputed`: as in Found; without it,
/// stages recompute where they may not keep.
std::vector<Load> loads_of(const Problem& problem, const Ends& ends, const std::vector<int>& recomputed);
std::vector<Load> loads_of(const Problem& problem, const Ends& ends);

/// Whether every device holds what these cuts give it.
bool all_fit(const Problem& problem, const Ends& ends);

/// No stage has a shard inside, and every one is allowed.
bool may_be_cut(const Problem& problem, const Ends& ends);

}  // namespace ostinato::chain
