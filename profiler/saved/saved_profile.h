// SPDX-License-Identifier: Apache-2.0
#pragma once
// The profile of a saved program, measured on the CPU without Python.
//
// Times, memory, operators, FLOPs and edges are those of docs/profiler.md. What cannot be measured here is
// asked for: the loss (LoadOptions), the link between devices, and the optimizer's numbers.

#include <functional>
#include <optional>
#include <string>

#include "profiler/saved/program.h"
#include "search/profile/profile.h"

namespace ostinato {

struct SavedProfileOptions {
  std::string name = "model";
  std::string kind = "cpu";
  int warm_up = 3;
  int repeats = 20;
  int micro_batch_size = 1;
  int optimizer_numbers = 2;  ///< fp32 numbers that the optimizer keeps for each parameter: 2 for Adam
  std::optional<Link> link;   ///< between any two devices; empty: the profile has no transfers
};

/// (steps measured, steps in all)
using StepProgress = std::function<void(int, int)>;

/// Throws InputError where a step raises.
Profile profile_program(const SavedProgram& program, const SavedProfileOptions& options,
                        const StepProgress& progress);

}  // namespace ostinato
