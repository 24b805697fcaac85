// SPDX-License-Identifier: Apache-2.0
#include "bindings/python_executor.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <map>
#include <numeric>
#include <optional>

#include "plugin/executor/c10d_channel.h"
#include "plugin/executor/error.h"
#include "plugin/executor/executor.h"
#include "plugin/executor/host_channel.h"
#include "plugin/executor/near_ranks.h"
#include "search/files/counted.h"

namespace ostinato {
namespace {

/// `within`: what holds it, in words.
at::Tensor to_tensor(py::handle object, const std::string& stage, const std::string& within = "") {
  if (object.is_none()) return {};
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  throw py::type_error("stage '" + stage + "' returns " + within +
                       std::string(py::str(py::type::of(object).attr("__name__"))) +
                       "; expected a tensor or a tuple of tensors and None");
}

/// Another stage takes the bytes of a tensor: a tensor type that holds none itself (a DTensor) or not just
/// its elements in order (a sparse one) would end in a fault.
void expect_bytes(py::handle object, const std::string& stage) {
  if (!THPVariable_Check(object.ptr())) return;
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  const auto refuse = [&](const std::string& kind, const std::string& instead) {
    throw py::type_error("stage '" + stage + "' returns a " + kind +
                         ", which cannot be handed on to another stage: return a plain tensor" + instead);
  };
  if (tensor.is_quantized()) refuse("quantized tensor", " (.dequantize(), or .int_repr() and its scale)");
  if (tensor.is_nested()) refuse("nested tensor", ", as its values and offsets or .to_padded_tensor()");
  if (tensor.layout() != at::kStrided)
    refuse("tensor of layout " + std::string(py::str(object.attr("layout"))), " (.to_dense())");
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const bool held = storage && storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch() && !held) {
    const std::string kind = py::str(py::type::of(object).attr("__name__"));
    refuse("tensor of type " + kind, kind == "DTensor"                 ? " (.to_local())"
                                     : kind == "AsyncCollectiveTensor" ? " (.clone())"
                                                                       : "");
  }
}

/// A stage whose forward is a Python callable: forward(micro_batch, inputs) -> tensor or tuple.
class PythonStage : public StageModule {
 public:
  /// `of`: null where the program has no such stage.
  PythonStage(int stage, const ProgramStage* of, bool may_split, bool one_by_one, py::object forward,
              py::object before, py::object after, py::object offload)
      : stage_(stage),
        takes_inputs_(of && !of->inputs.empty()),
        handed_on_(of && !of->outputs.empty()),
        name_(of ? of->name : ""),
        may_split_(may_split),
        one_by_one_(one_by_one),
        forward_(std::move(forward)),
        before_(std::move(before)),
        after_(std::move(after)),
        offload_(std::move(offload)) {}

  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override {
    const py::gil_scoped_acquire gil;
    const py::object result = forward_(micro_batch, arguments(inputs));
    std::vector<at::Tensor> outputs;
    if (!py::isinstance<py::tuple>(result) && !py::isinstance<py::list>(result)) {
      outputs.push_back(output(result));
      return outputs;
    }
    for (const py::handle element : result)
      outputs.push_back(output(element, "a tuple that holds a value of type "));
    return outputs;
  }

  bool may_split() const override { return may_split_; }
  bool one_by_one() const override { return one_by_one_; }
  void offload(int micro_batch) override { move(micro_batch, "O"); }
  void load(int micro_batch) override { move(micro_batch, "L"); }
  void before_backward(int micro_batch, BackwardPart part) override { call(before_, micro_batch, part); }
  void after_backward(int micro_batch, BackwardPart part) override { call(after_, micro_batch, part); }

 private:
  at::Tensor output(py::handle object, const std::string& within = "") const {
    if (handed_on_) expect_bytes(object, name_);
    return to_tensor(object, name_, within);
  }

  py::object arguments(const std::vector<at::Tensor>& inputs) const {
    if (!takes_inputs_) return py::none();
    py::tuple tuple(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) tuple[i] = py::cast(inputs[i]);  // undefined becomes None
    return tuple;
  }

  static void call(const py::object& hook, int micro_batch, BackwardPart part) {
    if (hook.is_none()) return;
    const py::gil_scoped_acquire gil;
    hook(micro_batch, part == BackwardPart::whole ? "B" : part == BackwardPart::inputs ? "I" : "W");
  }

  void move(int micro_batch, const char* action) {
    const py::gil_scoped_acquire gil;
    if (offload_.is_none())
      throw std::runtime_error("stage " + std::to_string(stage_) +
                               " is offloaded: set_stage() needs `offload`");
    offload_(micro_batch, action);
  }

