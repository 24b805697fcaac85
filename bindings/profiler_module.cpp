// SPDX-License-Identifier: Apache-2.0
// The Python module ostinato._profiler: what measures (C++) for what drives the model (Python,
// ostinato/profile).

#include <c10/core/Device.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>

#include "bindings/profiler_halves.h"
#include "bindings/restriction_rows.h"
#include "profiler/cupti/cupti_status.h"
#include "profiler/device/allocation_hook.h"
#include "profiler/device/device_timer.h"
#include "profiler/memory/counting_allocator.h"
#include "profiler/memory/memory_log.h"
#include "profiler/nvtx/nvtx_range.h"
#include "profiler/operators/link_fit.h"
#include "profiler/operators/operator_recorder.h"
#include "profiler/operators/operator_rows.h"
#include "profiler/operators/spread.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/profile/profile_json.h"
#include "search/profile/profile_noise.h"

namespace py = pybind11;
using namespace ostinato;

namespace {

void bind_costs(py::module_& m) {
  py::class_<Spread>(m, "Spread", "Median and quartiles in nanoseconds; repeats == 0: not measured.")
      .def(py::init<>())
      .def_readwrite("median", &Spread::median)
      .def_readwrite("low", &Spread::low)
      .def_readwrite("high", &Spread::high)
      .def_readwrite("repeats", &Spread::repeats);
  py::class_<LayerInput>(m, "LayerInput", "What a layer reads from an earlier one.")
      .def(py::init([](int layer, Bytes bytes) {
             return LayerInput{layer, bytes};
           }),
           py::arg("layer"), py::arg("bytes"))
      .def_readonly("layer", &LayerInput::layer)
      .def_readonly("bytes", &LayerInput::bytes);
  py::class_<LayerCost>(m, "LayerCost")
      .def(py::init<>())
      .def("__copy__", [](const LayerCost& cost) { return cost; })
      .def_readwrite("index", &LayerCost::index)
      .def_readwrite("name", &LayerCost::name)
      .def_readwrite("same_as", &LayerCost::same_as)
      .def_readwrite("forward", &LayerCost::forward)
      .def_readwrite("backward", &LayerCost::backward)
      .def_readwrite("backward_input", &LayerCost::backward_input)
      .def_readwrite("backward_weight", &LayerCost::backward_weight)
      .def_readwrite("kept", &LayerCost::kept)
      .def_readwrite("forward_workspace", &LayerCost::forward_workspace)
      .def_readwrite("backward_workspace", &LayerCost::backward_workspace)
      .def_readwrite("parameters", &LayerCost::parameters)
      .def_readwrite("gradients", &LayerCost::gradients)
      .def_readwrite("optimizer_state", &LayerCost::optimizer_state)
      .def_readwrite("tied", &LayerCost::tied)
      .def_readwrite("input_bytes", &LayerCost::input_bytes)
      .def_readwrite("output_bytes", &LayerCost::output_bytes)
      .def_readwrite("passed", &LayerCost::passed)
      .def_readwrite("released", &LayerCost::released)
      .def_readwrite("after", &LayerCost::after)
      .def_readwrite("shardable", &LayerCost::shardable)
      .def_readwrite("lane", &LayerCost::lane)
      .def_readwrite("digest", &LayerCost::digest)
      .def_readwrite("step_together", &LayerCost::step_together)
      .def_readwrite("step_alone", &LayerCost::step_alone)
      .def_readwrite("recompute", &LayerCost::recompute)
      .def_readwrite("step_time", &LayerCost::step_time)
      .def_readwrite("waiting", &LayerCost::waiting)
      .def_readwrite("weight_workspace", &LayerCost::weight_workspace)
      .def_readwrite("inference_workspace", &LayerCost::inference_workspace)
      .def_readwrite("reduced", &LayerCost::reduced)
      .def_readwrite("labels", &LayerCost::labels)
      .def_readwrite("sent", &LayerCost::sent);
  py::class_<OperatorCost>(m, "OperatorCost")
      .def_readonly("layer", &OperatorCost::layer)
      .def_readonly("name", &OperatorCost::name)
      .def_readonly("phase", &OperatorCost::phase)
      .def_readonly("calls", &OperatorCost::calls)
      .def_readonly("self_time", &OperatorCost::self_time)
      .def_readonly("allocated", &OperatorCost::allocated)
      .def_readwrite("flops", &OperatorCost::flops);
  py::class_<TransferCost>(m, "TransferCost")
      .def(py::init([](int source, int target, Nanoseconds latency, Bytes bytes_per_second,
                       const std::string& backend) {
             return TransferCost{
                 .from = source, .to = target, .link = {latency, bytes_per_second}, .backend = backend};
           }),
           py::arg("source"), py::arg("target"), py::arg("latency"), py::arg("bytes_per_second"),
           py::arg("backend"))
      .def_readonly("source", &TransferCost::from)
      .def_readonly("target", &TransferCost::to)
      .def_property_readonly("latency", [](const TransferCost& cost) { return cost.link.latency; })
      .def_property_readonly("bytes_per_second",
                             [](const TransferCost& cost) { return cost.link.bytes_per_second; })
      .def_readonly("residual", &TransferCost::residual)
      .def_readonly("backend", &TransferCost::backend);
}

void set_device(Profile& profile, const std::string& name, const std::string& kind, const std::string& driver,
                const std::string& torch, const std::string& cuda, const std::string& clocks) {
  profile.device = {name, kind, driver, torch, cuda, clocks};
}

void bind_profile(py::module_& m) {
  py::class_<RankCost>(m, "RankCost",
                       "What a rank that trains holds and spends beside its layers, whichever it has.")
      .def(py::init<>())
      .def_readwrite("held", &RankCost::held)
      .def_readwrite("step", &RankCost::step)
      .def_readwrite("buffers", &RankCost::buffers)
      .def_readwrite("forward", &RankCost::forward)
      .def_readwrite("backward", &RankCost::backward)
      .def_readwrite("read", &RankCost::read)
      .def_readwrite("step_time", &RankCost::step_time)
      .def_readwrite("computing", &RankCost::computing)
      .def_readwrite("average", &RankCost::average);
  py::class_<SizeCost>(m, "SizeCost",
                       "What the layers take for a micro-batch of another size: medians by layer.")
      .def(py::init(
               [](std::int64_t size, std::vector<Nanoseconds> forward, std::vector<Nanoseconds> backward) {
                 return SizeCost{size, std::move(forward), std::move(backward)};
               }),
           py::arg("size"), py::arg("forward"), py::arg("backward"))
      .def_readonly("size", &SizeCost::size)
      .def_readonly("forward", &SizeCost::forward)
      .def_readonly("backward", &SizeCost::backward);
  py::class_<Completeness>(m, "Completeness")
      .def_readwrite("complete", &Completeness::complete)
      .def_readwrite("expected", &Completeness::expected)
      .def_readwrite("seen", &Completeness::seen)
      .def_readwrite("dropped", &Completeness::dropped)
      .def_readwrite("out_of_range", &Completeness::out_of_range)
      .def_readwrite("reason", &Completeness::reason);
  py::class_<Profile>(m, "Profile",
                      "A profile as ostinato-profile/1 holds it. Lists are replaced as a whole.")
      .def(py::init<>())
      .def_readwrite("model", &Profile::model)
      .def_readwrite("model_sha256", &Profile::model_sha256)
      .def("set_device", &set_device, py::kw_only(), py::arg("name"), py::arg("kind"), py::arg("driver"),
           py::arg("torch"), py::arg("cuda"), py::arg("clocks"))
      .def_property_readonly("device_name", [](const Profile& profile) { return profile.device.name; })
      .def_property_readonly("device_kind", [](const Profile& profile) { return profile.device.kind; })
      .def_readwrite("timer", &Profile::timer)
      .def_readwrite("timer_note", &Profile::timer_note)
      .def_readwrite("warm_up", &Profile::warm_up)
      .def_readwrite("repeats", &Profile::repeats)
      .def_readwrite("micro_batch_size", &Profile::micro_batch_size)
      .def_readwrite("slices", &Profile::slices)
      .def_readwrite("tokens", &Profile::tokens)
      .def_readwrite("sizes", &Profile::sizes)
      .def_readwrite("rank", &Profile::rank)
      .def(
          "set_zero",
          [](Profile& profile, int ranks, bool step) {
            profile.zero = {ranks, step};
          },
          py::arg("ranks"), py::arg("step"),
          "ZeRO divides the optimizer's state over so many data-parallel ranks, and also what the end of a "
          "step "
          "takes.")
      .def_property(
          "restrictions", [](const Profile& profile) { return to_rows(profile.restrictions); },
          [](Profile& profile, const std::vector<RestrictionRow>& rows) {
            profile.restrictions = from_rows(rows);
          })
      .def(
          "set_run",
          [](Profile& profile, std::vector<int> layers, int micro_batches, const Spread& step) {
            profile.run = {std::move(layers), micro_batches, step};
          },
          py::arg("layers"), py::arg("micro_batches"), py::arg("step") = Spread{},
          "What the training script runs without a plan: layers of each stage of DeepSpeed's partition, "
          "micro-batches of a step, and the times of its steps.")
      .def_readwrite("layers", &Profile::layers)
      .def_readwrite("operators", &Profile::operators)
      .def_readwrite("transfers", &Profile::transfers)
      .def_readwrite("completeness", &Profile::completeness)
      .def_property_readonly("noise", &noise_of)
      .def_property_readonly("noise_warning", &noise_warning)
      .def("json", &format_profile, "The bytes of the file.")
      .def("write", [](const Profile& profile, const std::string& path) {
        write_file(path, format_profile(profile));
      });
  m.def(
      "read_profile", [](const std::string& path) { return read_profile(path); }, py::arg("path"));
}

void bind_recorder(py::module_& m) {
  py::class_<OperatorRecorder>(m, "OperatorRecorder", py::dynamic_attr(),
                               "Records the operators that torch runs (operator_recorder.h).")
      .def(py::init([](int events_per_thread, int threads) {
             return std::make_unique<OperatorRecorder>(RecorderOptions{events_per_thread, threads});
           }),
           py::arg("events_per_thread") = RecorderOptions{}.events_per_thread,
           py::arg("threads") = RecorderOptions{}.threads)
      .def(
          "start",
          [](const py::object& self, bool flops, const py::object& timer) {
            self.cast<OperatorRecorder&>().start({flops, timer.cast<DeviceTimer*>()});
            self.attr("timer") = timer;  // kept alive until the next start, and no longer
          },
          py::arg("flops") = false, py::arg("timer") = py::none())
      .def("stop", &OperatorRecorder::stop)
      .def("clear", &OperatorRecorder::clear)
      .def("begin_pass", &OperatorRecorder::begin_pass, py::arg("layer"), py::arg("phase"),
           py::arg("micro_batch") = 0)
      .def("end_pass", &OperatorRecorder::end_pass)
      .def("rows", [](const OperatorRecorder& recorder) { return operator_rows(recorder); })
      .def("rows", [](const OperatorRecorder& recorder,
                      const cupti::DeviceTimes& times) { return operator_rows(recorder, times); })
      .def_property_readonly("dropped", &OperatorRecorder::dropped)
      .def_property_readonly("unfinished", &OperatorRecorder::unfinished)
      .def_property_readonly("out_of_range",
                             [](const OperatorRecorder& recorder) { return out_of_range(recorder); });
}

void bind_device_timer(py::module_& m) {
  py::class_<cupti::Losses>(m, "Losses", "What a session, or several, lost.")
      .def(py::init<>())
      .def("__iadd__", [](cupti::Losses& sum, const cupti::Losses& other) { return sum += other; })
      .def("completeness", &cupti::completeness);
  py::class_<cupti::DeviceTimes>(m, "DeviceTimes", "Of ranges, and what was lost (cupti/attribution.h).")
      .def_readonly("losses", &cupti::DeviceTimes::losses);
  py::register_exception<NoTimer>(m, "NoTimer");
  py::class_<DeviceTimer>(m, "DeviceTimer", "What times operators on a device (device/device_timer.h).")
      .def_property_readonly("name", &DeviceTimer::name)
      .def("flush", &DeviceTimer::flush)
      .def("stop", &DeviceTimer::stop);
  m.def(
      "choose_timer",
      [](const std::string& device, const std::string& profiler_running) {
        cupti::CollectorOptions options;
        options.profiler_running = profiler_running;
        TimerChoice choice = choose_timer(c10::Device(device).type(), options);
        return std::pair(std::move(choice.timer), choice.why_not_cupti);
      },
      py::arg("device"), py::arg("profiler_running") = "",
      "(timer, why it is not CUPTI): CUPTI where it can be had, else device events.");
}

void bind_memory(py::module_& m) {
  m.def("install_allocator", &CountingAllocator::install);
  m.def("remove_allocator", &CountingAllocator::remove);
  m.def("live_bytes", &live_bytes);
  m.def("peak_bytes", &peak_bytes);
  m.def("reset_peak", &reset_peak);
}

/// A log and, where devices are to report to it, the hook that they report to, on the thread that starts it.
class HookedLog {
 public:
  explicit HookedLog(std::size_t events) : log_({.events = events}) {}

