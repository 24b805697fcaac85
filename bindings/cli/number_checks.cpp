// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/number_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace ostinato::cli {
namespace {

/// CLI11 reads a leading 0 as octal.
void strip_zeros(std::string& digits) {
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
}

std::string refusal(const std::string& wanted, const std::string& text) {
  return fmt::format("needs {}, got \"{}\"", wanted, text);
}

}  // namespace

CLI::Validator whole_number_check(std::int64_t low, std::int64_t high) {
  return CLI::Validator(
      [=](std::string& text) {
        if (!core::is_whole_number(text, low, high)) return refusal(core::whole_number_text(low, high), text);
        strip_zeros(text);
        return std::string();
      },
      "");
}

CLI::Validator decimal_check(std::int64_t low, std::int64_t high) {
  return CLI::Validator(
      [=](std::string& text) {
        return core::is_decimal(text, low, high) ? std::string()
                                                 : refusal(core::decimal_text(low, high), text);
      },
      "");
}

}  // namespace ostinato::cli
