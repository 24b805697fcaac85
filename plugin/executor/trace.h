// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ran against what was planned, instruction by instruction, with times; cheap enough to leave on.
//
//   trace.begin();
//   const Moment start = trace.now();
//   trace.ran(i, Action::forward, stage, micro_batch, start, trace.now());   // reported by whoever did it
//   if (trace.unfinished(timeout) < 0) trace.finish();   // throws where the step was not the planned one

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "plugin/executor/moments.h"
#include "plugin/lowering/program.h"

namespace ostinato {

/// Times of one instruction, from the begin of its step. A compute: its run. A send: the call that issued it.
/// A receive: from when its consumer asked for it to when it was there, which is what the transfer really
/// cost this rank. On an accelerator all of it by the device's own time (moments.h).
struct Record {
  int instruction = 0;  ///< index into the rank's list
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

class Trace {
 public:
  Trace(const std::vector<Instruction>& planned, int rank, c10::DeviceType device = c10::DeviceType::CPU)
      : planned_(planned), rank_(rank), moments_(device) {}

  void begin();
  Moment now() { return moments_.now(); }
  const c10::Event* event(const Moment& moment) const { return moments_.event(moment); }

  /// Throws ExecutionError, with rank and instruction, where this is not instruction `index` of the plan, ran
  /// already, or is a compute or send out of turn.
  void ran(int index, Action action, int stage, int micro_batch, const Moment& start, const Moment& end);

  /// The same in two parts, of what runs beside the list: when it is its turn, and when it is over.
  void begun(int index, Action action, int stage, int micro_batch);
  void ended(int index, const Moment& start, const Moment& end);

  /// Before a compute: waits until the device has ended all computes but the last one, so that the host is
  /// never more than two ahead of it. -1, or as unfinished() says.
  int hold_back(std::chrono::nanoseconds timeout);

  /// Waits until the device has ended all that was issued. -1, or where it goes on for longer than `timeout`:
  /// the first instruction that it has not ended; the last send, where only sends are still on their way.
  int unfinished(std::chrono::nanoseconds timeout);

  /// The device must have ended it. Throws ExecutionError where an instruction of the plan did not run.
  void finish();

  /// Of the last step, in the order in which it ran.
  const std::vector<Record>& records() const { return records_; }

 private:
  int await(const Moment& moment, std::chrono::nanoseconds timeout) const;
  int first_unfinished() const;

  const std::vector<Instruction>& planned_;
  int rank_;
  Moments moments_;
  std::vector<std::pair<Moment, Moment>> spans_;  ///< of what ran, in its order
  std::vector<Record> records_;
  std::vector<Moment> computed_;  ///< ends of computes, in their order
  std::vector<char> done_;
  int last_in_turn_ = -1;
};

}  // namespace ostinato
