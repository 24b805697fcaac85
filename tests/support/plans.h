// SPDX-License-Identifier: Apache-2.0
#pragma once
// Placements and plans for tests of what comes after the search: chains and graphs of stages, scheduled
// greedily.

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato::testing {

struct GraphOptions {
  std::vector<int> device_of;              ///< per stage
  std::vector<std::pair<int, int>> edges;  ///< (from, to), from < to
  bool split = false;                      ///< backward in two halves
  bool training = true;
  Nanoseconds latency = 0;                      ///< of every link
  std::map<int, std::vector<int>> shards = {};  ///< stage -> its devices, where it is sharded over several
};

/// Forwards of 10 + stage ns, backwards of twice that. Block "s.F" of stage "s", and so on.
Placement graph(const GraphOptions& options);

/// Stage s feeds stage s + 1.
Placement chain(std::vector<int> device_of, bool split = false);

/// The same with these stages on a lane "network" of their device.
Placement on_lanes(Placement placement, const std::vector<int>& stages);

/// List scheduling: whenever a device is free, it starts the ready step of the lowest priority value. `admit`
/// may hold a step back for now (for a bound on what is in flight); it must not hold back everything for
/// ever.
using Priority = std::function<double(int block, int micro_batch)>;
using Admit = std::function<bool(int block, int forwards_done, int backwards_done)>;
Plan list_schedule(const Placement& placement, int micro_batches, const Priority& priority,
                   const Admit& admit = nullptr);

/// Backwards first, lower micro-batches first; with `in_flight` > 0 no more than max(1, in_flight - stage)
/// micro-batches of a stage are between forward and backward (1F1B for a chain on as many devices as
/// `in_flight`).
Plan backward_first(const Placement& placement, int micro_batches, int in_flight = 0);

}  // namespace ostinato::testing
