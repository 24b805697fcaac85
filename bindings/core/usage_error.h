// SPDX-License-Identifier: Apache-2.0
#pragma once
// A request that contradicts itself, or an option out of range.

#include <stdexcept>

namespace ostinato::core {

/// The user asked wrongly (exit status 2). `what()` says how, with a suggestion where there is one; it names
/// options as the command line does (--time-limit).
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ostinato::core
