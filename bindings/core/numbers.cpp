// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/numbers.h"

#include <fmt/format.h>

#include <cctype>
#include <limits>
#include <string_view>

#include "search/placement/quantity.h"

namespace ostinato::core {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

std::string range_text(const char* what, std::int64_t low, std::int64_t high) {
  if (high < std::numeric_limits<std::int64_t>::max())
    return fmt::format("{} from {} to {}", what, low, high);
  return low == 0 ? fmt::format("{} of at least 0", what) : fmt::format("{} of at least {}", what, low);
}

/// Of "1e3" what is behind the 1.
bool is_exponent(std::string_view rest) {
  rest.remove_prefix(rest.starts_with('e') || rest.starts_with('E') ? 1 : rest.size());
  rest.remove_prefix(rest.starts_with('+') || rest.starts_with('-') ? 1 : 0);
  return !rest.empty() && rest.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Digits of a number that no integer holds.
bool is_too_large(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && !parse_scaled(text, 1);
}

}  // namespace

bool rounds_to_zero(const std::string& text, std::int64_t scale) {
  const auto value = parse_scaled(text, scale);
  return value && *value == 0 && text.find_first_of("123456789") != std::string::npos;
}

std::string whole_number_text(std::int64_t low, std::int64_t high) {
  return range_text("a whole number", low, high);
}

std::string decimal_text(std::int64_t low, std::int64_t high) {
  return range_text("a decimal number", low, high);
}

std::string needs_text(const std::string& wanted, const std::string& given) {
  const auto end = given.find_first_not_of("0123456789.");
  const bool has_unit = end != std::string::npos && end > 0 && std::isalpha(given[end]);
  return fmt::format("needs {}, got \"{}\"{}", wanted, given,
                     has_unit && is_exponent(std::string_view(given).substr(end))
                         ? ": write it without an exponent"
                     : has_unit                        ? ": give the number without a unit (see --help)"
                     : rounds_to_zero(given, kMillion) ? ": the least above 0 is 0.000001"
                     : is_too_large(given)             ? ": the largest is 9223372036854775807"
                                                       : "");
}

bool is_whole_number(const std::string& text, std::int64_t low, std::int64_t high) {
  if (text.find('.') != std::string::npos) return false;
  const auto value = parse_scaled(text, 1);
  return value && *value >= low && *value <= high;
}

bool is_decimal(const std::string& text, std::int64_t low, std::int64_t high) {
  const auto millionths = parse_scaled(text, kMillion);
  return millionths && !rounds_to_zero(text, kMillion) && *millionths / kMillion >= low &&
         (*millionths / kMillion < high || (*millionths / kMillion == high && *millionths % kMillion == 0));
}

}  // namespace ostinato::core
