// SPDX-License-Identifier: Apache-2.0
#include "profiler/saved/saved_profile.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "profiler/memory/counting_allocator.h"
#include "profiler/operators/operator_rows.h"
#include "profiler/operators/spread.h"
#include "profiler/saved/dispatch_count.h"
#include "profiler/saved/ivalues.h"
#include "profiler/saved/step_run.h"
#include "search/files/sha256.h"

namespace ostinato {
namespace {

constexpr int kEvents = 1 << 15;  // that the recorder keeps of a thread
constexpr Bytes kNumber = 4;      // bytes of an fp32 number

struct Allocator {
  Allocator() { CountingAllocator::install(); }
  ~Allocator() { CountingAllocator::remove(); }
};

Bytes bytes(const std::vector<at::Tensor>& tensors, bool trained_only) {
  Bytes total = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!trained_only || tensor.requires_grad()) total += static_cast<Bytes>(tensor.nbytes());
  }
  return total;
}

std::int64_t trained_numbers(const std::vector<at::Tensor>& parameters) {
  std::int64_t numbers = 0;
  for (const at::Tensor& parameter : parameters) numbers += parameter.requires_grad() ? parameter.numel() : 0;
  return numbers;
}

/// Forward and backward, `passes` times; records where there is a recorder.
void run_passes(const SavedStep& step, int layer, int passes, OperatorRecorder* recorder,
                const RecordOptions& options) {
  recorder->clear();
  recorder->start(options);
  for (int pass = 0; pass < passes; ++pass) {
    StepRun run(step);
    run.forward(recorder, layer);
    run.backward(recorder, layer);
  }
  recorder->stop();
}

HalfTimes half_times(const SavedStep& step) {
  StepRun run(step);
  run.forward(nullptr, 0);
  return run.halves();
}

class ProgramProfiler {
 public:
  ProgramProfiler(const SavedProgram& program, const SavedProfileOptions& options)
      : program_(program), options_(options), recorder_({.events_per_thread = kEvents}) {}

  Profile measure(const StepProgress& progress);

 private:
  LayerCost layer_cost(const SavedStep& step);
  void add_operators(const SavedStep& step, int layer);
  void count(const SavedStep& step, int layer);
  void add_rows(const std::map<std::string, int>& measured);
  std::vector<LayerInput> inputs_of(const SavedStep& step) const;
  void describe();

  const SavedProgram& program_;
  const SavedProfileOptions& options_;
  OperatorRecorder recorder_;
  std::map<int, LayerCost> costs_;  // of measured steps
  std::map<int, HeldMemory> held_;
  std::int64_t unfinished_ = 0;
  std::set<std::string> lost_;  // names of operators that were not recorded
  Profile profile_;
};

LayerCost ProgramProfiler::layer_cost(const SavedStep& step) {
  std::vector<Nanoseconds> forward, backward, inputs, parameters;
  LayerCost cost;
  for (int repeat = -options_.warm_up; repeat < options_.repeats; ++repeat) {
    const HalfTimes halves = half_times(step);
    StepRun run(step);
    const StepCost there = run.forward(nullptr, 0), back = run.backward(nullptr, 0);
    if (repeat < 0) continue;
    forward.push_back(there.time);
    backward.push_back(back.time);
    inputs.push_back(halves.inputs);
    parameters.push_back(halves.parameters);
    const Bytes kept = std::max<Bytes>(0, there.kept);
    cost.kept = std::max(cost.kept, kept);
    cost.forward_workspace = std::max(cost.forward_workspace, there.peak - kept);
  }
  StepRun last(step);
  last.forward(nullptr, 0);
  cost.backward_workspace = last.backward_peak();
  cost.forward = spread_of(std::move(forward));
  cost.backward = spread_of(std::move(backward));
  cost.backward_input = spread_of(std::move(inputs));
  cost.backward_weight = spread_of(std::move(parameters));
  cost.parameters = bytes(step.parameters, false) + bytes(step.buffers, false);
  cost.gradients = bytes(step.parameters, true);
  cost.optimizer_state = trained_numbers(step.parameters) * options_.optimizer_numbers * kNumber;
  cost.output_bytes = step.output_bytes;
  return cost;
}

void ProgramProfiler::add_operators(const SavedStep& step, int layer) {
  run_passes(step, layer, 1, &recorder_, {.flops = true});
  std::map<std::pair<std::string, std::string>, std::optional<std::int64_t>> flops;
  std::int64_t calls = 1;
  for (const OperatorCost& row : operator_rows(recorder_)) {
    flops[{row.phase, row.name}] = row.flops;
    calls += row.calls;
  }
  const auto fit = std::clamp<std::int64_t>(kEvents / calls, 1, options_.repeats);
  run_passes(step, layer, static_cast<int>(fit), &recorder_, {});
  for (OperatorCost& row : operator_rows(recorder_)) {
    row.flops = flops[{row.phase, row.name}];
    profile_.operators.push_back(std::move(row));
  }
  profile_.completeness.dropped += recorder_.dropped();
  profile_.completeness.out_of_range += out_of_range(recorder_);
  unfinished_ += recorder_.unfinished();
}

