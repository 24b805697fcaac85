// SPDX-License-Identifier: Apache-2.0
#include "search/named/named.h"
#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

void try_named(Hunt& hunt) {
  const Chains chains(hunt.in.placement());
  for (const std::string& name : named_schedules()) {
    if (hunt.stopped() && !hunt.best.empty()) return;
    const NamedSchedule schedule = named_schedule(name, hunt.in.placement(), hunt.micro_batches, chains);
    if (schedule.orders) hunt.best.offer(*schedule.orders, name);
  }
}

}  // namespace

const Technique techniques::kNamed = {"named schedules", try_named};

}  // namespace ostinato
