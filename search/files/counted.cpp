// SPDX-License-Identifier: Apache-2.0
#include "search/files/counted.h"

#include <fmt/format.h>

namespace ostinato {

std::string counted(std::int64_t count, std::string_view of) {
  if (count == 1) return fmt::format("1 {}", of);
  if (of.ends_with('y')) return fmt::format("{} {}ies", count, of.substr(0, of.size() - 1));
  return fmt::format("{} {}{}", count, of, of.ends_with("ch") || of.ends_with('s') ? "es" : "s");
}

}  // namespace ostinato