  void start(bool devices) {
    log_.start();
    if (devices) hook_ = std::make_unique<AllocationHook>();
  }

  void stop() {
    hook_.reset();
    log_.stop();
  }

  /// (time, address, change, live)
  std::vector<std::tuple<Nanoseconds, std::uintptr_t, Bytes, Bytes>> events() const {
    std::vector<std::tuple<Nanoseconds, std::uintptr_t, Bytes, Bytes>> rows;
    for (const MemoryEvent& event : log_.events())
      rows.emplace_back(event.at, event.address, event.change, event.live);
    return rows;
  }

  std::int64_t dropped() const { return log_.dropped(); }

 private:
  MemoryLog log_;
  std::unique_ptr<AllocationHook> hook_;
};

void bind_memory_log(py::module_& m) {
  py::class_<HookedLog>(m, "MemoryLog", "Allocations and frees while it runs (memory_log.h).")
      .def(py::init<std::size_t>(), py::arg("events") = MemoryLog::Options{}.events)
      .def("start", &HookedLog::start, py::arg("devices"),
           "`devices`: note what their allocators give; else only the CPU's, as CountingAllocator counts it.")
      .def("stop", &HookedLog::stop)
      .def_property_readonly(
          "events", &HookedLog::events,
          "(nanoseconds of the steady clock, address, bytes or -bytes, live bytes) of each.")
      .def_property_readonly("dropped", &HookedLog::dropped);
}

/// A range as a Python context manager.
class Range {
 public:
  explicit Range(std::string name) : name_(std::move(name)) {}
  void enter() { range_.emplace(name_.c_str()); }
  void exit(const py::args&) { range_.reset(); }

