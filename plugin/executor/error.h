// SPDX-License-Identifier: Apache-2.0
#pragma once
// What goes wrong while a program runs.

#include <stdexcept>

namespace ostinato {

/// A step could not be run as planned. `what()` names rank, instruction and, for a transfer, the peer.
class ExecutionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A rank waited longer than the timeout. `what()` names the instruction that it waits for, the peer and its
/// partner instruction, and where the rank itself stands.
class TimeoutError : public ExecutionError {
 public:
  using ExecutionError::ExecutionError;
};

}  // namespace ostinato