  int stage_;
  bool takes_inputs_, handed_on_;
  std::string name_;
  bool may_split_, one_by_one_;
  py::object forward_, before_, after_, offload_;
};

std::chrono::nanoseconds nanoseconds(double seconds) {
  if (!(seconds > 0 && seconds < 1e9))
    throw py::value_error("timeout_s and setup_timeout_s must be positive numbers of seconds");
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

class PythonExecutor {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Links = std::map<int, std::pair<Group, Group>>;  ///< by peer: to it, from it

  PythonExecutor(const Program& program, int rank, c10::intrusive_ptr<c10d::ProcessGroup> group,
                 std::vector<int> ranks, double timeout_s, std::optional<at::Device> device,
                 bool dynamic_shapes, bool shared_memory, double setup_timeout_s, const Links& links,
                 bool programs_change)
      : channel_(make_channel(check_group(program, rank, std::move(group), ranks), ranks,
                              device.value_or(at::Device(at::kCPU)), shared_memory, links,
                              programs_change ? kLargeMailboxBytes : kMailboxBytes)),
        executor_(program, rank, *channel_,
                  {.timeout = nanoseconds(timeout_s),
                   .dynamic_shapes = dynamic_shapes,
                   .programs_change = programs_change,
                   .setup_timeout = nanoseconds(setup_timeout_s)}),
        changes_(programs_change) {}

  ~PythonExecutor() {
    const py::gil_scoped_release no_gil;  // a stage on a lane may need it to end
    executor_.close();
  }

  void set_stage(int stage, py::object forward, py::object before, py::object after, bool may_split,
                 bool one_by_one, py::object offload) {
    const auto& stages = executor_.program().stages;
    const bool known = stage >= 0 && stage < static_cast<int>(stages.size());
    auto module = std::make_unique<PythonStage>(stage, known ? &stages[stage] : nullptr, may_split,
                                                one_by_one, std::move(forward), std::move(before),
                                                std::move(after), std::move(offload));
    executor_.set_stage(stage, *module);
    modules_[stage] = std::move(module);  // frees the one before it
  }

  /// Exceptions of Python code keep their type, and say where the step stood. Warnings of torch go to
  /// Python's `warnings`, which shows each once, as around any call of torch.
  void run(const std::string& name) {
    try {
      torch::PyWarningHandler warnings;
      try {
        const py::gil_scoped_release no_gil;
        executor_.run(name);
      } catch (...) {
        warnings.set_in_exception();
        throw;
      }
    } catch (python_error& error) {  // thrown by a hook inside the autograd engine
      error.restore();
      py::error_already_set raised;
      raise_with_position(raised);
    } catch (py::error_already_set& error) {
      raise_with_position(error);
    } catch (const c10::Error&) {  // of the engine itself: as torch.OutOfMemoryError and the like
      torch::translate_exception_to_python(std::current_exception());
      py::error_already_set raised;
      raise_with_position(raised);
    }
  }

  void set_program(const Program& program) {
    if (!changes_) throw py::value_error("set_program() needs an Executor(programs_change=True)");
    const py::gil_scoped_release no_gil;  // it proves the program
    executor_.set_program(program);
  }

  std::vector<std::tuple<int, std::int64_t, std::int64_t>> records() const {
    std::vector<std::tuple<int, std::int64_t, std::int64_t>> rows;
    for (const Record& r : executor_.records()) rows.emplace_back(r.instruction, r.start_ns, r.end_ns);
    return rows;
  }

  void abandon(const std::string& why) { executor_.abandon(why); }

  std::vector<int> unsplit_stages() const { return executor_.unsplit_stages(); }
  std::int64_t peak_bytes() const { return executor_.peak_bytes(); }
  std::tuple<std::string, std::string, std::int64_t> position() const {
    const Position at = executor_.position();
    return {at.where, at.waits_for, at.ms};
  }

 private:
  static std::unique_ptr<Channel> make_channel(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                               std::vector<int> ranks, at::Device device, bool shared_memory,
                                               const Links& links, std::int64_t mailbox_bytes) {
    std::map<int, LinkGroups> groups;
    for (const auto& [peer, link] : links) groups[peer] = {link.first, link.second};
    auto channel = make_c10d_channel(std::move(group), std::move(ranks), device, std::move(groups));
    return shared_memory ? make_host_channel(std::move(channel), mailbox_bytes) : std::move(channel);
  }

  static c10::intrusive_ptr<c10d::ProcessGroup> check_group(const Program& program, int rank,
                                                            c10::intrusive_ptr<c10d::ProcessGroup> group,
                                                            const std::vector<int>& ranks) {
    if (ranks.size() != program.ranks.size()) {
      throw py::value_error("the program has " + counted(program.ranks.size(), "rank") +
                            ", but `ranks` has " + counted(ranks.size(), "entry"));
    }
    if (ranks.size() > 1 && !group) throw py::value_error("a program of several ranks needs a process group");
    if (group && rank >= 0 && rank < static_cast<int>(ranks.size()) && group->getRank() != ranks[rank]) {
      throw py::value_error("this process is rank " + std::to_string(group->getRank()) +
                            " of the process group, but ranks[" + std::to_string(rank) + "] is " +
                            std::to_string(ranks[rank]));
    }
    return group;
  }

  [[noreturn]] void raise_with_position(py::error_already_set& error) {
    error.value().attr("add_note")("ostinato: " + to_string(executor_.position()));
    throw error;
  }

  std::unique_ptr<Channel> channel_;
  std::map<int, std::unique_ptr<PythonStage>> modules_;
  Executor executor_;
  bool changes_;
};

/// The ranks of a process group.
std::unique_ptr<NearRanks> make_near_ranks(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                           double timeout_s) {
  std::vector<int> ranks(group->getSize());
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<NearRanks>(make_host_channel(make_c10d_channel(group, ranks, at::kCPU)),
                                     group->getRank(), group->getSize(), nanoseconds(timeout_s));
}

void bind_near_ranks(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;  // they wait for other ranks
  py::class_<NearRanks>(m, "NearRanks", "Sums and exchanges of ranks of one host, through its memory.")
      .def(py::init(&make_near_ranks), NoGil(), py::arg("process_group"), py::arg("timeout_s") = 300.0,
           "All ranks of the group must make it.")
      .def("are_near", &NearRanks::are_near,
           "Whether this rank shares memory with every other one; where not, nothing else may be called.")
      .def("sum", &NearRanks::sum, NoGil(), py::arg("tensor"),
           "Over the ranks, in place, in their order; a contiguous tensor on the CPU. No gradient is "
           "recorded.")
      .def("gather", &NearRanks::gather, NoGil(), py::arg("tensor"), "Every rank's tensor, by rank.")
      .def("broadcast", &NearRanks::broadcast, NoGil(), py::arg("tensor"), py::arg("source"),
           "The tensor of rank `source`, in place.");
}

}  // namespace

void bind_executor(py::module_& m) {
  const auto failed = py::register_local_exception<ExecutionError>(m, "ExecutionError", PyExc_RuntimeError);
  py::register_local_exception<TimeoutError>(m, "StepTimeout", failed);
  bind_near_ranks(m);
  py::class_<PythonExecutor>(m, "Executor", "Runs one rank's list of a program, one training step per run().")
      .def(py::init<const Program&, int, c10::intrusive_ptr<c10d::ProcessGroup>, std::vector<int>, double,
                    std::optional<at::Device>, bool, bool, double, PythonExecutor::Links, bool>(),
           py::call_guard<py::gil_scoped_release>(),  // it waits for the executors of the other ranks
           py::arg("program"), py::arg("rank"), py::arg("process_group"), py::arg("ranks"),
           py::arg("timeout_s") = 300.0, py::arg("device") = py::none(), py::arg("dynamic_shapes") = false,
           py::arg("shared_memory") = true, py::arg("setup_timeout_s") = 300.0,
           py::arg("links") = PythonExecutor::Links(), py::arg("programs_change") = false,
           "ranks[d] is the rank within process_group of the pipeline's device d. Every rank must make its "
           "executor, with the same arguments: ranks wait up to setup_timeout_s for those that they exchange "
           "tensors with. shared_memory=False: everything goes over process_group, also between ranks of one "
           "host. links[peer]: groups of two ranks, to it and from it, that transfers go over instead "
           "(ostinato.groups). programs_change: set_program() will be called.")
      .def("set_stage", &PythonExecutor::set_stage, py::arg("stage"), py::arg("forward"),
           py::arg("before_backward") = py::none(), py::arg("after_backward") = py::none(),
           py::arg("may_split") = true, py::arg("one_by_one") = false, py::arg("offload") = py::none(),
           "forward(micro_batch, inputs) -> tensor or tuple; inputs is None for a stage without inputs. The "
           "other two are called with (micro_batch, part) around each autograd run; part is \"B\", \"I\" or "
           "\"W\": what it computes. may_split=False: a backward that the plan splits runs whole in its "
           "first half. one_by_one: a whole backward starts from one output after the other, as "
           "Tensor.backward() on each. offload(micro_batch, action), of a stage that the plan offloads: "
           "copies what "
           "its graph keeps to the host (\"O\") or back (\"L\"), on the stream that is current.")
      .def("set_program", &PythonExecutor::set_program, py::arg("program"),
           "Between two steps, on all ranks: from now on runs this one, of the same stages and transfers in "
           "another order. Proved free of deadlock first.")
      .def("run", &PythonExecutor::run, py::arg("name") = "",
           "One training step: every instruction of this rank. name: what position() calls it (\"step 7\"); "
           "by default a run of this executor has its number.")
      .def("abandon", &PythonExecutor::abandon, py::arg("why"),
           "From another thread, once a peer has failed: run() raises ExecutionError where it waits for a "
           "message that is not here.")
      .def("records", &PythonExecutor::records,
           "[(instruction index, start_ns, end_ns)] of the last step, relative to its begin.")
      .def_property_readonly("peak_bytes", &PythonExecutor::peak_bytes,
                             "Most bytes that its own buffers and unfinished sends ever held.")
      .def_property_readonly(
          "unsplit_stages", &PythonExecutor::unsplit_stages,
          "Stages whose split backward ran whole: re-entrant checkpointing, or may_split=False.")
      .def("position", &PythonExecutor::position,
           "(where, waits_for, ms): where the rank is, what it waits for (\"\": nothing), both in words, "
           "and for how long; from any thread.");
}

}  // namespace ostinato