 private:
  std::string name_;
  std::optional<NvtxRange> range_;
};

TransferCost fit(int source, int target, const std::vector<std::pair<Bytes, Nanoseconds>>& samples,
                 const std::string& backend) {
  if (samples.empty()) throw py::value_error("fit_link() needs at least one sample");
  std::vector<TransferSample> list;
  for (const auto& [bytes, time] : samples) {
    if (bytes < 0 || time <= 0)
      throw py::value_error("a transfer has at least 0 bytes and takes at least 1 ns");
    list.push_back({bytes, time});
  }
  TransferCost cost = fit_link(source, target, list);
  cost.backend = backend;
  return cost;
}

py::dict status_of_cupti() {
  const CuptiStatus status = cupti_status();
  py::dict result;
  result["usable"] = status.usable;
  result["version"] = status.version;
  result["library"] = status.library;
  result["detail"] = status.detail;
  return result;
}

std::int64_t now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

PYBIND11_MODULE(_profiler, m) {
  m.doc() = "What measures: clocks, allocator, operator recorder, fits, and the profile file.";
  m.attr("torch_version") = OSTINATO_TORCH_VERSION;
  py::register_exception<InputError>(m, "InputError", PyExc_ValueError);
  bind_backward_halves(m);
  bind_costs(m);
  bind_profile(m);
  bind_recorder(m);
  bind_memory(m);
  bind_memory_log(m);
  bind_device_timer(m);
  m.def("now", &now, "Nanoseconds of the steady clock.");
  m.def("spread_of", &spread_of, py::arg("samples"));
  m.def("fit_link", &fit, py::arg("source"), py::arg("target"), py::arg("samples"), py::arg("backend") = "",
        "latency + bytes / bandwidth, fitted to (bytes, nanoseconds) pairs (link_fit.h).");
  m.def("cupti_status", &status_of_cupti);
  py::class_<Range>(m, "Range", "with Range('3:Block F 7'): a range that NVTX tools show (nvtx_range.h).")
      .def(py::init<std::string>(), py::arg("name"))
      .def("__enter__", &Range::enter)
      .def("__exit__", &Range::exit);
}
