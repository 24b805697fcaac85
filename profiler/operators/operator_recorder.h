// SPDX-License-Identifier: Apache-2.0
#pragma once
// Records every operator that torch runs, on any thread, through at::RecordFunction's global callbacks.
//
//   OperatorRecorder recorder;
//   recorder.start();
//   recorder.begin_pass(3, "forward");   ...run layer 3...   recorder.end_pass();
//   recorder.stop();
//   for (const OperatorCost& row : operator_rows(recorder)) ...      // operator_rows.h
//
// The hot path allocates nothing: buffers are made when the recorder is; a thread claims one with its first
// event. What does not fit is counted, never silently lost. Nodes wrap each other, so an event knows the time
// of what it called, and self time is what is left. An event costs about half a microsecond, which is in the
// self time of its caller. Names are copied, because backward nodes' names do not outlive the call.
//
// One recorder can be started at a time; start() throws std::logic_error otherwise. start() and stop() must
// not run beside recorded operators.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "profiler/device/allocation_hook.h"
#include "profiler/device/device_timer.h"
#include "profiler/operators/operator_event.h"

namespace ostinato {

/// One run of one layer in one direction.
struct Pass {
  int layer = -1;
  std::string phase;  ///< "forward" | "backward" | "backward_input" | "backward_weight"
  int micro_batch = 0;
};

/// What is recorded besides times and bytes.
struct RecordOptions {
  bool flops = false;            ///< from the arguments (flops.h), which torch then collects: allocates
  DeviceTimer* timer = nullptr;  ///< must outlive stop()
};

struct RecorderOptions {
  int events_per_thread = 1 << 15;
  int threads = 8;
};

class OperatorRecorder {
 public:
  explicit OperatorRecorder(const RecorderOptions& options = {});
  ~OperatorRecorder();
  OperatorRecorder(const OperatorRecorder&) = delete;
  OperatorRecorder& operator=(const OperatorRecorder&) = delete;

  void start(const RecordOptions& options = {});
  void stop();

  /// Forgets all events, passes and counts; keeps the buffers. Call it when stopped.
  void clear();

  /// Events from here on belong to this pass; one that is open ends. On the thread that runs it.
  void begin_pass(int layer, const std::string& phase, int micro_batch = 0);
  void end_pass();

  const std::vector<Pass>& passes() const { return passes_; }

  /// All events, thread by thread in the order in which they started. Call it when stopped.
  std::vector<OperatorEvent> events() const;

  std::int64_t dropped() const;     ///< no buffer, a full buffer, or nested too deeply
  std::int64_t unfinished() const;  ///< started, and their end was not seen

  struct State;  ///< of the hot path; operator_recorder.cpp

 private:
  std::unique_ptr<State> state_;
  std::vector<Pass> passes_;
  std::uint64_t handle_ = 0;  ///< of the callback; 0: stopped
  bool in_pass_ = false;
  std::unique_ptr<AllocationHook> hook_;  ///< while a device is timed
};

}  // namespace ostinato
