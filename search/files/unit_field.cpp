// SPDX-License-Identifier: Apache-2.0
#include "search/files/unit_field.h"

namespace ostinato {

std::int64_t unit_field(const Fields& fields, std::string_view key, std::span<const Unit> units,
                        std::string_view absent) {
  const std::string name = fields.text_or(key, std::string(absent));
  if (name.empty() && !fields.sound()) return 1;  // it is no text, which was said
  for (const Unit& unit : units) {
    if (unit.name == name) return unit.factor;
  }
  std::string known;
  for (const Unit& unit : units) known += (known.empty() ? "" : ", ") + std::string(unit.name);
  fields.fail(fields.find(key), in_quotes(key) + " is " + in_quotes(name) + "; it should be one of " + known);
}

}  // namespace ostinato
