// SPDX-License-Identifier: Apache-2.0
// Plans for Python.

#include <tuple>
#include <utility>

#include "bindings/aside.h"
#include "bindings/core/plan_summary.h"
#include "bindings/core/requests.h"
#include "bindings/held.h"
#include "plugin/lowering/lower.h"
#include "plugin/lowering/program_text.h"
#include "search/checker/any_placement.h"
#include "search/checker/checker.h"
#include "search/plan/one_batch.h"
#include "search/plan/plan_json.h"
#include "search/plan/proved.h"
#include "search/show/show.h"
#include "search/simulate/simulate.h"
#include "search/unequal/with_sizes.h"

namespace py = pybind11;

namespace ostinato {

HeldPlan held_plan(PlacementRef of, Plan plan) {
  plan.placement_sha256 = of->file.sha256;
  return {std::move(of), std::move(plan)};
}

const HeldPlan& checked(const HeldPlan& held) {
  refuse_unless_it_runs(held.plan, held.placement(), "the plan", "its placement");
  return held;
}

namespace {

using Columns = std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>,
                           std::vector<std::vector<int>>, std::vector<int>, std::vector<Nanoseconds>,
                           std::vector<Nanoseconds>>;

/// Block, stage, kind, devices, micro-batch, start, end, of every step.
Columns columns(const HeldPlan& held) {
  Columns columns;
  auto& [blocks, stages, kinds, devices, micro_batches, starts, ends] = columns;
  for (const ScheduledBlock& step : checked(held).plan.schedule) {
    const std::size_t b = step.block;
    const Block& block = held.placement().blocks[b];
    const Nanoseconds time =
        held.plan.sizes.empty() ? block.time : held.plan.sizes[step.micro_batch].times[b];
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

}  // namespace

void bind_plan(py::module_& m) {
  py::class_<HeldPlan>(m, "Plan")
      .def_property_readonly("text", [](const HeldPlan& p) { return format_plan(p.plan, p.placement()); })
      .def_property_readonly("placement",
                             [](const HeldPlan& p) { return std::const_pointer_cast<HeldPlacement>(p.of); })
      .def_property_readonly("micro_batches", [](const HeldPlan& p) { return p.plan.micro_batches; })
      .def_property_readonly("objective", [](const HeldPlan& p) { return to_string(p.plan.objective); })
      .def_property_readonly("makespan", [](const HeldPlan& p) { return p.plan.makespan; })
      .def_property_readonly("predicted_makespan",
                             [](const HeldPlan& p) { return predicted_makespan(p.plan, p.placement()); })
      .def_property_readonly("peak_with_step",
                             [](const HeldPlan& p) {
                               return core::peaks_with_step(p.plan.peak_memory, p.placement(),
                                                            p.of->file.model.step_memory);
                             })
      .def_property_readonly("lower_bound", [](const HeldPlan& p) { return bound_of(p.plan); })
      .def_property_readonly("optimal", [](const HeldPlan& p) { return is_optimal(p.plan); })
      .def_property_readonly("period", [](const HeldPlan& p) { return p.plan.steady_state.period; })
      .def_property_readonly("peak_memory", [](const HeldPlan& p) { return p.plan.peak_memory; })
      .def_property_readonly("cut_by_limit", [](const HeldPlan& p) { return p.plan.search.cut_by_limit; })
      .def("columns", &columns)
      .def("html",
           [](const HeldPlan& p) {
             const OneBatch drawn = as_drawn(checked(p).plan, p.placement());
             return show_html(drawn.plan, drawn.placement);
           })
      .def("summary",
           [](const HeldPlan& p) {
             return core::summary(checked(p).plan, p.placement(), -1, p.of->file.model);
           })
      .def("facts",
           [](const HeldPlan& p) {
             return core::summary_json(checked(p).plan, p.placement(), -1, p.of->file.model).text();
           })
      .def(py::pickle(
          [](const HeldPlan& p) {
            return py::make_tuple(std::const_pointer_cast<HeldPlacement>(p.of),
                                  format_plan(p.plan, p.placement()));
          },
          [](const py::tuple& state) {
            auto of = state[0].cast<std::shared_ptr<HeldPlacement>>();
            Plan plan =
                parse_plan(state[1].cast<std::string>(), "pickle", of->file.placement, of->file.sha256);
            return held_plan(std::move(of), std::move(plan));
          }));
  m.def("plan_file", [](const std::string& path, std::shared_ptr<HeldPlacement> placement) {
    Plan plan = read_plan(path, placement->file.placement, placement->file.sha256);
    return held_plan(std::move(placement), std::move(plan));
  });
  m.def("placement_of", [](const std::string& plan) { return placement_of(plan).string(); });
  m.def("verify", [](const HeldPlan& held) {
    const py::gil_scoped_release release;
    const CheckResult result = check_plan(held.plan, held.placement());
    return std::pair(result.passed, result.failures);
  });
  m.def("verify_others", [](const HeldPlan& held, const HeldProfile& profile, const HeldDevices* devices) {
    const py::gil_scoped_release release;
    const PlacementFile& file = held.of->file;
    const Cluster cluster =
        devices == nullptr ? devices_of_claim(held.plan, file.placement) : cluster_of(devices->on);
    const CheckResult result = check_any_placement(held.plan, file, profile.profile, cluster);
    return std::pair(result.passed, result.failures);
  });
  m.def("simulate", [](const HeldPlan& held, const std::vector<MicroBatch>& sizes, const Settings& settings) {
    SimulateOptions options = core::simulate_options(options_of({"simulate"}, settings));
    checked(held);
    Aside aside{py::none()};
    std::vector<Nanoseconds> makespans = aside.run([&](const std::atomic<bool>* stop, const Aside::Report&) {
      options.stop = stop;
      const Plan replayed = sizes.empty() ? held.plan : with_sizes(held.plan, held.placement(), sizes);
      return simulate(replayed, held.placement(), options).makespans;
    });
    return std::pair(std::move(makespans), aside.interrupted());
  });
  m.def("nearest_rank", &nearest_rank);
  m.def("explain", [](const HeldPlan& held) {
    checked(held);
    return core::explained(held.plan, held.placement());
  });
  m.def("lower", [](const HeldPlan& held, bool transfers) {
    checked(held);
    const py::gil_scoped_release release;
    const Program program = lower(held.plan, held.placement());
    std::vector<std::string> rows;
    for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank)
      rows.push_back(format_rank(program, rank, transfers ? TextForm::transfers : TextForm::compute));
    return rows;
  });
}

}  // namespace ostinato
