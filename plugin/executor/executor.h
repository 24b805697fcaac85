// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs one rank's list of a program: one training step per run().
//
//   Executor executor(program, rank, channel, {.timeout = 300s});
//   executor.set_stage(s, module);             // for every stage of this rank
//   executor.run();                            // all forwards, backwards and transfers of a step
//
// Sends are issued when their tensor is there; receives are posted one compute ahead of need, in the list's
// order and as far as the channel lets them (Posting), and waited for by the compute that uses them. On an
// accelerator all of it is issued without waiting, transfers beside the stream that computes (side_stream.h);
// but a compute is issued only when the last but one before it has ended: the memory of what was sent comes
// back to the allocator when the host has seen the send's end (NCCL's recordStream), so a host that runs
// ahead would need more of it, and would see a time-out late. A stage that is sharded over several ranks
// meets inside its modules (collectives). A stage on a lane of its device begins at its place in the list,
// and runs beside what follows (lane_queue.h) until that takes what it makes; it waits for messages before it
// begins. The proof has shown that all its ranks come to it in one order. Order of what follows from that:
// the list passed prove_deadlock_free() in a model where everything blocks, and posting earlier or waiting
// later only lets more happen.
//
// run() must be called on one thread, the caller's: its grad mode, autocast and streams hold. Without the
// GIL.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/executor/channel.h"
#include "plugin/executor/handed_on.h"
#include "plugin/executor/lane_queue.h"
#include "plugin/executor/stage_module.h"
#include "plugin/executor/stage_run.h"
#include "plugin/executor/trace.h"
#include "plugin/executor/traffic.h"
#include "plugin/lowering/program.h"

namespace ostinato {

struct ExecutorOptions {
  /// Longest wait for one transfer, and for the device.
  std::chrono::nanoseconds timeout = std::chrono::seconds(300);
  /// Outputs may change their shapes at any time (traffic.h says what it costs).
  bool dynamic_shapes = false;
  bool programs_change = false;  ///< set_program() will be called
  /// For the peers' executors to be made.
  std::chrono::nanoseconds setup_timeout = std::chrono::seconds(300);
};

/// Where a rank is, in words: "rank 0 is in step 7 at instruction 3 of 8 (2F0)".
struct Position {
  std::string where;
  std::string waits_for = {};  ///< "3RECV_F4 (2SEND_F4 of rank 1)"; "": nothing
  std::int64_t ms = 0;         ///< for how long
};
std::string to_string(const Position& at);

class Executor {
 public:
  /// Copies the program. `channel` must outlive the executor, and is opened for it: that may wait until the
  /// peers make theirs. Throws ExecutionError, before anything runs, for a program that fails
  /// prove_deadlock_free() or a rank that it does not have; TimeoutError where a peer does not come.
  Executor(Program program, int rank, Channel& channel, ExecutorOptions options = {});
  ~Executor();

  /// `module` must outlive the executor. Throws ExecutionError where the stage is not on this rank.
  void set_stage(int stage, StageModule& module);

  /// Between two steps: switches to a program with the same stages and as many micro-batches in another
  /// order. All ranks must be given it between the same two steps. If it fails prove_deadlock_free() or has
  /// other stages or transfers, throws ExecutionError and keeps the current program. Asserts programs_change.
  /// O(instructions).
  void set_program(Program program);

  /// One step. `name`: what position() calls it, "step 7"; "": the executor counts its runs. Throws what a
  /// module throws; TimeoutError and ExecutionError as their names say. After a failure the transfers are out
  /// of step with the peers: every later call throws ExecutionError with the first reason.
  void run(const std::string& name = "");

  /// Ends what still runs on lanes, where a step has failed.
  void close() {
    abandon("the step has failed");
    lanes_.clear();
  }

  /// From another thread: a peer has failed, and the step cannot end. run() throws ExecutionError with `why`
  /// where it waits for a message that is not here.
  void abandon(const std::string& why) { traffic_.abandon(why); }

  /// Of the last step.
  const std::vector<Record>& records() const { return trace_.records(); }

  /// Most bytes that the executor's own buffers and unfinished sends ever held.
  std::int64_t peak_bytes() const { return meter_.peak(); }

