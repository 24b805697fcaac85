#pragma once
// Numbers on the command line: digits alone, within a range. CLI11 by itself takes 010 for 8, -1 for a number
// without sign, and nan.
//
//   app.add_option("--runs", runs, "Replays")->transform(whole_number_check(1, 1'000'000));
//   // "--runs needs a whole number from 1 to 1000000, got "-1""

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace ostinato::cli {

/// Of a step.
inline constexpr std::int64_t kMostMicroBatches = std::int64_t{1} << 29;

/// "a whole number from 1 to 5"; without an upper end where `high` is the largest int64.
std::string whole_number_text(std::int64_t low, std::int64_t high);
std::string decimal_text(std::int64_t low, std::int64_t high);

/// Whether `text` is such a number. A decimal has a point and digits behind it where it wants: "0.5".
bool is_whole_number(const std::string& text, std::int64_t low, std::int64_t high);
bool is_decimal(const std::string& text, std::int64_t low, std::int64_t high);

/// For CLI::Option::transform().
CLI::Validator whole_number_check(std::int64_t low, std::int64_t high);
CLI::Validator decimal_check(std::int64_t low, std::int64_t high);

}  // namespace ostinato::cli
