// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/named_plan.h"
#include "bindings/cli/plan_files.h"
#include "bindings/core/plan_summary.h"
#include "bindings/core/usage_error.h"
#include "search/checker/checker.h"
#include "search/files/printable.h"
#include "search/files/value.h"
#include "search/files/wrapped.h"
#include "search/named/named.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"
#include "search/plan/one_batch.h"
#include "search/plan/plan_json.h"
#include "search/simulate/simulate.h"

namespace ostinato::cli {
namespace {

/// Most devices whose memory gets its own row.
constexpr std::int64_t kMostDeviceRows = 16;

struct Side {
  std::string path, placement_path;
  Plan plan;
  Placement placement;  ///< with the sizes that the plan takes
  ModelFacts model = {};
  /// The makespan; on processors that devices share, that of a replay.
  Nanoseconds takes = predicted_makespan(plan, placement);
  /// By device, in the schedule and in the optimizer's step.
  std::vector<Bytes> peaks = core::peaks_with_step(plan.peak_memory, placement, model.step_memory);

  std::int64_t devices() const { return count_without_lanes(placement); }

  /// Summed over devices, without their lanes.
  __int128 busy() const {
    __int128 busy = 0;
    for (const ScheduledBlock& step : plan.schedule) {
      const Block& block = placement.blocks[step.block];
      const auto computing =
          std::ranges::count_if(block.devices, [&](int d) { return placement.devices[d].lane_of < 0; });
      busy += static_cast<__int128>(block.time) * computing;
    }
    return busy;
  }

  /// Share of the devices' time until the makespan in which they run nothing.
  double bubble() const {
    const __int128 all = static_cast<__int128>(plan.makespan) * devices();
    return all > 0 ? 1 - static_cast<double>(busy()) / static_cast<double>(all) : 0;
  }
};

Side read_side(const std::string& path, const std::vector<std::string>& placements) {
  const std::string placement = placement_of(path, placements).string();
  auto [file, plan] = read_plan_and_placement(path, placement);
  refuse_unless_it_runs(plan, file.placement, path, placement);
  auto [blocks, steps] = as_drawn(plan, file.placement);
  return {path, placement, std::move(steps), std::move(blocks), std::move(file.model)};
}

/// A known schedule of the placement of `first`.
Side known_side(const std::string& name, const Side& first) {
  if (!is_schedule(name))
    throw UsageError(
        fmt::format("--against {}: not a known schedule ({}); give a plan's file without --against{}",
                    printable(name), schedule_names(), did_you_mean(name, named_schedules())));
  if (!first.plan.sizes.empty())
    throw UsageError(fmt::format(
        "--against {}: a plan with unequal micro-batches compares only with another plan's file", name));
  NamedPlan known = named_plan(name, first.plan, first.placement);
  return {known.name, first.placement_path, std::move(known.plan), first.placement, first.model};
}

using Cell = std::function<std::string(const Side&)>;

/// Names in the first column, a plan in each of the rest.
class Table {
 public:
  explicit Table(const std::vector<Side>& sides) : sides_(sides) {}

  void add(const std::string& name, const Cell& cell) {
    std::vector<std::string> row = {name};
    for (const Side& side : sides_) row.push_back(cell(side));
    rows_.push_back(std::move(row));
  }

  std::size_t width() const {
    std::size_t sum = 2 * sides_.size();
    for (const std::size_t width : widths()) sum += width;
    return sum;
  }

  std::string text() const {
    const std::vector<std::size_t> widths = this->widths();
    std::string text;
    for (const auto& row : rows_) {
      text += fmt::format("{:<{}}", row[0], widths[0]);
      for (std::size_t c = 1; c < row.size(); ++c) text += fmt::format("  {:>{}}", row[c], widths[c]);
      text += '\n';
    }
    return text;
  }

 private:
  std::vector<std::size_t> widths() const {
    std::vector<std::size_t> widths(sides_.size() + 1, 0);
    for (const auto& row : rows_)
      for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
    return widths;
  }

