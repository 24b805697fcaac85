// SPDX-License-Identifier: Apache-2.0
#pragma once
// One forward and backward of a step of a saved program, with its time and memory: what passes.py is for a
// layer. What is measured is the call alone: inputs are copied and gradients of parameters exist before it.

#include <string>
#include <vector>

#include "profiler/operators/operator_recorder.h"
#include "profiler/saved/program.h"

namespace ostinato {

struct StepCost {
  Nanoseconds time = 0;  ///< steady clock
  Bytes kept = 0;        ///< live after it and not before
  Bytes peak = 0;        ///< largest number of bytes above those before it
};

struct HalfTimes {
  Nanoseconds inputs = 0;
  Nanoseconds parameters = 0;
};

/// A step ready to run: copies of its inputs, which it may work on in place.
class StepRun {
 public:
  explicit StepRun(const SavedStep& step);

  /// `recorder` may be null; else each is a pass of layer `layer`. Throw InputError with the step's name.
  StepCost forward(OperatorRecorder* recorder, int layer);
  StepCost backward(OperatorRecorder* recorder, int layer);

  /// Peak bytes of a backward above what was there before it, after a forward: with the gradients that
  /// arrive, which belong to the backward as those of a step behind it do. The outputs are let go.
  Bytes backward_peak();

  /// The backward in two halves instead (autograd/backward_halves.h), after a forward. Where there is but one
  /// of them it is the whole backward, and the other takes 0.
  HalfTimes halves();

  std::vector<c10::IValue> take_inputs() { return std::move(inputs_); }
  std::vector<c10::IValue> take_outputs() { return std::move(outputs_); }

 private:
  StepCost measured(OperatorRecorder* recorder, int layer, const char* phase,
                    const std::function<void()>& call);

  const SavedStep& step_;
  std::vector<c10::IValue> inputs_, outputs_;
  std::vector<at::Tensor> leaves_;  ///< get the gradients of the inputs
};

/// What a step's memory is of, for the question which outputs outlive the steps that read them (kept.py).
struct HeldMemory {
  std::vector<bool> inputs;  ///< by tensor: the backward needs it
  std::vector<bool> outputs;
  std::vector<int> alias;    ///< of an output: the input whose memory it is; -1: its own
  std::vector<int> first;    ///< of an output: the first one of the same memory
  std::vector<Bytes> sizes;  ///< of an output's memory
};

/// Runs the step once, lets go of each tensor, and looks whether its memory comes back.
HeldMemory held_memory(const SavedStep& step);

/// Of each step: bytes of its outputs that are freed once every step that reads them has run. `held` by step.
std::vector<Bytes> freed_outputs(const std::vector<SavedStep>& steps,
                                 const std::vector<const HeldMemory*>& held);

}  // namespace ostinato
