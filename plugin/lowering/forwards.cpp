// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/forwards.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "plugin/lowering/deadlock.h"
#include "search/files/counted.h"

namespace ostinato {
namespace {

constexpr int kLeftOut = -1;

/// By stage of the whole program: its number in the part, or kLeftOut.
std::vector<int> numbers_of(const Program& program, const std::vector<int>& stages) {
  std::vector<int> numbers(program.stages.size(), kLeftOut);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const int stage = stages[i];
    if (stage < 0 || stage >= static_cast<int>(program.stages.size()) || (i > 0 && stage <= stages[i - 1]))
      throw std::invalid_argument("forwards(): stages must be ascending numbers of the program's stages");
    numbers[stage] = static_cast<int>(i);
  }
  return numbers;
}

ProgramStage forward_stage(ProgramStage stage, const std::vector<int>& numbers) {
  stage.has_backward = stage.recompute = false;
  stage.offload.clear();
  for (int& input : stage.inputs) {
    input = numbers[input];
    if (input == kLeftOut)
      throw std::invalid_argument("forwards(): stage '" + stage.name + "' is left without one that feeds it");
  }
  std::erase_if(stage.outputs, [&](int output) { return numbers[output] == kLeftOut; });
  for (int& output : stage.outputs) output = numbers[output];
  return stage;
}

bool is_forward(Action action) {
  return action == Action::forward || action == Action::send_forward || action == Action::receive_forward;
}

}  // namespace

Program forwards(const Program& program, int micro_batches, const std::vector<int>& stages) {
  if (micro_batches < 1 || micro_batches > program.micro_batches)
    throw std::invalid_argument("forwards(): the program has " +
                                counted(program.micro_batches, "micro-batch") + ", not " +
                                std::to_string(micro_batches));
  const std::vector<int> numbers = numbers_of(program, stages);
  Program part = program;
  part.micro_batches = micro_batches;
  part.makespan = part.predicted = part.whole_step = part.lower_bound = 0;
  part.baselines.clear();
  part.planned_peak.clear();
  part.stages.clear();
  for (const int stage : stages) part.stages.push_back(forward_stage(program.stages[stage], numbers));
  for (auto& instructions : part.ranks) {
    std::erase_if(instructions, [&](const Instruction& i) {
      const bool left_out =
          numbers[i.stage] == kLeftOut || (i.peer_stage >= 0 && numbers[i.peer_stage] == kLeftOut);
      return left_out || !is_forward(i.action) || i.micro_batch >= micro_batches;
    });
    for (Instruction& i : instructions) {
      i.stage = numbers[i.stage];
      if (i.peer_stage >= 0) i.peer_stage = numbers[i.peer_stage];
      part.makespan = part.predicted = std::max(part.makespan, i.end);
    }
  }
  const DeadlockProof proof = prove_deadlock_free(part);
  if (!proof.ok()) throw std::invalid_argument("forwards(): " + proof.failure);
  return part;
}

}  // namespace ostinato
