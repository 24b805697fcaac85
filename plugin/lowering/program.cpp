// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/program.h"

#include <array>
#include <cassert>
#include <map>
#include <set>

namespace ostinato {

const char* to_string(Action action) {
  static constexpr std::array kLetters{"F", "B",      "I",      "W",      "O",     "R",
                                       "L", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
  return kLetters[static_cast<std::size_t>(action)];
}

Action opposite(Action transfer) {
  switch (transfer) {
    case Action::send_forward:
      return Action::receive_forward;
    case Action::receive_forward:
      return Action::send_forward;
    case Action::send_backward:
      return Action::receive_backward;
    case Action::receive_backward:
      return Action::send_backward;
    default:
      assert(!"a compute has no opposite");
      return transfer;
  }
}

std::string to_string(const Instruction& instruction) {
  return std::to_string(instruction.stage) + to_string(instruction.action) +
         std::to_string(instruction.micro_batch);
}

const std::string& lane_of(const Program& program, const Instruction& compute) {
  static const std::string none;
  const ProgramStage& stage = program.stages[compute.stage];
  if (compute.action == Action::release) return none;
  return is_offloading(compute.action) ? stage.offload : stage.lane;
}

std::vector<std::string> lanes_of(const Program& program, const Instruction& compute) {
  std::vector<std::string> lanes = {lane_of(program, compute)};
  if (is_offloading(compute.action)) return lanes;
  const std::vector<std::string>& more = program.stages[compute.stage].holds;
  lanes.insert(lanes.end(), more.begin(), more.end());
  return lanes;
}

bool keeps_order(const Program& program) {
  for (const auto& instructions : program.ranks) {
    // Micro-batch of the next one of its kind.
    std::vector<std::map<Action, int>> next(program.stages.size());
    for (const Instruction& i : instructions) {
      const bool adds = i.action != Action::forward || program.stages[i.stage].outputs.empty();
      if (runs_layers(i.action) && adds && i.micro_batch != next[i.stage][i.action]++) return false;
    }
  }
  return true;
}

std::vector<std::pair<int, int>> links(const Program& program) {
  std::set<std::pair<int, int>> found;
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    for (const Instruction& i : program.ranks[rank]) {
      if (is_send(i.action)) found.emplace(rank, i.peer);
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace ostinato
