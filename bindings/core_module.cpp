// SPDX-License-Identifier: Apache-2.0
#include "bindings/core_module.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/aside.h"
#include "bindings/core/partitioned.h"
#include "bindings/core/plan_summary.h"
#include "bindings/core/planned.h"
#include "bindings/core/requests.h"
#include "bindings/core/shape_request.h"
#include "bindings/core/usage_error.h"
#include "plugin/lowering/lower.h"
#include "plugin/lowering/program_text.h"
#include "search/checker/any_placement.h"
#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/mode_search.h"
#include "search/named/references.h"
#include "search/pareto.h"
#include "search/placement/placement_toml.h"
#include "search/plan/modes.h"
#include "search/plan/one_batch.h"
#include "search/plan/plan_json.h"
#include "search/plan/proved.h"
#include "search/plan/sizes_toml.h"
#include "search/profile/cluster_toml.h"
#include "search/profile/profile_json.h"
#include "search/profile/profile_noise.h"
#include "search/show/show.h"
#include "search/simulate/simulate.h"
#include "search/unequal/unequal.h"

namespace py = pybind11;

namespace ostinato {
namespace {

using Settings = std::map<std::string, std::string>;  ///< keyword to value, as it would be typed

/// A placement with the bytes of its file.
struct HeldPlacement {
  std::string text;
  PlacementFile file;
};
using PlacementRef = std::shared_ptr<const HeldPlacement>;

struct HeldPlan {
  PlacementRef written;
  Placement placement;  ///< as the plan runs it
  Plan plan;
};

struct HeldProfile {
  std::string text;
  Profile profile;
};

struct HeldDevices {
  std::string text;    ///< of the device file; "": devices that are alike
  std::string memory;  ///< of each of those
  PartitionOptions on;
};

PlacementRef held_placement(std::string text, const std::string& name) {
  PlacementFile file = parse_placement(text, name);
  return std::make_shared<const HeldPlacement>(std::move(text), std::move(file));
}

HeldPlan held_plan(PlacementRef written, Plan plan) {
  plan.placement_sha256 = written->file.sha256;
  Placement placement = as_planned(written->file.placement, plan);
  return {std::move(written), std::move(placement), std::move(plan)};
}

core::Options options_of(const std::vector<std::string>& sections, const Settings& settings) {
  core::Options options(sections);
  for (const auto& [key, value] : settings) options.set(key, value, core::dashed(key));
  return options;
}

std::string dumped(const Json& json) { return json.text(); }

template <typename Named>
std::vector<std::string> names_of(const std::vector<Named>& list) {
  std::vector<std::string> names;
  for (const Named& one : list) names.push_back(one.name);
  return names;
}

/// What tells, draws, replays or runs a plan asks for it here: it may have been read from a file.
const HeldPlan& checked(const HeldPlan& held) {
  refuse_unless_it_runs(held.plan, held.written->file.placement, "the plan", "its placement");
  return held;
}

void bind_placement(py::module_& m) {
  py::class_<HeldPlacement, std::shared_ptr<HeldPlacement>>(m, "Placement")
      .def_readonly("text", &HeldPlacement::text)
      .def_property_readonly("name", [](const HeldPlacement& p) { return p.file.placement.name; })
      .def_property_readonly("sha256", [](const HeldPlacement& p) { return p.file.sha256; })
      .def_property_readonly("devices",
                             [](const HeldPlacement& p) { return names_of(p.file.placement.devices); })
      .def_property_readonly("blocks",
                             [](const HeldPlacement& p) { return names_of(p.file.placement.blocks); });
  m.def(
      "placement",
      [](std::string text, const std::string& name) { return held_placement(std::move(text), name); },
      py::arg("text"), py::arg("name"));
  m.def("placement_file",
        [](const std::string& path) { return held_placement(read_file(path, kMaxPlacementBytes), path); });
  m.def(
      "shape",
      [](const std::string& shape, int devices, int chunks, int layers, bool inference,
         const Settings& settings) {
        core::ShapeRequest request;
        request.shape = shape;
        request.devices = devices;
        request.chunks = chunks;
        request.layers = layers;
        request.inference = inference;
        request.time_unit = "ns";  // of numbers without unit
        request.memory_unit = "B";
        const std::map<std::string, std::string*> places = {{"forward", &request.forward},
                                                            {"backward", &request.backward},
                                                            {"weight", &request.weight},
                                                            {"shard_forward", &request.shard_forward},
                                                            {"shard_backward", &request.shard_backward},
                                                            {"memory", &request.memory},
                                                            {"shard_memory", &request.shard_memory},
                                                            {"workspace", &request.workspace},
                                                            {"static", &request.static_memory},
                                                            {"capacity", &request.capacity},
                                                            {"latency", &request.latency},
                                                            {"bandwidth", &request.bandwidth},
                                                            {"bytes", &request.bytes}};
        for (const auto& [key, value] : settings) *places.at(key) = value;
        return held_placement(format_placement(core::shape_of(request)), shape);
      },
      py::arg("shape"), py::arg("devices"), py::arg("chunks"), py::arg("layers"), py::arg("inference"),
      py::arg("settings"));
}

using Columns = std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>,
                           std::vector<std::vector<int>>, std::vector<int>, std::vector<Nanoseconds>,
                           std::vector<Nanoseconds>>;

/// Block, stage, kind, devices, micro-batch, start, end, of every step.
Columns columns(const HeldPlan& held) {
  Columns columns;
  auto& [blocks, stages, kinds, devices, micro_batches, starts, ends] = columns;
  for (const ScheduledBlock& step : checked(held).plan.schedule) {
    const auto b = static_cast<std::size_t>(step.block);
    const Block& block = held.placement.blocks[b];
    const Nanoseconds time = held.plan.sizes.empty()
                                 ? block.time
                                 : held.plan.sizes[static_cast<std::size_t>(step.micro_batch)].times[b];
    blocks.push_back(block.name);
    stages.push_back(block.stage);
    kinds.emplace_back(to_string(block.kind));
    devices.push_back(block.devices);
    micro_batches.push_back(step.micro_batch);
    starts.push_back(step.start);
    ends.push_back(step.start + time);
  }
  return columns;
}

void bind_plan(py::module_& m) {
  py::class_<HeldPlan>(m, "Plan")
      .def_property_readonly("text", [](const HeldPlan& p) { return format_plan(p.plan, p.placement); })
      .def_property_readonly(
          "written", [](const HeldPlan& p) { return std::const_pointer_cast<HeldPlacement>(p.written); })
      .def_property_readonly("micro_batches", [](const HeldPlan& p) { return p.plan.micro_batches; })
      .def_property_readonly("objective", [](const HeldPlan& p) { return to_string(p.plan.objective); })
      .def_property_readonly("makespan", [](const HeldPlan& p) { return p.plan.makespan; })
      .def_property_readonly("lower_bound", [](const HeldPlan& p) { return bound_of(p.plan); })
      .def_property_readonly("optimal", [](const HeldPlan& p) { return is_optimal(p.plan); })
      .def_property_readonly("period", [](const HeldPlan& p) { return p.plan.steady_state.period; })
      .def_property_readonly("peak_memory", [](const HeldPlan& p) { return p.plan.peak_memory; })
      .def_property_readonly("cut_by_limit", [](const HeldPlan& p) { return p.plan.search.cut_by_limit; })
      .def("columns", &columns)
      .def("html",
           [](const HeldPlan& p) {
             const OneBatch drawn = as_drawn(checked(p).plan, p.placement);
             return show_html(drawn.plan, drawn.placement);
           })
      .def("summary",
           [](const HeldPlan& p) {
             return core::summary(checked(p).plan, p.placement, -1, p.written->file.model.step_memory);
           })
      .def("facts", [](const HeldPlan& p) {
        return dumped(
            core::summary_json(checked(p).plan, p.placement, -1, p.written->file.model.step_memory));
      });
  m.def("plan_file", [](const std::string& path, std::shared_ptr<HeldPlacement> placement) {
    Plan plan = read_plan(path, placement->file.placement, placement->file.sha256);
    return held_plan(std::move(placement), std::move(plan));
  });
  m.def("verify", [](const HeldPlan& held) {
    const py::gil_scoped_release release;
    const CheckResult result = check_plan(held.plan, held.written->file.placement);
    return std::pair(result.passed, result.failures);
  });
  m.def("verify_others", [](const HeldPlan& held, const HeldProfile& profile, const HeldDevices* devices) {
    const py::gil_scoped_release release;
    const PlacementFile& file = held.written->file;
    const Cluster cluster =
        devices == nullptr ? devices_of_claim(held.plan, file.placement) : cluster_of(devices->on);
    const CheckResult result = check_any_placement(held.plan, file, profile.profile, cluster);
    return std::pair(result.passed, result.failures);
  });
  m.def("simulate", [](const HeldPlan& held, const Settings& settings) {
    const SimulateOptions options = core::simulate_options(options_of({"simulate"}, settings));
    checked(held);
    const py::gil_scoped_release release;
    const OneBatch all = as_one_batch(held.plan, held.placement);
    return simulate(all.placement, all.plan.micro_batches, all.plan.schedule, options).makespans;
  });
  m.def("explain", [](const HeldPlan& held) {
    checked(held);
    return core::explained(held.plan, held.placement);
  });
  m.def("lower", [](const HeldPlan& held, bool transfers) {
    checked(held);
    const py::gil_scoped_release release;
    const Program program = lower(held.plan, held.written->file.placement);
    std::vector<std::string> rows;
    for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank)
      rows.push_back(format_rank(program, rank, transfers ? TextForm::transfers : TextForm::compute));
    return rows;
  });
}

void bind_profile(py::module_& m) {
  py::class_<HeldProfile>(m, "Profile")
      .def_readonly("text", &HeldProfile::text)
      .def_property_readonly("model", [](const HeldProfile& p) { return p.profile.model; })
      .def_property_readonly("noise", [](const HeldProfile& p) { return noise_of(p.profile); })
      .def_property_readonly("layers", [](const HeldProfile& p) { return names_of(p.profile.layers); });
  m.def(
      "profile",
      [](std::string text, const std::string& name) {
        Profile profile = parse_profile(text, name);
        return HeldProfile{std::move(text), std::move(profile)};
      },
      py::arg("text"), py::arg("name"));
  m.def("profile_file", [](const std::string& path) {
    std::string text = read_file(path, kMaxProfileBytes);
    Profile profile = parse_profile(text, path);
    return HeldProfile{std::move(text), std::move(profile)};
  });
  py::class_<HeldDevices>(m, "Devices")
      .def_readonly("text", &HeldDevices::text)
      .def_readonly("memory", &HeldDevices::memory)
      .def_property_readonly("count", [](const HeldDevices& d) { return d.on.devices; });
  m.def(
      "devices",
      [](int count, const std::string& memory) {
        return HeldDevices{"", memory, core::on_devices(count, memory)};
      },
      py::arg("count"), py::arg("memory"));
  m.def(
      "cluster",
      [](std::string text, const std::string& name) {
        PartitionOptions on = core::on_cluster(parse_cluster(text, name), "unlimited");
        return HeldDevices{std::move(text), "", std::move(on)};
      },
      py::arg("text"), py::arg("name"));
  m.def("cluster_file", [](const std::string& path) {
    std::string text = read_file(path, kMaxClusterBytes);
    PartitionOptions on = core::on_cluster(parse_cluster(text, path), "unlimited");
    return HeldDevices{std::move(text), "", std::move(on)};
  });
}

/// One micro-batch of its own size: as the placement says, times `size` / `of`, and the blocks that are named
/// with figures of their own. Throws InputError.
MicroBatch micro_batch(const Placement& placement, std::int64_t size, std::int64_t of,
                       const std::map<std::string, Nanoseconds>& times,
                       const std::map<std::string, Bytes>& memory) {
  if (size < 0 || of < 1) throw core::UsageError("a size is 0 or more, and that of the placement 1 or more");
  MicroBatch one = scaled(placement, size, of);
  const auto put = [&](const std::map<std::string, std::int64_t>& figures, std::vector<std::int64_t>& into) {
    for (const auto& [name, figure] : figures) {
      const int block = placement.find_block(name);
      if (block < 0) throw core::UsageError("the placement has no block '" + name + "'");
      into[static_cast<std::size_t>(block)] = figure;
    }
  };
  put(times, one.times);
  put(memory, one.memory);
  return one;
}

/// What search and pareto are asked for, checked.
struct Asked {
  SearchOptions search;
  bool choose;
  int points;

