// SPDX-License-Identifier: Apache-2.0
// What searches, for Python.

#include <atomic>
#include <tuple>
#include <utility>

#include "bindings/aside.h"
#include "bindings/core/partitioned.h"
#include "bindings/core/planned.h"
#include "bindings/core/repeating.h"
#include "bindings/core/requests.h"
#include "bindings/core/step_sizes.h"
#include "bindings/core/usage_error.h"
#include "bindings/held.h"
#include "search/files/error.h"
#include "search/named/references.h"
#include "search/pareto.h"
#include "search/partition/sized.h"
#include "search/plan/sizes_toml.h"
#include "search/unequal/unequal.h"

namespace py = pybind11;

namespace ostinato {

core::Options options_of(const std::vector<std::string>& sections, const Settings& settings) {
  core::Options options(sections);
  for (const auto& [key, value] : settings) options.set(key, value, core::dashed(key));
  return options;
}

namespace {

/// One micro-batch of a given size: as the placement says, times `size` / `of`, with separate figures for the
/// blocks named. Throws InputError.
MicroBatch micro_batch(const Placement& placement, std::int64_t size, std::int64_t of,
                       const std::map<std::string, Nanoseconds>& times,
                       const std::map<std::string, Bytes>& memory) {
  if (size < 0 || of < 1)
    throw core::UsageError("a size must be at least 0, and the placement's size at least 1");
  MicroBatch one = scaled(placement, size, of);
  const auto put = [&](const std::map<std::string, std::int64_t>& figures, std::vector<std::int64_t>& into) {
    for (const auto& [name, figure] : figures) {
      const int block = placement.find_block(name);
      if (block < 0) throw core::UsageError("the placement has no block '" + name + "'");
      into[block] = figure;
    }
  };
  put(times, one.times);
  put(memory, one.memory);
  return one;
}

/// What search and pareto are asked for, checked.
struct Asked {
  SearchOptions search;
  int points;

  Asked(const HeldPlacement& placement, const Settings& settings, int micro_batches) {
    const core::Options options = options_of({"search"}, settings);
    search = core::search_options(options, micro_batches);
    points = static_cast<int>(options.integer("points"));
    core::check_size(placement.file.placement, micro_batches, "");
  }

  void join(const std::atomic<bool>* stop, Aside::Report report) {
    search.stop = stop;
    search.progress = std::move(report);
  }
};

/// What `plan` is asked, in a form that its search can be run with.
struct AskedPlan {
  std::vector<Profile> profiles;
  std::vector<SlicedProfile> wanted;

  AskedPlan(const std::vector<HeldProfile>& held, const HeldDevices& devices, int micro_batches,
            const Settings& settings) {
    for (const HeldProfile& one : held) profiles.push_back(one.profile);
    wanted = core::sliced_options(options_of({"plan", "partition", "search"}, settings), devices.on,
                                  micro_batches, profiles);
  }

