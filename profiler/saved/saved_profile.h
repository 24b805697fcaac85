#pragma once
// The profile of a saved program, measured on the CPU without Python.
//
// Times, memory, operators, FLOPs and edges are those of docs/profiler.md. Left out: the halves of a split
// backward (repeats 0), the loss, transfers, and what a DeepSpeed configuration would say of precision.

#include <functional>
#include <string>

#include "profiler/saved/program.h"
#include "search/partition/profile.h"

namespace ostinato {

struct SavedProfileOptions {
  std::string name = "model";
  std::string kind = "cpu";
  int warm_up = 3;
  int repeats = 20;
  int micro_batch_size = 1;
  int optimizer_numbers = 2;  ///< fp32 numbers that the optimizer keeps for each parameter: 2 for Adam
};

/// (steps measured, steps in all)
using StepProgress = std::function<void(int, int)>;

/// Throws InputError where a step raises.
Profile profile_program(const Program& program, const SavedProfileOptions& options,
                        const StepProgress& progress);

}  // namespace ostinato
