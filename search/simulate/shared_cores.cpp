// SPDX-License-Identifier: Apache-2.0
#include "search/simulate/shared_cores.h"

#include <fmt/format.h>

#include <cstddef>
#include <vector>

#include "search/files/counted.h"
#include "search/placement/quantity.h"
#include "search/plan/one_batch.h"
#include "search/simulate/simulate.h"

namespace ostinato {

std::string sharing_of(const Host& host) {
  const std::size_t ranks = host.devices.size() * static_cast<std::size_t>(host.ranks);
  return fmt::format("{} share{} {}", counted(ranks, host.ranks == 1 ? "device" : "rank"),
                     ranks == 1 ? "s" : "", counted(host.cores, "core"));
}

std::string shared_cores_text(Nanoseconds predicted, const Placement& placement) {
  if (placement.hosts.empty()) return "";
  std::vector<std::string> hosts;
  for (const Host& host : placement.hosts) hosts.push_back(sharing_of(host));
  return fmt::format("{} ({})", format_time(predicted), fmt::join(hosts, ", "));
}

std::string held_up_by_cores(Nanoseconds predicted, const Plan& plan, const Placement& placement) {
  if (predicted <= plan.makespan) return "";
  const OneBatch all = as_one_batch(plan, placement);
  return fmt::format(
      "The cores hold up this plan: on shared cores a replay of it takes {}, and no order of its blocks less "
      "than {}. All else here is of the plan without that sharing.",
      shared_cores_text(predicted, placement),
      format_time(shared_work(all.placement, all.plan.micro_batches)));
}

}  // namespace ostinato
