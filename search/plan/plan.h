// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan: a schedule of all blocks of `n` micro-batches, with the evidence for it (docs/formats.md).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/sizes.h"

namespace ostinato {

/// What was minimised. makespan: the last end. span: the longest time from a device's first start to its last
/// end (where steps follow each other without a barrier it is the time of a step). latency: the longest time
/// of one micro-batch from its first start to its last end.
enum class Objective { makespan, span, latency };

const char* to_string(Objective objective);

struct ScheduledBlock {
  int block = -1;       ///< index into Placement::blocks
  int micro_batch = 0;  ///< 0 .. micro_batches - 1
  Nanoseconds start = 0;

  friend bool operator==(const ScheduledBlock&, const ScheduledBlock&) = default;
};

/// The repeating part. For every block b and every micro-batch i with first <= i < first + (count - 1) *
/// unroll: start(b, i + unroll) == start(b, i) + period. count == 0: the plan has no repeating part (period
/// is 0 then).
struct SteadyState {
  Nanoseconds period = 0;  ///< time of one repetend, which covers `unroll` micro-batches
  int unroll = 1;
  int first = 0;  ///< first micro-batch that repeats
  int count = 0;  ///< number of repetends
};

/// Optional `capacity` of a plan: what is proved of all plans that need no more memory than `memory`.
struct WithinCapacity {
  Bytes memory = 0;             ///< on each device, static memory included
  Nanoseconds lower_bound = 0;  ///< of the plan's objective
  bool by_exhaustion = false;   ///< no statement of docs/bounds.md gives it, but the trial of all schedules
};

/// Optional `any_placement` of a plan: what is proved of all placements of the profile that it was made from
/// (docs/bounds.md, section D).
struct AnyPlacement {
  int devices = 0;              ///< over which the layers are divided, whatever devices this plan uses
  std::vector<int> sharded;     ///< layers that may be divided over several devices; rising
  bool split = false;           ///< backwards may be split
  int zero_ranks = 0;           ///< that divide the optimizer's state (ZeroRanks); 0: it is not divided
  Nanoseconds lower_bound = 0;  ///< no plan of as many micro-batches has a smaller objective

  friend bool operator==(const AnyPlacement&, const AnyPlacement&) = default;
};

/// One of the optional `baselines` of a plan: what a usual schedule would take on a placement that was not
/// searched for the same model and devices. To compare with: nothing proves it.
struct Baseline {
  /// "your_run": 1F1B on DeepSpeed's own partition; "1f1b": on the best stages, one per device;
  /// "1f1b_recompute": the same, where they fit only if stages recompute; "1f1b_even_split": as many layers
  /// on each; "1f1b_same_stages": on the plan's stages.
  std::string name;
  Nanoseconds makespan = 0;
  Nanoseconds value = 0;     ///< of the plan's objective
  bool fits = false;         ///< the memory
  Nanoseconds shared = 0;    ///< its makespan where devices share processors (Host); 0: they do not
  Nanoseconds measured = 0;  ///< a whole step, the optimizer's included, as it ran; 0: not known

  friend bool operator==(const Baseline&, const Baseline&) = default;
};

/// As every output names it: "your run now", "1F1B on the best stages".
std::string in_words(const Baseline& baseline);

struct Plan {
  std::string placement_name;
  std::string placement_sha256;  ///< of the bytes of the placement file, lower-case hexadecimal
  int micro_batches = 0;
  /// Optional: the micro-batches differ, and each has its own times and memory; empty: all are as the
  /// placement says. Then capacity and any_placement are absent, and nothing repeats.
  std::vector<MicroBatch> sizes;
  Objective objective = Objective::makespan;
  Nanoseconds makespan = 0;
  Nanoseconds span = 0;
  SteadyState steady_state;
  struct {
    Nanoseconds makespan = 0;
    Nanoseconds period = 0;     ///< of one repetend of `steady_state.unroll` micro-batches
    Nanoseconds objective = 0;  ///< of the span or the latency where that was minimised; 0: none
  } lower_bound;                ///< proven bounds only
  struct {
    bool makespan = false;
    bool period = false;
    bool objective = false;  ///< the span or the latency, where that was minimised
  } optimal;                 ///< true only where lower_bound proves it
  /// Which bound no statement of docs/bounds.md gives, but the trial of all schedules (section E).
  struct {
    bool makespan = false;
    bool span = false;
  } by_exhaustion;
  std::vector<Bytes> peak_memory;  ///< per device, static memory included
  struct {
    std::string method;
    std::uint64_t seed = 0;
    bool cut_by_limit = false;  ///< more time may find a better plan; never of one that is proved optimal
    std::vector<std::string> untried = {};  ///< named schedules, because the time was up; not in the file
    /// Where it was chosen for times that vary by up to `ppm`; not in the file.
    struct Robust {
      std::int64_t ppm = 0;      ///< 0: it was not
      Nanoseconds within = 0;    ///< 95 % of its replays are not longer
      Nanoseconds shortest = 0;  ///< the same for the plan that a search takes otherwise
      std::string why_not = {};  ///< where it was asked for and cannot be; not in the file
    } robust = {};
  } search;
  std::optional<WithinCapacity> capacity;     ///< where the memory was held below the placement's
  std::optional<AnyPlacement> any_placement;  ///< where placement and schedule were chosen together
  std::vector<Baseline> baselines;            ///< where `ostinato plan` knew them
  std::vector<ScheduledBlock>
      schedule;  ///< sorted by start, then first device, then block name, then micro-batch
};

}  // namespace ostinato
