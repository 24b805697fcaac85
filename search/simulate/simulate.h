// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replaying a plan's per-device orders with times other than the planned ones, and telling what binds it.
//
//   SimulateOptions options{.jitter_ppm = 100'000, .runs = 200};           // every time within +-10 %
//   Simulation s = simulate(placement, plan.micro_batches, plan.schedule, options);
//   s.makespans                                                           // sorted: median, worst
//
// What is kept is what the executor keeps: the order on each device. A block starts when its device is free
// and its inputs have arrived, and takes longer while other devices compute on its processor (placement.h,
// Host). The same seed gives the same makespans on every machine.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "search/numbers/nearest_rank.h"
#include "search/placement/placement.h"
#include "search/plan/orders.h"
#include "search/plan/plan.h"

namespace ostinato {

struct SimulateOptions {
  std::int64_t jitter_ppm = 0;  ///< each block's time varies by up to this share of it, in millionths
  /// And all blocks of a micro-batch alike by up to this, as of longer sequences.
  std::int64_t unequal_ppm = 0;
  std::int64_t transfer_ppm = 1'000'000;  ///< transfers take this many millionths of their time
  std::uint64_t seed = 0;
  int runs = 1;
  const std::atomic<bool>* stop = nullptr;  ///< set it, and the runs until then are returned, at least one
};

struct Simulation {
  Nanoseconds planned = 0;             ///< the plan's own makespan
  std::vector<Nanoseconds> makespans;  ///< of each run, sorted

  Nanoseconds median() const { return at(50); }
  /// The least makespan that at least `percent` of the runs do not exceed, 0 to 100.
  Nanoseconds at(int percent) const { return makespans[nearest_rank(makespans.size(), percent)]; }
  Nanoseconds worst() const { return makespans.back(); }
};

/// Throws InputError where the schedule's orders contradict its dependencies (then it is no valid schedule),
/// or the factors make times that int64 cannot hold.
/// O(runs * (steps + dependencies)).
Simulation simulate(const Placement& placement, int micro_batches,
                    const std::vector<ScheduledBlock>& schedule, const SimulateOptions& options);

/// The same for a plan; its micro-batches may differ in size.
Simulation simulate(const Plan& plan, const Placement& placement, const SimulateOptions& options);

/// The time of each step in replay `run`, by micro_batch * blocks + block. O(steps).
std::vector<Nanoseconds> varied_times(const Placement& placement, int micro_batches,
                                      const SimulateOptions& options, int run);

/// The makespan of the schedule's orders with the placement's times: the planned one, but for what sharing
/// processors costs. Throws as simulate().
Nanoseconds replayed_makespan(const Placement& placement, int micro_batches,
                              const std::vector<ScheduledBlock>& schedule);

/// A step with the optimizer's, which begins on a device when its last block has ended and takes `times`, by
/// device; empty: replayed_makespan(). On shared processors it begins on all of them when the last block has
/// ended.
Nanoseconds whole_step(const Placement& placement, int micro_batches,
                       const std::vector<ScheduledBlock>& schedule, const std::vector<Nanoseconds>& times);

/// The same two for a plan; its micro-batches may differ in size.
Nanoseconds predicted_makespan(const Plan& plan, const Placement& placement);
Nanoseconds whole_step(const Plan& plan, const Placement& placement, const std::vector<Nanoseconds>& times);

/// A lower bound for any orders: the work on the busiest of the shared processors.
Nanoseconds shared_work(const Placement& placement, int micro_batches);

/// Why a step of the critical chain does not start earlier.
enum class Binding {
  begin,       ///< the chain begins here
  device,      ///< its device ran another step until then
  memory,      ///< as device, but only because the memory that this step needs was not free before
  dependency,  ///< its input was computed until then
  transfer,    ///< its input was on its way until then
  none,        ///< nothing: the plan starts it later than it could
};

struct CriticalStep {
  ScheduledBlock step;
  Binding binding = Binding::begin;
  int device = -1;  ///< that runs both, where the binding is device or memory; else the block's first
  /// Time between the previous step of the chain and this one that a transfer took.
  Nanoseconds transfer = 0;
  Nanoseconds idle = 0;  ///< time between them that nothing took
  Bytes missing = 0;     ///< of memory: what the device lacked while the previous step of the chain ran
};

/// A chain of steps, each of which holds up the next one, from the first start to the makespan.
/// O(steps log steps + dependencies).
std::vector<CriticalStep> critical_chain(const Placement& placement, int micro_batches,
                                         const std::vector<ScheduledBlock>& schedule);

/// The chain in words, a sentence a line: from which step to which, how much of it is work, transfers and
/// idle time; what binds it: the work of one device, the way through the pipeline, the memory of a device
/// (which micro-batch waits for which to give back), a link.
std::vector<std::string> explain(const Placement& placement, const std::vector<CriticalStep>& chain);

}  // namespace ostinato
