// SPDX-License-Identifier: Apache-2.0
#pragma once
// The schedules that have names, as constructors: GPipe, 1F1B, interleaved 1F1B, ZB-H1, ...
//
//   NamedSchedule s = named_schedule("1f1b", placement, 8);
//   if (s.orders) ... else say(s.why_not);

#include <optional>
#include <string>
#include <vector>

#include "search/named/chain.h"
#include "search/plan/orders.h"

namespace ostinato {

struct NamedSchedule {
  std::optional<Orders> orders;  ///< absent where the placement does not admit this schedule
  std::string why_not;           ///< then: the reason, in words
};

/// Every name, in the order in which they are listed to a user: "gpipe", "1f1b", "interleaved-1f1b", "zb-h1",
/// ...
const std::vector<std::string>& named_schedules();

/// The chains of stages that a placement is made of, found once for all schedules. O(blocks log blocks).
struct Chains {
  explicit Chains(const Placement& placement) : one(find_chain(placement)), two(find_two_way(placement)) {}
  ChainOrNot one;
  TwoWayOrNot two;
};

/// The orders of that schedule for `micro_batches` micro-batches. Asserts that the name is known.
/// It does not look at the memory limit: peak_memory() tells what the schedule needs.
NamedSchedule named_schedule(const std::string& name, const Placement& placement, int micro_batches,
                             const Chains& chains);
NamedSchedule named_schedule(const std::string& name, const Placement& placement, int micro_batches);

}  // namespace ostinato
