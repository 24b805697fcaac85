// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/pareto_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bindings/cli/plan_files.h"
#include "bindings/cli/progress.h"
#include "bindings/core/plan_summary.h"
#include "search/files/counted.h"
#include "search/files/wrapped.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"

namespace ostinato::cli {
namespace {

namespace fs = std::filesystem;

/// What is proved of this point: its objective against the bound within its memory.
std::string proof(const Plan& plan, const PlacementFile& file) {
  const Nanoseconds bound = plan.capacity->lower_bound;
  const Nanoseconds value = objective_value(plan, file.placement);
  return value == bound ? "optimal" : gap(value, bound);
}

std::string least_text(const ParetoCurve& curve) {
  return curve.least_proved
             ? fmt::format("No schedule fits in less than {} per device (proved).\n",
                           format_memory(curve.least))
             : fmt::format("No schedule was found in less than {} per device, but one may exist.\n",
                           format_memory(curve.least));
}

/// Where the optimizer's step takes more than a point of the curve.
std::string step_text(const ParetoCurve& curve, const PlacementFile& file) {
  const std::vector<Bytes> none(file.placement.devices.size(), 0);
  const std::vector<Bytes> takes = peaks_with_step(none, file.placement, file.model.step_memory);
  const auto most = std::ranges::max_element(takes);
  const auto is_less = [&](const Plan& plan) { return most != takes.end() && plan.capacity->memory < *most; };
  if (std::ranges::none_of(curve.plans, is_less)) return "";
  return fmt::format(
      "The optimizer's step takes {} on {} whatever the plan: a plan within less saves nothing there.\n",
      format_memory(*most), printable(file.placement.devices[most - takes.begin()].name));
}

/// By its name.
bool is_of_curve(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("memory-") && name.ends_with(".json");
}

/// What a longer search would look at.
std::string cut_text(const ParetoCurve& curve) {
  if (curve.untried)
    return fmt::format("The search was stopped early: no memory between {} and {} was tried.\n",
                       format_memory(curve.untried->above), format_memory(curve.untried->below));
  return curve.cut_by_limit ? "The search of some points that have a gap was stopped early.\n" : "";
}

Json untried_json(const ParetoCurve& curve) {
  if (!curve.untried) return nullptr;
  return {{"above", curve.untried->above}, {"below", curve.untried->below}};
}

}  // namespace

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  if (fs::exists(folder, error))
    throw InputError(folder.string(), 0,
                     "this is a file; --pareto needs a folder, into which it writes the plans");
  fs::create_directory(folder, error);
  if (error) throw InputError(folder.string(), 0, "the folder cannot be created: " + error.message());
}

void check_apart_from_curve(const fs::path& folder, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs)
    if (is_of_curve(input))
      check_apart({{"--output", (folder / fs::path(input).filename()).string()}}, {input});
}

std::vector<std::string> save_curve(const fs::path& folder, ParetoCurve& curve, const PlacementFile& file,
                                    Io& io) {
  std::vector<std::string> paths;
  for (Plan& plan : curve.plans) {
    plan.placement_sha256 = file.sha256;
    const fs::path path = folder / fmt::format("memory-{}.json", plan.capacity->memory);
    save({found_plan(path, plan, file.placement)}, io);
    paths.push_back(path.string());
  }
  std::error_code error;
  std::size_t older = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    older += is_of_curve(entry.path()) && std::ranges::find(paths, entry.path().string()) == paths.end();
  if (older > 0 && !io.quiet)
    io.err << fmt::format("ostinato search: {} also holds {} of an earlier curve\n",
                          printable(folder.string()), counted(older, "plan"));
  return paths;
}

std::string curve_text(const SearchedCurve& searched, const PlacementFile& file,
                       const std::vector<std::string>& paths) {
  const ParetoCurve& curve = searched.curve;
  const Plan& first = curve.plans.front();
  const bool makespan = first.objective == Objective::makespan;
  std::string text =
      fmt::format("{}: {} on {}\n", file.placement.name, counted(first.micro_batches, "micro-batch"),
                  counted(count_without_lanes(file.placement), "device"));
  text += fmt::format("{:>12}  {:>12}  {:>12}  {:>8}  {}{}\n", "memory", "makespan", "bound", "gap",
                      makespan ? "" : fmt::format("{:>12}  ", to_string(first.objective)), "plan");
  for (std::size_t i = 0; i < curve.plans.size(); ++i) {
    const Plan& plan = curve.plans[i];
    const std::string value =
        makespan ? "" : fmt::format("{:>12}  ", format_time(objective_value(plan, file.placement)));
    text += fmt::format("{:>12}  {:>12}  {:>12}  {:>8}  {}{}\n", format_memory(plan.capacity->memory),
                        format_time(plan.makespan), format_time(plan.capacity->lower_bound),
                        proof(plan, file), value, paths[i]);
  }
  text += "The bound holds for every plan within this memory per device.\n";
  return text + wrapped(step_text(curve, file)) + least_text(curve) + cut_text(curve) +
         fmt::format("searched {:.2f} s\n", searched.seconds);
}

Json curve_json(const SearchedCurve& searched, const PlacementFile& file,
                const std::vector<std::string>& paths) {
  Json points = Json::array();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const Plan& plan = searched.curve.plans[i];
    Json point = {{"memory", plan.capacity->memory},
                  {"proved_optimal", objective_value(plan, file.placement) == plan.capacity->lower_bound},
                  {"output", paths[i]}};
    point.update(summary_json(plan, file.placement, -1, file.model));
    points.push_back(std::move(point));
  }
  return {{"points", std::move(points)},
          {"least_memory", {{"memory", searched.curve.least}, {"proved", searched.curve.least_proved}}},
          {"cut_by_limit", searched.curve.cut_by_limit},
          {"untried_memory", untried_json(searched.curve)},
          {"seconds", searched.seconds}};
}

}  // namespace ostinato::cli
