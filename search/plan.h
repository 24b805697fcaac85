#pragma once
// A plan: a schedule of all blocks of `n` micro-batches, with the evidence for it (FORMATS: ostinato-plan/1).

#include <cstdint>
#include <string>
#include <vector>

#include "search/placement.h"

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

struct Plan {
  std::string placement_name;
  std::string placement_sha256;  ///< of the bytes of the placement file, lower-case hexadecimal
  int micro_batches = 0;
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
    bool period = false;
  } by_exhaustion;
  std::vector<Bytes> peak_memory;  ///< per device, static memory included
  struct {
    std::string method;
    std::uint64_t seed = 0;
    bool cut_by_limit = false;
  } search;
  std::vector<ScheduledBlock>
      schedule;  ///< sorted by start, then first device, then block name, then micro-batch
};

}  // namespace ostinato