/// Operators of a forward and a backward, by the dispatcher and by the recorder in the same run.
void ProgramProfiler::count(const SavedStep& step, int layer) {
  std::map<std::string, std::int64_t> expected;
  {
    StepRun run(step);
    recorder_.clear();
    recorder_.start();
    const DispatchCount counted;
    run.forward(&recorder_, layer);
    run.backward(&recorder_, layer);
    expected = counted.counts();
    recorder_.stop();
  }
  std::map<std::string, std::int64_t> seen;
  for (const OperatorEvent& event : recorder_.events()) ++seen[event.name()];
  for (const auto& [name, times] : expected) {
    profile_.completeness.expected += times;
    profile_.completeness.seen += std::min(times, seen[name]);
    if (seen[name] < times) lost_.insert(name);
  }
}

std::vector<LayerInput> ProgramProfiler::inputs_of(const SavedStep& step) const {
  std::map<int, std::vector<at::Tensor>> by_step;
  const std::vector<at::Tensor> tensors = tensors_of(step.inputs);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (step.sources[i].step >= 0) by_step[step.sources[i].step].push_back(tensors[i]);
  }
  std::vector<LayerInput> inputs;
  for (const auto& [source, read] : by_step) inputs.push_back({source, bytes_of(read)});
  return inputs;
}

void ProgramProfiler::add_rows(const std::map<std::string, int>& measured) {
  std::vector<const HeldMemory*> held;
  for (const SavedStep& step : program_.steps) held.push_back(&held_.at(measured.at(step.identity)));
  const std::vector<Bytes> freed = freed_outputs(program_.steps, held);
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const SavedStep& step = program_.steps[i];
    const int index = static_cast<int>(i), first = measured.at(step.identity);
    LayerCost row = costs_.at(first);
    row.index = index;
    row.name = step.name;
    row.same_as = first == index ? -1 : first;
    const Bytes gone = std::min(row.kept, freed[i]);
    row.kept -= gone;
    row.forward_workspace += gone;
    row.after = inputs_of(step);
    std::vector<at::Tensor> given = tensors_of(step.inputs);
    std::erase_if(given, [&](const at::Tensor& tensor) { return is_state(step, tensor); });
    row.input_bytes = bytes_of(given);
    profile_.layers.push_back(std::move(row));
  }
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "";
}

void ProgramProfiler::describe() {
  profile_.model = options_.name;
  std::string shapes;
  for (const SavedStep& step : program_.steps) shapes += step.name + " " + step.identity + "\n";
  profile_.model_sha256 = sha256(shapes);
  profile_.device.name = processor();
  profile_.device.kind = options_.kind;
  profile_.device.torch = OSTINATO_TORCH_VERSION;
  profile_.device.clocks = std::to_string(at::get_num_threads()) + " threads";
  profile_.timer = "cpu";
  profile_.warm_up = options_.warm_up;
  profile_.repeats = options_.repeats;
  profile_.micro_batch_size = options_.micro_batch_size;
  if (!options_.link) return;
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    profile_.transfers.push_back({.from = from, .to = to, .link = *options_.link, .backend = "given"});
  }
}

void judge(Completeness& state, std::int64_t unfinished, const std::set<std::string>& lost) {
  const auto because = [&](std::int64_t count, const std::string& what) {
    if (count != 0) state.reason += (state.reason.empty() ? "" : "; ") + std::to_string(count) + " " + what;
  };
  std::string names;
  for (const std::string& name : lost) names += (names.empty() ? "" : ", ") + name;
  because(state.expected - state.seen,
          "of " + std::to_string(state.expected) + " operators were not recorded (" + names + ")");
  because(state.dropped, "operators did not fit into the buffers");
  because(unfinished, "operators did not end");
  because(state.out_of_range, "backward nodes belong to another layer");
  state.dropped += unfinished;
  state.complete = state.reason.empty();
}

Profile ProgramProfiler::measure(const StepProgress& progress) {
  const Allocator counted;
  std::map<std::string, int> measured;  // identity to the first step that has it
  const int steps = static_cast<int>(program_.steps.size());
  for (int index = 0; index < steps; ++index) {
    const SavedStep& step = program_.steps[index];
    if (measured.emplace(step.identity, index).second) {
      costs_[index] = layer_cost(step);
      held_[index] = held_memory(step);
      add_operators(step, index);
      count(step, index);
    }
    progress(index + 1, steps);
  }
  add_rows(measured);
  describe();
  judge(profile_.completeness, unfinished_, lost_);
  return std::move(profile_);
}

}  // namespace

Profile profile_program(const SavedProgram& program, const SavedProfileOptions& options,
                        const StepProgress& progress) {
  return ProgramProfiler(program, options).measure(progress);
}

}  // namespace ostinato
