// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lowered plan: one instruction list per rank, transfers inserted.
//
//   Program program = lower(plan, placement);          // lower.h
//   for (const Instruction& i : program.ranks[rank]) ...
//
// A stage on a lane of its device stands in the list of that rank, too, where it begins: from there on it
// runs beside what follows, up to the instruction that takes what it makes.
//
// Two stages on one rank hand tensors over locally, without an instruction. A transfer stands on both of its
// ranks, and the lists are projections of one global order, so that running them in order never deadlocks,
// even when every send and every receive blocks until its partner arrives (deadlock.h shows it for each
// program).
//
// A stage may be sharded over several ranks. Then each of its computes stands on all of them, at one place of
// the global order, and is where they meet: what its shards exchange (collectives) happens inside. Tensors
// between stages are whole everywhere: every rank of a stage holds all inputs, outputs and their gradients.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "search/placement/model_facts.h"
#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// offload and load copy what a stage keeps of a micro-batch to the host and back, on a lane; at release the
/// rank waits for the first of these, because the plan counts its memory as free from there on. send_forward
/// / receive_forward carry a stage's outputs to the next one, send_backward / receive_backward the gradients
/// of its inputs back. Letters as torch.distributed.pipelining prints them: F, B (whole), I, W, SEND_F, ...;
/// O, R and L are ours.
enum class Action {
  forward,
  backward,
  backward_input,
  backward_weight,
  offload,
  release,
  load,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward,
};

/// "F", "B", "I", "W", "O", "R", "L", "SEND_F", "RECV_F", "SEND_B", "RECV_B".
const char* to_string(Action action);

constexpr bool is_send(Action a) { return a == Action::send_forward || a == Action::send_backward; }
constexpr bool is_receive(Action a) { return a == Action::receive_forward || a == Action::receive_backward; }
constexpr bool is_compute(Action a) { return !is_send(a) && !is_receive(a); }
/// What has to do with the memory of a stage, and runs none of its layers.
constexpr bool is_offloading(Action a) {
  return a == Action::offload || a == Action::release || a == Action::load;
}
constexpr bool runs_layers(Action a) { return is_compute(a) && !is_offloading(a); }
/// What takes tensors of other stages, and makes some for them.
constexpr bool passes_tensors(Action a) {
  return a == Action::forward || a == Action::backward || a == Action::backward_input;
}
/// The action of the other side of a transfer: SEND_F <-> RECV_F, SEND_B <-> RECV_B. Asserts that it is a
/// transfer.
Action opposite(Action transfer);

struct Instruction {
  Action action = Action::forward;
  int stage = 0;  ///< index into Program::stages; of a transfer: the stage on this rank
  int micro_batch = 0;
  int peer = -1;          ///< rank on the other side of a transfer; -1 for compute
  int peer_stage = -1;    ///< stage on the other side of a transfer; -1 for compute
  Nanoseconds start = 0;  ///< planned; of a transfer: from the end of its producer ...
  Nanoseconds end = 0;    ///< ... to the time it arrives

  friend bool operator==(const Instruction&, const Instruction&) = default;
};

/// "0F3", "0SEND_F3": stage, letters, micro-batch.
std::string to_string(const Instruction& instruction);

/// A stage of the placement, and what goes into it and out of it. Its devices are the pipeline ranks that run
/// it, ascending; its layers empty where the placement has no [[stages]].
struct ProgramStage : Stage {
  std::string lane = {};  ///< of each of its devices (lanes.h), beside what these compute; empty: computes
  std::vector<std::string> holds = {};  ///< more lanes of each, where nothing else runs meanwhile; ascending
  std::string offload = {};       ///< lane that copies what it keeps to the host and back; empty: it stays
  bool has_backward = false;      ///< false: it only runs forward (inference, or a frozen front)
  std::vector<int> inputs = {};   ///< stages whose outputs it takes, in order
  std::vector<int> outputs = {};  ///< stages that take its outputs, ascending
  Bytes output_bytes = 0;         ///< the most that one of them takes of a micro-batch; 0: not known

  bool on(int rank) const { return std::binary_search(devices.begin(), devices.end(), rank); }
};

struct Program {
  std::string plan_sha256;       ///< of the plan file; empty where it was lowered from memory
  std::string placement_sha256;  ///< as the plan names it
  std::string placement_name;
  int micro_batches = 0;
  std::vector<ProgramStage> stages;             ///< in model order
  std::vector<std::vector<Instruction>> ranks;  ///< one list per device of the placement, its lanes' in it
  Nanoseconds makespan = 0;
  Nanoseconds lower_bound = 0;  ///< proven bound of the makespan, as the plan has it; 0: none
  /// What a step is predicted to take: the makespan, or its replay where devices share processors.
  Nanoseconds predicted = 0;
  Nanoseconds whole_step = 0;  ///< with the optimizer's; 0: what that takes is not known
  /// What `predicted` is compared with: the plan's baselines, their makespans as `predicted` counts; of a
  /// plan without any, 1F1B on the same placement, whatever memory it needs, interleaved for several chunks.
  std::vector<Baseline> baselines;
  std::vector<Bytes> planned_peak;  ///< per device, static memory included
  ModelFacts model;           ///< that the placement was made for; empty where it was lowered from memory
  bool counts_hosts = false;  ///< the placement says which devices share processors
};

/// The lane that the instruction runs on; empty: its rank computes it.
const std::string& lane_of(const Program& program, const Instruction& compute);

/// All that it occupies, ascending: that lane, or the empty one, and ProgramStage::holds.
std::vector<std::string> lanes_of(const Program& program, const Instruction& compute);

/// True where every stage adds to its weights' gradients in micro-batch order 0, 1, 2, ..., and one that
/// feeds no other to its losses: then floating-point sums equal 1F1B's bit for bit, except for sums of a
/// sharded stage over its ranks. Of a split backward both halves must keep it: one that cannot be split adds
/// to its weights in the first. O(instructions).
bool keeps_order(const Program& program);

/// (source, target) of each pair of ranks between which something travels, ascending. O(instructions log
/// ranks).
std::vector<std::pair<int, int>> links(const Program& program);

}  // namespace ostinato
