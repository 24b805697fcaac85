// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers as people type them: digits alone, within a range.

#include <cstdint>
#include <string>

namespace ostinato::core {

/// Of a step.
inline constexpr std::int64_t kMostMicroBatches = std::int64_t{1} << 29;
/// Blocks times micro-batches: 1.3 GB in a file, which has at most kMaxPlanBytes, and 3 GB of memory.
inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 24;

/// "a whole number from 1 to 5"; without an upper end where `high` is the largest int64.
std::string whole_number_text(std::int64_t low, std::int64_t high);
std::string decimal_text(std::int64_t low, std::int64_t high);

/// What to say of `given` where one of these is `wanted`: "needs a whole number from 1 to 5, got "9"".
std::string needs_text(const std::string& wanted, const std::string& given);

/// Whether a number above 0 becomes 0 where `scale` parts of 1 are kept: of a time limit, 0 means none.
bool rounds_to_zero(const std::string& text, std::int64_t scale);

/// Whether `text` is such a number. A decimal has a point and digits behind it where it wants: "0.5"; one
/// that rounds to 0 millionths is none.
bool is_whole_number(const std::string& text, std::int64_t low, std::int64_t high);
bool is_decimal(const std::string& text, std::int64_t low, std::int64_t high);

}  // namespace ostinato::core
