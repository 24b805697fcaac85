// SPDX-License-Identifier: Apache-2.0
#pragma once
// Units that a file names: `time_unit = "ms"`.

#include <span>
#include <string_view>

#include "search/files/units.h"
#include "search/files/value.h"

namespace ostinato {

/// The factor of the unit that the field names, or of `absent` where there is no such field. Throws
/// InputError with the line for any other name.
std::int64_t unit_field(const Fields& fields, std::string_view key, std::span<const Unit> units,
                        std::string_view absent);

}  // namespace ostinato