  /// Stages whose split backward had to run whole, ascending (split_backward.h says when that is).
  std::vector<int> unsplit_stages() const;

  /// Where the rank is. Safe to call from another thread while run() is at work.
  Position position() const;

  const Program& program() const { return program_; }
  int rank() const { return rank_; }

 private:
  void step();
  void execute(int index);
  void expect_ended(int late);
  void compute(int index);
  void send(int index);
  void waiting(int index);
  Message take_here(const Instruction& i, int other);
  std::string with_whom(const Instruction& i) const;

  /// A message that a compute on a lane waits for by itself.
  struct Arriving {
    int receive = 0;
    std::size_t place = 0;  ///< among the messages
    Traffic::Inbound message;
    Moment asked{}, there{};
  };

  struct Span {
    Moment start{}, end{};
  };

  /// A compute, from its begin to when what it has made is taken.
  struct Compute {
    int index = 0;
    std::vector<Message> messages = {};  ///< until it takes them
    std::vector<Arriving> arriving = {};
    Moment start{}, end{};
    std::vector<std::vector<at::Tensor>> made = {};  ///< of a backward: for each stage that takes of it
    HandedOn handed = {};                            ///< of a forward, as it left them
    LaneQueue::Ended ended = {};                     ///< of one on a lane
    std::map<int, Span> sent = {};                   ///< by the lane's thread, by instruction
  };
  struct Beside;
  void run_stage(Compute& compute);
  void send_from_lane(Compute& compute);
  bool begin_beside(int index, bool at_its_place);
  void begin_ahead(int index);
  const Compute* last_on(const Beside& beside, const std::vector<std::string>& lanes) const;
  void end_what_occupies(const Instruction& i);
  void end_copy(const Instruction& i, Action copy);
  bool may_begin(const Instruction& i, int index);
  void take(Compute& compute);
  void received(int receive, const Instruction& by, const Moment& asked, const Moment& there);
  const std::vector<int>& feeding(const Instruction& i) const;
  void hand_on(const Compute& compute, bool pending);
  void end(Compute& compute);
  void end_until(int last, Beside& beside);

  /// Tensors between the compute that made them and the sends and computes on this rank that take them.
  struct Kept {
    std::vector<at::Tensor> tensors = {};
    int takers = 0;    ///< that have not come yet; more than one where several ranks are served
    Moment made{};     ///< the end of the compute
    int pending = -1;  ///< the compute, where it is still beside the list
    HandedOn handed = {};
  };
  using Handed = std::tuple<int, int, int>;  ///< from stage, to stage, micro-batch
  using HandOver = std::map<Handed, Kept>;
  HandOver& handed(Action action) { return action == Action::forward ? activations_ : gradients_; }
  static void keep(HandOver& here, const Handed& key, const Kept& kept);
  Kept hand_over(HandOver& here, const Handed& key);

  Program program_;
  int rank_;
  at::Device device_;
  std::vector<std::string> ranges_;  ///< NVTX range of each instruction: "<stage> <kind> <micro-batch>"
  Meter meter_;
  Traffic traffic_;
  Trace trace_;
  std::chrono::nanoseconds timeout_;
  bool programs_change_;
  std::map<int, std::unique_ptr<StageRun>> stages_;
  struct Beside {
    explicit Beside(at::Device device) : queue(device) {}
    std::deque<std::unique_ptr<Compute>> computes;  ///< begun and not ended, in turn
    LaneQueue queue;                                ///< last: at work with these
  };
  std::map<std::string, Beside> lanes_;  ///< by name
  std::vector<char> begun_;              ///< per instruction: on a lane, ahead of its place
  std::map<int, Span> sent_;             ///< sends that lanes have issued, by instruction
  HandOver activations_;
  HandOver gradients_;
  std::string failed_;          ///< why the executor cannot be used any more
  std::string name_;            ///< of the last step; "": its number
  mutable std::mutex changes_;  ///< of program and name, while another thread asks for the position
  std::atomic<int> at_{-1};
  std::atomic<int> waits_for_{-1};
  std::atomic<std::int64_t> waits_since_{0};
  std::atomic<int> steps_{0};
};

}  // namespace ostinato
