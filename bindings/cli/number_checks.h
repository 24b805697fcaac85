// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers on the command line. CLI11 by itself takes 010 for 8, -1 for a number without sign, and nan.
//
//   app.add_option("--runs", runs, "Replays")->transform(whole_number_check(1, 1'000'000));
//   // "--runs needs a whole number from 1 to 1000000, got "-1""

#include <CLI/CLI.hpp>
#include <cstdint>

#include "bindings/core/numbers.h"

namespace ostinato::cli {

using core::kMostMicroBatches;

/// For CLI::Option::transform().
CLI::Validator whole_number_check(std::int64_t low, std::int64_t high);
CLI::Validator decimal_check(std::int64_t low, std::int64_t high);

}  // namespace ostinato::cli
