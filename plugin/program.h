#pragma once
// A lowered plan: one instruction list per rank, transfers inserted.

#include <string>
#include <vector>

#include "search/placement.h"

namespace ostinato {

/// send_forward / receive_forward carry a stage's outputs to the next one, send_backward / receive_backward the
/// gradients of its inputs back. Letters as torch.distributed.pipelining prints them: F, B (whole), I, W, SEND_F, ...
enum class Action {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward,
};

const char* to_string(Action action);  ///< "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"

struct Instruction {
  Action action = Action::forward;
  int stage = 0;        ///< index into Program::stages; of a transfer: the stage on this rank
  int micro_batch = 0;
  int peer = -1;        ///< rank on the other side of a transfer; -1 for compute
  int peer_stage = -1;  ///< stage on the other side of a transfer; -1 for compute
  Nanoseconds start = 0;  ///< planned; of a transfer: from the end of its producer ...
  Nanoseconds end = 0;    ///< ... to the time it arrives

  friend bool operator==(const Instruction&, const Instruction&) = default;
};

struct ProgramStage {
  std::string name;      ///< Block::stage
  int rank = 0;          ///< the pipeline rank (device index of the placement) that runs it
  int first_layer = 0;   ///< from the placement's [[stages]]; 0, 0 where it has none
  int end_layer = 0;
  std::vector<int> inputs;   ///< stages whose outputs it takes, in order
  std::vector<int> outputs;  ///< stages that take its outputs
};

struct Program {
  std::string plan_sha256;  ///< of the plan file
  int micro_batches = 0;
  std::vector<ProgramStage> stages;             ///< in model order
  std::vector<std::vector<Instruction>> ranks;  ///< one list per device of the placement
  Nanoseconds makespan = 0;
};

}  // namespace ostinato
