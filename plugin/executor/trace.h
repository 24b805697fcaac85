#pragma once
// What ran against what was planned, instruction by instruction, with times; cheap enough to leave on.
//
//   trace.begin();
//   trace.ran(i, Action::forward, stage, micro_batch, begin, end);   // reported by whoever did it
//   trace.finish();                                                 // throws where the step was not the
//   planned one

#include <chrono>
#include <cstdint>
#include <vector>

#include "plugin/program.h"

namespace ostinato {

/// Times of one instruction, from the begin of its step. A compute: its run. A send: the call that issued it.
/// A receive: from when its consumer asked for it to when it was there, which is what the transfer really
/// cost this rank.
struct Record {
  int instruction = 0;  ///< index into the rank's list
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  Trace(const std::vector<Instruction>& planned, int rank) : planned_(planned), rank_(rank) {}

  void begin();

  /// Throws ExecutionError, with rank and instruction, where this is not instruction `index` of the plan, ran
  /// already, or is a compute or send out of turn.
  void ran(int index, Action action, int stage, int micro_batch, Clock::time_point start,
           Clock::time_point end);

  /// Throws ExecutionError where an instruction of the plan did not run.
  void finish() const;

  /// Of the last step, in the order in which it ran.
  const std::vector<Record>& records() const { return records_; }

 private:
  const std::vector<Instruction>& planned_;
  int rank_;
  Clock::time_point begin_{};
  std::vector<Record> records_;
  std::vector<char> done_;
  int last_in_turn_ = -1;
};

}  // namespace ostinato
