// SPDX-License-Identifier: Apache-2.0
// ostinato._plugin: lowered programs and the executor, for Python.

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/python_executor.h"
#include "plugin/lowering/flow.h"
#include "plugin/lowering/forwards.h"
#include "plugin/lowering/lower.h"
#include "plugin/lowering/program.h"
#include "plugin/lowering/program_text.h"
#include "plugin/randomness/mersenne.h"
#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/plan/sends_ahead.h"

namespace ostinato {
namespace {

/// A module built for one release of torch may load in another and misbehave: "2.13.0+cpu" and "2.13.0+cu130"
/// agree.
void check_torch_version() {
  const auto release = [](const std::string& version) { return version.substr(0, version.find('+')); };
  const std::string built = OSTINATO_TORCH_VERSION;
  const std::string here = py::str(py::module_::import("torch").attr("__version__"));
  if (release(built) != release(here)) {
    throw py::import_error("ostinato was built for torch " + built + ", but this is torch " + here +
                           ": install ostinato again (pip install .)");
  }
}

void check_rank(const Program& program, int rank) {
  if (rank < 0 || rank >= static_cast<int>(program.ranks.size())) {
    throw py::index_error("the program has " + counted(program.ranks.size(), "rank") + ", but no rank " +
                          std::to_string(rank));
  }
}

/// A file may name more layers than any model has: a range takes no memory.
py::object numbers_of(const Layers& layers) {
  if (layers.runs().size() == 1)
    return py::module_::import("builtins").attr("range")(layers.front(), layers.back() + 1);
  py::list numbers;
  for (const int layer : layers) numbers.append(layer);
  return py::tuple(numbers);
}

std::vector<std::pair<std::string, std::string>> model_layers(const Program& program) {
  std::vector<std::pair<std::string, std::string>> list;
  for (const std::string& layer : program.model.layers) {
    const std::size_t space = layer.rfind(' ');
    if (space == std::string::npos)
      list.emplace_back("", layer);
    else
      list.emplace_back(layer.substr(0, space), layer.substr(space + 1));
  }
  return list;
}

void bind_instruction(py::module_& m) {
  py::class_<Instruction>(m, "Instruction")
      .def_property_readonly("action", [](const Instruction& i) { return to_string(i.action); })
      .def_readonly("stage", &Instruction::stage)
      .def_readonly("micro_batch", &Instruction::micro_batch)
      .def_readonly("peer", &Instruction::peer)
      .def_readonly("peer_stage", &Instruction::peer_stage)
      .def_readonly("start", &Instruction::start)
      .def_readonly("end", &Instruction::end)
      .def("__str__", [](const Instruction& i) { return to_string(i); })
      .def("__repr__", [](const Instruction& i) { return "<Instruction " + to_string(i) + ">"; });
}

void bind_program(py::module_& m) {
  py::class_<ProgramStage>(m, "Stage")
      .def_readonly("name", &ProgramStage::name)
      .def_readonly("ranks", &ProgramStage::devices,
                    "Pipeline ranks that run it; several: each runs its shard.")
      .def_property_readonly(
          "layers", [](const ProgramStage& s) { return numbers_of(s.layers); },
          "Layers that it runs, rising: a range, or a tuple where some are left out between them; empty "
          "where the placement has no [[stages]].")
      .def_readonly("recomputes", &ProgramStage::recompute,
                    "Its forward keeps its inputs only, and its backward runs it again.")
      .def_readonly("lane", &ProgramStage::lane,
                    "It runs on this lane of its ranks, beside what they compute; empty: it computes.")
      .def_readonly("holds", &ProgramStage::holds,
                    "More lanes of its ranks, on which nothing runs meanwhile.")
      .def_readonly("offload", &ProgramStage::offload,
                    "The lane that copies what it keeps to the host and back; empty: it stays.")
      .def_readonly("has_backward", &ProgramStage::has_backward)
      .def_readonly("inputs", &ProgramStage::inputs)
      .def_readonly("outputs", &ProgramStage::outputs)
      .def_readonly("output_bytes", &ProgramStage::output_bytes,
                    "The most that a stage takes of a micro-batch's outputs; 0: not known.");
  py::class_<Program>(m, "Program", "A lowered plan: one instruction list per rank, shown free of deadlock.")
      .def_readonly("stages", &Program::stages)
      .def_readonly("micro_batches", &Program::micro_batches)
      .def_readonly("makespan", &Program::makespan, "Planned, in nanoseconds.")
      .def_readonly(
          "predicted", &Program::predicted,
          "What a step is predicted to take, in nanoseconds: the makespan, or its replay where devices "
          "share processors.")
      .def_readonly("whole_step", &Program::whole_step,
                    "The same with the optimizer's step; 0: what that takes is not known.")
      .def_readonly("lower_bound", &Program::lower_bound, "Proven bound of the makespan; 0: none.")
      .def_property_readonly(
          "beside",
          [](const Program& p) {
            std::vector<std::tuple<std::string, Nanoseconds, Nanoseconds>> list;
            for (const Baseline& b : p.baselines) list.emplace_back(in_words(b), b.makespan, b.measured);
            return list;
          },
          "What it is compared with: names, what each is predicted to take, and the measured whole step (0: "
          "not known), in nanoseconds. Your run now comes first, where it is known; then 1F1B.")
      .def_readonly("planned_peak", &Program::planned_peak, "Bytes per device, static memory included.")
      .def_readonly("plan_sha256", &Program::plan_sha256)
      .def_readonly("placement_sha256", &Program::placement_sha256)
      .def_readonly("placement_name", &Program::placement_name)
      .def_property_readonly(
          "model_sha256", [](const Program& p) { return p.model.sha256; },
          "Of the profile that the placement was made from; \"\": written by hand.")
      .def_property_readonly("model_layers", &model_layers,
                             "(name, digest) of each layer that was profiled; []: not known.")
      .def_property_readonly(
          "micro_batch_size", [](const Program& p) { return p.model.micro_batch_size; },
          "Samples of a micro-batch that was profiled; 0: not known.")
      .def_readonly("counts_hosts", &Program::counts_hosts,
                    "The placement says which devices share processors.")
      .def_property_readonly("ranks", [](const Program& p) { return p.ranks.size(); })
      .def_property_readonly("links", &links,
                             "(source, target) of each pair of ranks between which something travels.")
      .def_property_readonly("keeps_order", &keeps_order,
                             "Every stage's backwards run in micro-batch order, as in 1F1B.")
      .def(
          "text",
          [](const Program& p, int rank, bool transfers) {
            check_rank(p, rank);
            return format_rank(p, rank, transfers ? TextForm::transfers : TextForm::compute);
          },
          py::arg("rank"), py::arg("transfers") = true,
          "One rank's row, as torch.distributed.pipelining reads it.")
      .def("forwards", &forwards, py::arg("micro_batches"), py::arg("stages"),
           "The forwards of its first micro-batches and of some of its stages, numbered from 0.")
      .def(
          "front_stage",
          [](const Program& p, bool dynamic_shapes) { return front_stage(p, kSendsAhead, dynamic_shapes); },
          py::arg("dynamic_shapes") = false,
          "For forwards only: the stage that may take each request before any other that takes some; -1: "
          "none.")
      .def("instructions", [](const Program& p, int rank) {
        check_rank(p, rank);
        return p.ranks[rank];
      });
}

void bind_steps(py::module_& m) {
  py::class_<StepPlacement>(
      m, "StepPlacement", "Lowers a placement's plans step by step, each for the micro-batches of one step.")
      .def(py::init<const std::string&, const std::string&>(), py::arg("text"), py::arg("name") = "placement",
           "`name` stands in messages for the file. ValueError with that and the line.")
      .def("lower", &StepPlacement::lower, py::call_guard<py::gil_scoped_release>(), py::arg("plan"),
           "The program of a plan's text, which is checked first. ValueError with the reason.");
}

/// `state`: of a generator on a CPU. Throws ValueError where it is not one.
std::span<std::byte> bytes_of(const at::Tensor& state) {
  if (state.scalar_type() != at::kByte || !state.is_cpu() || !state.is_contiguous() ||
      state.nbytes() < kMersenneBytes)
    throw py::value_error("this is no state of torch's generator on a CPU");
  return {static_cast<std::byte*>(state.mutable_data_ptr()), state.nbytes()};
}

void bind_randomness(py::module_& m) {
  m.def(
      "skip_words",
      [](const at::Tensor& state, std::uint64_t count) {
        at::Tensor made = state.clone();
        skip_words(bytes_of(made), count);
        return made;
      },
      py::arg("state"), py::arg("count"),
      "The state of a generator on a CPU once this many words of 32 bits were drawn.");
  m.def(
      "words_between",
      [](const at::Tensor& before, const at::Tensor& after, std::uint64_t most) {
        return words_between(bytes_of(before), bytes_of(after), most);
      },
      py::arg("before"), py::arg("after"), py::arg("most"),
      "How many words lead from one state to the other; None: not up to `most`.");
}

}  // namespace
}  // namespace ostinato

PYBIND11_MODULE(_plugin, m) {
  using namespace ostinato;
  check_torch_version();
  py::module_::import("torch.distributed");  // registers ProcessGroup, which Executor takes
  py::register_local_exception<InputError>(m, "InputError", PyExc_ValueError);
  bind_instruction(m);
  bind_program(m);
  bind_executor(m);
  bind_steps(m);
  bind_randomness(m);
  m.def(
      "lower",
      [](const std::string& plan, const std::string& placement, int micro_batches) {
        return lower_files(plan, placement, micro_batches);
      },
      py::call_guard<py::gil_scoped_release>(),  // large plans take seconds: what watches the ranks goes on
      py::arg("plan_path"), py::arg("placement_path"), py::arg("micro_batches") = 0,
      "Reads and checks both files and lowers the plan; where it has fewer than `micro_batches`, its "
      "repetend is repeated. ValueError with the reason.");
}
