// SPDX-License-Identifier: Apache-2.0
#pragma once
// Restrictions as Python hands them over: the fields of ostinato.restrictions.Restriction. Private to
// bindings.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "search/profile/restrictions.h"

namespace ostinato {

using RestrictionRow = std::tuple<std::string, std::string, int, std::vector<int>, int>;

inline Restrictions from_rows(const std::vector<RestrictionRow>& rows) {
  Restrictions restrictions;
  for (const auto& [name, reason, chunks, layers, device] : rows) {
    const auto* rule = std::ranges::find(kRules, name, [](Rule known) { return to_string(known); });
    if (rule == kRules.end()) throw std::invalid_argument("unknown rule \"" + name + "\"");
    restrictions.push_back({*rule, reason, chunks, layers, device});
  }
  return restrictions;
}

inline std::vector<RestrictionRow> to_rows(const Restrictions& restrictions) {
  std::vector<RestrictionRow> rows;
  for (const Restriction& one : restrictions)
    rows.emplace_back(to_string(one.rule), one.reason, one.chunks, one.layers, one.device);
  return rows;
}

}  // namespace ostinato
