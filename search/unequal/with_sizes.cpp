// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/with_sizes.h"

#include <fmt/format.h>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/placement/quantity.h"
#include "search/plan/one_batch.h"
#include "search/plan/orders.h"

namespace ostinato {
namespace {

/// The earliest starts under `orders` of the one micro-batch that unrolled() makes.
std::vector<ScheduledBlock> started(const Orders& orders, const Placement& placement,
                                    const std::vector<MicroBatch>& sizes) {
  const int blocks = static_cast<int>(placement.blocks.size());
  // The same dependencies: no cycle.
  std::vector<ScheduledBlock> all = *earliest_starts(unrolled(placement, sizes), 1, orders);
  for (ScheduledBlock& step : all) {
    step.micro_batch = step.block / blocks;
    step.block %= blocks;
  }
  sort_schedule(placement, all);
  return all;
}

/// A plan with sizes may start blocks that take no time together with other blocks: only its times tell which
/// is first.
std::vector<ScheduledBlock> with_sizes_of(const Plan& plan, const Placement& placement,
                                          const std::vector<MicroBatch>& sizes) {
  if (plan.sizes.empty()) return with_sizes(plan.schedule, placement, sizes);
  const OneBatch own = as_one_batch(plan, placement);
  return started(orders_of(own.placement, own.plan.schedule), placement, sizes);
}

}  // namespace

std::vector<ScheduledBlock> with_sizes(const std::vector<ScheduledBlock>& schedule,
                                       const Placement& placement, const std::vector<MicroBatch>& sizes) {
  const int blocks = static_cast<int>(placement.blocks.size());
  Orders orders = orders_of(placement, schedule);
  for (std::vector<Step>& order : orders)
    for (Step& step : order) step = {step.micro_batch * blocks + step.block, 0};
  return started(orders, placement, sizes);
}

Plan with_sizes(const Plan& plan, const Placement& placement, const std::vector<MicroBatch>& sizes) {
  if (static_cast<int>(sizes.size()) != plan.micro_batches)
    throw InputError("", 0,
                     fmt::format("the plan has {}, but there are sizes for {}",
                                 counted(plan.micro_batches, "micro-batch"), sizes.size()));
  check_sizes(placement, sizes);
  Plan other;
  other.placement_name = plan.placement_name;
  other.placement_sha256 = plan.placement_sha256;
  other.micro_batches = plan.micro_batches;
  other.sizes = sizes;
  other.schedule = with_sizes_of(plan, placement, sizes);
  const OneBatch all = as_one_batch(other, placement);
  other.makespan = makespan_of(all.placement, all.plan.schedule);
  other.span = span_of(all.placement, all.plan.schedule);
  other.peak_memory = peak_memory(all.placement, all.plan.schedule);
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    const Device& device = placement.devices[d];
    if (other.peak_memory[d] <= device.memory) continue;
    throw InputError(
        "", 0,
        fmt::format("with these sizes the plan's order needs {} on {}, which has {}; ostinato search --sizes "
                    "looks for an order that fits",
                    format_memory(other.peak_memory[d]), device.name, format_memory(device.memory)));
  }
  return other;
}

}  // namespace ostinato
