// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times and amounts of memory as people write and read them. Exact: decimal text becomes nanoseconds and
// bytes without floating point, to the nearest whole one.
//
//   parse_time("1.5ms", "us")    // 1'500'000
//   parse_memory("40", "MiB")    // 41'943'040
//   format_time(1'500'000)       // "1.5 ms"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "search/placement/placement.h"

namespace ostinato {

/// The unsigned decimal `text` ("12", "0.5") times `factor`, to the nearest whole number (halves up);
/// nullopt where it is no such number or does not fit 2^63 - 1. 0 < factor <= 2^40.
std::optional<std::int64_t> parse_scaled(std::string_view text, std::int64_t factor);

/// A number with a unit of units.h ("40GiB", and decimal "40GB"), or without one: then in `unit`. nullopt
/// where it is neither.
std::optional<Nanoseconds> parse_time(std::string_view text, std::string_view unit);
std::optional<Bytes> parse_memory(std::string_view text, std::string_view unit);

/// In the largest unit that leaves at least 1 before the point, with at most three digits after it: rounded,
/// for reading.
std::string format_time(Nanoseconds time);
std::string format_memory(Bytes bytes);  ///< "unlimited" for kUnlimited

/// Two amounts, the first larger, so that it reads as larger: in bytes where they would round to one text.
std::pair<std::string, std::string> format_apart(Bytes more, Bytes less);

}  // namespace ostinato
