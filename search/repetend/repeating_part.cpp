// SPDX-License-Identifier: Apache-2.0
#include "search/repetend/repeating_part.h"

#include <fmt/format.h>

#include "search/bounds/feasible.h"
#include "search/files/error.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

constexpr Bytes kMostPlanned = (Bytes{1} << 62) - 1;

void refuse_what_piles_up(const Instance& in) {
  for (int d = 0; d < in.devices(); ++d) {
    const __int128 left = left_behind(in, d);
    if (!in.limited(d) || left <= 0) continue;
    throw InfeasibleError(
        fmt::format("device {} ({}): each micro-batch keeps {} to the end, so no schedule can repeat "
                    "for ever within {}",
                    d, in.placement().devices[d].name, format_memory(static_cast<Bytes>(left)),
                    format_memory(in.room(d))));
  }
}

}  // namespace

RepeatingPart repeating_part(const Placement& placement, const RepetendOptions& options) {
  const Instance in(placement);
  const Bounds bounds(in);
  fitting_order(in, bounds, 1);
  refuse_what_piles_up(in);
  RepeatingPart part;
  for (int d = 0; d < in.devices(); ++d) {
    part.left_behind.push_back(static_cast<Bytes>(left_behind(in, d)));
    part.steady = part.steady && part.left_behind.back() == 0;
  }
  std::vector<Repetend> found = repetends_of_growing_rate(in, bounds, kMostUnroll, options);
  if (found.empty()) return part;
  for (Repetend& swept : swept_repetends(in, bounds, found, options)) found.push_back(std::move(swept));
  part.bound = bounds.period(found.back().unroll);
  part.repetend = part.steady ? with_least_memory(in, found.back(), options) : found.back();
  if (!part.steady) return part;
  part.held = held_by(in, part.repetend);
  for (int d = 0; d < in.devices(); ++d) {
    part.held[d] += placement.devices[d].static_memory;
    if (part.held[d] <= kMostPlanned) continue;
    throw InputError("", 0,
                     "the repeating part holds 2^62 bytes of memory, more than can be planned; check "
                     "'memory_unit' and the largest values");
  }
  return part;
}

}  // namespace ostinato