  Asked(const HeldPlacement& placement, const Settings& settings, int micro_batches) {
    const core::Options options = options_of({"search"}, settings);
    search = core::search_options(options, micro_batches);
    choose = options.flag("choose");
    points = static_cast<int>(options.integer("points"));
    core::check_size(placement.file.placement, micro_batches, "");
    if (choose) core::check_choices(placement.file.placement, "");
  }

  void join(const std::atomic<bool>* stop, Aside::Report report) {
    search.stop = stop;
    search.progress = std::move(report);
  }
};

void bind_search(py::module_& m) {
  py::class_<MicroBatch>(m, "MicroBatch")
      .def_readonly("times", &MicroBatch::times)
      .def_readonly("memory", &MicroBatch::memory)
      .def_readonly("workspace", &MicroBatch::workspace)
      .def_readonly("bytes", &MicroBatch::bytes);
  m.def("micro_batch",
        [](const HeldPlacement& placement, std::int64_t size, std::int64_t of,
           const std::map<std::string, Nanoseconds>& times, const std::map<std::string, Bytes>& memory) {
          return micro_batch(placement.file.placement, size, of, times, memory);
        });
  m.def("search", [](std::shared_ptr<HeldPlacement> placement, int micro_batches, const Settings& settings,
                     const py::object& progress) {
    Asked asked(*placement, settings, micro_batches);
    Aside aside(progress);
    Plan plan = aside.run([&](const std::atomic<bool>* stop, Aside::Report report) {
      asked.join(stop, std::move(report));
      const Placement& written = placement->file.placement;
      return asked.choose ? search_modes(written, asked.search) : search(written, asked.search);
    });
    return std::pair(held_plan(std::move(placement), std::move(plan)), aside.interrupted());
  });
  m.def("sizes_file", [](const HeldPlacement& placement, const std::string& path) {
    return read_sizes(path, placement.file.placement);
  });
  m.def("search_sizes", [](std::shared_ptr<HeldPlacement> placement, const std::vector<MicroBatch>& sizes,
                           const Settings& settings, int effort) {
    Asked asked(*placement, settings, 1);
    asked.search.effort = effort;
    Plan plan;
    {
      const py::gil_scoped_release release;
      plan = search_unequal(placement->file.placement, sizes, core::unequal_options(asked.search));
    }
    return held_plan(std::move(placement), std::move(plan));
  });
  m.def("pareto", [](const std::shared_ptr<HeldPlacement>& placement, int micro_batches,
                     const Settings& settings, const py::object& progress) {
    Asked asked(*placement, settings, micro_batches);
    Aside aside(progress);
    ParetoCurve curve = aside.run([&](const std::atomic<bool>* stop, Aside::Report report) {
      asked.join(stop, std::move(report));
      return pareto_memory(placement->file.placement, asked.search, asked.points, asked.choose);
    });
    std::vector<HeldPlan> plans;
    for (Plan& plan : curve.plans) plans.push_back(held_plan(placement, std::move(plan)));
    return std::pair(std::move(plans), aside.interrupted());
  });
  m.def("partition", [](const HeldProfile& profile, const HeldDevices& devices, int micro_batches,
                        const Settings& settings) {
    const core::Options options = options_of({"partition"}, settings);
    const PartitionOptions wanted = core::cut_options(options, devices.on, micro_batches, profile.profile);
    const core::Partitioned cut =
        core::partition_profile(profile.profile, wanted, options.text("stages") == "graph");
    return std::pair(held_placement(cut.text, "placement"),
                     dumped(core::partition_json(cut, profile.profile)));
  });
  m.def("plan_profile", [](const HeldProfile& profile, const HeldDevices& devices, int micro_batches,
                           const Settings& settings, const py::object& progress) {
    JointOptions wanted = core::joint_options(options_of({"plan", "partition", "search"}, settings),
                                              devices.on, micro_batches, profile.profile);
    Aside aside(progress);
    const core::Planned planned = aside.run([&](const std::atomic<bool>* stop, Aside::Report report) {
      wanted.search.stop = stop;
      wanted.search.progress = std::move(report);
      return core::plan_profile(profile.profile, wanted, {});
    });
    return std::tuple(held_plan(held_placement(planned.placement_text, "placement"), planned.plan),
                      dumped(core::planned_json(planned, profile.profile)),
                      core::planned_text(planned, profile.profile), aside.interrupted());
  });
}

/// The exception of ostinato.errors of that name.
template <typename... Arguments>
void raise(const char* name, const Arguments&... arguments) {
  const py::object type = py::module_::import("ostinato.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(arguments...).ptr());
}

/// A message may quote bytes of a file that are no text.
py::str said(const std::exception& error) {
  const std::string_view what = error.what();
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(what.data(), static_cast<py::ssize_t>(what.size()), "replace"));
}

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const core::UsageError& usage) {
    raise("UsageError", said(usage));
  } catch (const InputError& input) {
    raise("InputError", said(input), input.file(), input.line());
  } catch (const InfeasibleError& infeasible) {
    raise("InfeasibleError", said(infeasible));
  } catch (const UndecidedError& undecided) {
    raise("UndecidedError", said(undecided));
  }
}

}  // namespace

void bind_core(py::module_& m) {
  py::register_local_exception_translator(translate);
  bind_placement(m);
  bind_plan(m);
  bind_profile(m);
  bind_search(m);
  m.def("option_table", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> rows;  // section, key, default
    for (const core::OptionRow& row : core::option_table())
      rows.emplace_back(row.section, row.key, row.fallback);
    return rows;
  });
}

}  // namespace ostinato
