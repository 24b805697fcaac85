// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "search/named/named.h"
#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

bool is_named(const std::string& method) {
  const std::vector<std::string>& names = named_schedules();
  return std::find(names.begin(), names.end(), method) != names.end();
}

/// 1F1B, and whatever the clock says more of them until the best is one of them: one micro-batch after
/// another, which is known before, may take as many times as long as there are devices.
void try_named(Hunt& hunt) {
  const Chains chains(hunt.in.placement());
  bool any = false;
  hunt.untried.clear();
  for (const std::string& name : named_schedules()) {
    if (any && name != "1f1b" && hunt.stopped()) {
      hunt.untried.push_back(name);
      continue;
    }
    const NamedSchedule schedule = named_schedule(name, hunt.in.placement(), hunt.micro_batches, chains);
    if (schedule.orders) hunt.best.offer(*schedule.orders, name);
    any = any || is_named(hunt.best.method());
  }
}

}  // namespace

const Technique techniques::kNamed = {"named schedules", try_named};

}  // namespace ostinato
