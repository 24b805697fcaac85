#pragma once
// Exact chain partition: contiguous layers to stages, stages to devices, so that the busiest device is as
// little busy as possible while every device's memory holds what it must.
//
//   PartitionOptions options{.devices = 4, .chunks = 2, .layout = ChunkLayout::wave, .micro_batches = 8};
//   Placement placement = partition_chain(profile, options);
//
// A stage is a non-empty run of layers; a device runs `chunks` stages and is busy for the sum of their
// forward and backward times per micro-batch. What it must hold:
//
//   static memory (parameters + gradients + optimizer state of its stages)
//   + for each of its stages: (kept bytes of its layers + its input) * micro-batches in flight
//   + the largest workspace of its layers
//
// In flight is estimated as 1F1B has it over the chain of S = devices * chunks stages: stage s holds
// min(micro_batches, S - s, cap) micro-batches. `cap` is S where memory allows that without making the
// busiest device busier. Where it does not, the cap is the one with the smallest max(busiest, ceil(chain /
// cap)), where chain is the time of one micro-batch through all stages and back: with at most `cap`
// micro-batches in flight no schedule has a shorter period (Little's law). With cap == 1 the estimate is what
// every schedule needs, so "infeasible" is a proof.
//
// Source: the exact algorithms for the chains-on-chains partitioning problem (Pinar, Aykanat, "Fast optimal
// load balancing algorithms for 1D partitioning", JPDC 2004), with memory added.

#include <vector>

#include "search/partition/profile.h"
#include "search/placement.h"

namespace ostinato {

/// Which device runs chunk c of `devices * chunks`. looped: c mod devices. wave: there and back again (V for
/// 2 chunks).
enum class ChunkLayout { looped, wave };

struct PartitionOptions {
  int devices = 1;
  int chunks = 1;  ///< per device
  ChunkLayout layout = ChunkLayout::looped;
  Bytes device_memory = kUnlimited;
  int micro_batches = 1;          ///< of a step; bounds what is in flight
  bool split_backward = false;    ///< needs backward_input and backward_weight in the profile
  bool transfers = true;          ///< count the profile's transfer costs
  bool allow_incomplete = false;  ///< accept a profile that lost events
};

/// Where the chain is cut, and how good that is.
struct ChainCuts {
  std::vector<int> ends;        ///< stage s holds layers [ends[s - 1], ends[s]), with ends[-1] = 0
  Nanoseconds busiest = 0;      ///< time of the busiest device per micro-batch
  Nanoseconds lower_bound = 0;  ///< no partition with this many in flight is below it
  int in_flight = 0;            ///< the cap
  bool exact() const { return busiest == lower_bound; }
};

/// The cuts alone. One chunk per device: always exact, in O(devices * layers * log(time)) unless memory is
/// tight. Several chunks: local search from several starts, then branch and bound over the cuts up to a fixed
/// number of nodes; `lower_bound` tells whether that was a proof. The same input gives the same cuts. Errors
/// as partition_chain().
ChainCuts cut_chain(const Profile& profile, const PartitionOptions& options);

/// A placement with [[stages]] and one block per stage and direction: "s0.F", "s0.B" (or "s0.I", "s0.W").
/// Throws InfeasibleError where no partition fits the memory, InputError for an incomplete profile, for more
/// chunks than layers, for a split backward that was not measured, and where several chunks per device were
/// not found to fit and not shown not to.
Placement partition_chain(const Profile& profile, const PartitionOptions& options);

}  // namespace ostinato