  void join(const std::atomic<bool>* stop, const Aside::Report& report) {
    for (SlicedProfile& one : wanted) {
      one.options.search.stop = stop;
      one.options.search.progress = report;
    }
  }
};

/// Plan, report, table, and whether Ctrl-C ended the search.
std::tuple<HeldPlan, std::string, std::string, bool> told(const core::Planned& planned, bool interrupted) {
  return {held_plan(held_placement(planned.placement_text, "placement"), planned.plan),
          core::planned_json(planned).text(), core::planned_text(planned), interrupted};
}

}  // namespace

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
      return search(placement->file.placement, asked.search);
    });
    return std::pair(held_plan(std::move(placement), std::move(plan)), aside.interrupted());
  });
  m.def("sizes_file", [](const HeldPlacement& placement, const std::string& path) {
    return read_sizes(path, placement.file.placement);
  });
  m.def("sized", [](const HeldPlacement& placement, const HeldProfile* profile,
                    const std::vector<double>& sizes, double of) {
    const Profile none;
    return sized(profile == nullptr ? none : profile->profile, placement.file.placement, sizes, of);
  });
  m.def("search_sizes", [](std::shared_ptr<HeldPlacement> placement, const std::vector<MicroBatch>& sizes,
                           const Settings& settings, bool keep_order) {
    const Asked asked(*placement, settings, 1);
    UnequalOptions wanted = core::unequal_options(asked.search);
    wanted.keep_order = keep_order;
    Aside aside{py::none()};
    Plan plan = aside.run([&](const std::atomic<bool>* stop, const Aside::Report&) {
      wanted.stop = stop;
      return search_unequal(placement->file.placement, sizes, wanted);
    });
    return std::pair(held_plan(std::move(placement), std::move(plan)), aside.interrupted());
  });
  m.def("pareto", [](const std::shared_ptr<HeldPlacement>& placement, int micro_batches,
                     const Settings& settings, const py::object& progress) {
    Asked asked(*placement, settings, micro_batches);
    Aside aside(progress);
    ParetoCurve curve = aside.run([&](const std::atomic<bool>* stop, Aside::Report report) {
      asked.join(stop, std::move(report));
      return pareto_memory(placement->file.placement, asked.search, asked.points);
    });
    std::vector<HeldPlan> plans;
    for (Plan& plan : curve.plans) plans.push_back(held_plan(placement, std::move(plan)));
    return std::pair(std::move(plans), aside.interrupted());
  });
  m.def("steady_state", [](const HeldPlacement& placement, double seconds) {
    Aside aside{py::none()};
    const core::Repeating found = aside.run([&](const std::atomic<bool>* stop, const Aside::Report&) {
      return core::repeating(placement.file.placement, seconds, [stop] { return stop->load(); });
    });
    if (found.none() && !aside.interrupted())
      throw UndecidedError("no repeating part was found within the time limit; raise time_limit");
    return std::pair(core::repeating_json(found.part).text(), aside.interrupted());
  });
  m.def("partition", [](const HeldProfile& profile, const HeldDevices& devices, int micro_batches,
                        const Settings& settings) {
    const core::Options options = options_of({"partition"}, settings);
    const PartitionOptions wanted = core::cut_options(options, devices.on, micro_batches, profile.profile);
    const core::Partitioned cut =
        core::partition_profile(profile.profile, wanted, options.text("stages") == "graph");
    return std::pair(held_placement(cut.text, "placement"),
                     core::partition_json(cut, profile.profile).text());
  });
  m.def("bare_sizes", [](const std::string& path) {
    BareSizes bare = read_bare_sizes(path);
    return std::pair(std::move(bare.sizes), bare.of);
  });
  m.def("plan_sizes", [](const std::vector<HeldProfile>& held, const HeldDevices& devices,
                         const std::vector<std::int64_t>& sizes, std::int64_t of, const Settings& settings,
                         bool keep_order, const py::object& progress) {
    AskedPlan asked(held, devices, static_cast<int>(sizes.size()), settings);
    Aside aside(progress);
    const core::Planned planned = aside.run([&](const std::atomic<bool>* stop, Aside::Report report) {
      asked.join(stop, std::move(report));
      UnequalOptions unequal = core::unequal_options(asked.wanted.front().options.search);
      unequal.keep_order = keep_order;
      return core::plan_sizes(asked.wanted, {sizes, of}, unequal, {});
    });
    return told(planned, aside.interrupted());
  });
  m.def("plan_profile", [](const std::vector<HeldProfile>& held, const HeldDevices& devices,
                           int micro_batches, const Settings& settings, const py::object& progress) {
    AskedPlan asked(held, devices, micro_batches, settings);
    Aside aside(progress);
    const core::Planned planned = aside.run([&](const std::atomic<bool>* stop, Aside::Report report) {
      asked.join(stop, std::move(report));
      return core::plan_profile(asked.wanted, {});
    });
    return told(planned, aside.interrupted());
  });
}

}  // namespace ostinato