  const std::vector<Side>& sides_;
  std::vector<std::vector<std::string>> rows_;
};

double ratio(const Side& side, const Side& first) {
  return first.takes > 0 ? static_cast<double>(side.takes) / static_cast<double>(first.takes) : 0;
}

std::string bound_text(const Side& side) {
  if (side.plan.lower_bound.makespan <= 0) return "none";
  return format_time(side.plan.lower_bound.makespan) + (side.plan.optimal.makespan ? ", met" : "");
}

/// Of one micro-batch, so that repetends of several compare with those of one.
std::string period_text(const Side& side) {
  const SteadyState& steady = side.plan.steady_state;
  return steady.count == 0 ? "none" : format_time(steady.period / steady.unroll);
}

std::string memory_text(const Side& side, std::int64_t device) {
  return device < side.devices() ? format_memory(side.peaks[device]) : "-";
}

/// Adds the figures to a table that has its head.
void add_figures(Table& table, const std::vector<Side>& sides) {
  table.add("devices", [](const Side& s) { return fmt::format("{}", s.devices()); });
  table.add("micro-batches", [](const Side& s) { return fmt::format("{}", s.plan.micro_batches); });
  table.add("makespan", [](const Side& s) { return format_time(s.plan.makespan); });
  if (std::ranges::any_of(sides, [](const Side& s) { return !s.placement.hosts.empty(); }))
    table.add("  on shared cores", [](const Side& s) { return format_time(s.takes); });
  table.add("  vs. the first", [&](const Side& s) { return fmt::format("{:.3f}", ratio(s, sides.front())); });
  table.add("  per micro-batch", [](const Side& s) { return format_time(s.takes / s.plan.micro_batches); });
  // Of two profiles of one model this differs, and then the makespans say little.
  table.add("work per micro-batch", [](const Side& s) {
    return format_time(static_cast<Nanoseconds>(s.busy() / s.plan.micro_batches));
  });
  table.add("proven bound", bound_text);
  table.add("period per micro-batch", period_text);
  table.add("bubble", [](const Side& s) { return fmt::format("{:.1f} %", 100 * s.bubble()); });
  table.add("peak memory", [](const Side& s) { return format_memory(std::ranges::max(s.peaks)); });
  std::int64_t devices = 0;
  for (const Side& side : sides) devices = std::max(devices, side.devices());
  for (std::int64_t d = 0; d < devices && devices <= kMostDeviceRows; ++d)
    table.add(fmt::format("  device {}", d), [d](const Side& s) { return memory_text(s, d); });
}

/// Where files and placements have names that are too long for columns, those are numbered above the table.
std::string text_of(const std::vector<Side>& sides) {
  Table named(sides);
  named.add("", [](const Side& s) { return printable(s.path); });
  named.add("placement", [](const Side& s) { return printable(s.placement.name); });
  add_figures(named, sides);
  if (named.width() <= kColumns) return named.text();
  std::string text;
  for (std::size_t i = 0; i < sides.size(); ++i)
    text += wrapped(fmt::format("plan {}  {}, placement {}\n", i + 1, printable(sides[i].path),
                                printable(sides[i].placement.name)),
                    8);
  Table numbered(sides);
  numbered.add("", [&](const Side& s) { return fmt::format("plan {}", &s - sides.data() + 1); });
  add_figures(numbered, sides);
  return text + numbered.text();
}

Json json_of(const Side& side, const Side& first) {
  const Plan& plan = side.plan;
  Json json = {
      {"plan", side.path},
      {"placement", side.placement.name},
      {"placement_file", side.placement_path},
      {"devices", side.devices()},
      {"micro_batches", plan.micro_batches},
      {"makespan", plan.makespan},
      {"ratio", ratio(side, first)},
      {"work", static_cast<Nanoseconds>(side.busy() / plan.micro_batches)},
      {"lower_bound", {{"makespan", plan.lower_bound.makespan}, {"period", plan.lower_bound.period}}},
      {"optimal", {{"makespan", plan.optimal.makespan}, {"period", plan.optimal.period}}},
      {"period", plan.steady_state.period},
      {"unroll", plan.steady_state.unroll},
      {"bubble", side.bubble()},
      {"peak_memory", plan.peak_memory},
      {"peak_with_step", side.peaks}};
  if (!side.placement.hosts.empty()) json["shared_makespan"] = side.takes;
  return json;
}

}  // namespace

int compare_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "compare",
      "Compares plans side by side. Checks each plan, and finds its placement by digest in its folder.",
      "compare plan.json other/plan.json --against 1f1b");
  std::vector<std::string> plans, placements, known;
  line.texts("plan", plans, "Plan files (JSON), two or more, or one with --against")
      .required()
      .type_name("PLAN");
  line.texts("--placement", placements, "A placement (TOML) in another folder; repeatable").type_name("FILE");
  line.texts("--against", known,
             "A known schedule of the first plan's placement, such as 1f1b (with several chunks per device: "
             "interleaved-1f1b); repeatable")
      .type_name("SCHEDULE");
  if (!line.parse(args, io)) return 0;
  if (plans.size() + known.size() < 2) throw UsageError("give at least two plans, or one and --against 1f1b");
  std::vector<Side> sides;
  for (const std::string& path : plans) {
    sides.push_back(read_side(path, placements));
    check_same_model(sides.front().model, sides.back().model, sides.back().placement_path);
  }
  for (const std::string& name : known) sides.push_back(known_side(name, sides.front()));
  if (!line.json) {
    io.out << text_of(sides);
    return 0;
  }
  Json list = Json::array();
  for (const Side& side : sides) list.push_back(json_of(side, sides.front()));
  print_json({{"status", 0}, {"plans", std::move(list)}}, io);
  return 0;
}

}  // namespace ostinato::cli
