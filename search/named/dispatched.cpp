// SPDX-License-Identifier: Apache-2.0
// The schedules that are a rule and not a list: a free device runs what is nearest to the end of its
// micro-batch, with at most as many micro-batches in flight as there are devices.

#include <algorithm>

#include "search/named/schedules.h"
#include "search/placement/instance.h"
#include "search/schedule/dispatch.h"
#include "search/schedule/incumbent.h"

namespace ostinato {
namespace {

Orders deepest_first(const Placement& placement, int micro_batches) {
  Placement unlimited = placement;  // a named schedule does not look at the memory
  for (Device& device : unlimited.devices) device.memory = kUnlimited;
  const Instance in(unlimited);
  const DispatchRule rule{Priority::deepest, std::min(in.devices(), micro_batches)};
  return split_by_device(in, dispatch(in, micro_batches, rule));
}

}  // namespace

Orders hanayo_orders(const Chain&, const Placement& placement, int micro_batches) {
  return deepest_first(placement, micro_batches);
}

Orders one_f_one_b_plus_orders(const Placement& placement, int micro_batches) {
  return deepest_first(placement, micro_batches);
}

}  // namespace ostinato
