// SPDX-License-Identifier: Apache-2.0
#include "search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/option_set.h"
#include "bindings/cli/pareto_report.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/run_search.h"
#include "bindings/cli/sizes_arguments.h"
#include "bindings/cli/steady_state.h"
#include "bindings/core/numbers.h"
#include "bindings/core/plan_summary.h"
#include "bindings/core/requests.h"
#include "search/placement/placement_toml.h"
#include "search/plan/proved.h"
#include "search/plan/sizes_toml.h"
#include "search/shortest.h"

namespace ostinato::cli {
namespace {

/// What the command line asks for.
struct Wanted {
  std::string placement, output, pareto, options;
  SizesArguments sizes;
  int micro_batches = 0;
  bool steady_state = false, explain = false;
  SearchOptions search;
  int points = 0;
  bool json = false, strict = false;
};

/// What of the command line says which options are needed.
struct Given {
  bool steady_state, sizes;
};

void declare(CommandLine& line, Wanted& wanted, const Given& given) {
  const bool plan_wanted = !given.steady_state;
  line.text("placement", wanted.placement, "Placement file (TOML)").required().type_name("PLACEMENT");
  line.whole_number("--micro-batches", wanted.micro_batches, {1, kMostMicroBatches},
                    "Micro-batches per step (with --sizes: the number in its file)")
      .required(plan_wanted && !given.sizes)
      .type_name("N");
  line.text("--output", wanted.output, "Plan file to write (JSON); with --pareto: folder for the plans")
      .required(plan_wanted)
      .type_name("PLAN");
  line.flag("--steady-state", wanted.steady_state,
            "Report only the repeating part: its shortest period, the least memory at that period, and which "
            "of the two are proved; writes no plan");
  wanted.sizes.declare(line,
                       "Sizes or times of the step's micro-batches, where they differ (TOML); the search "
                       "also chooses their order");
  line.flag("--explain", wanted.explain,
            "Print the time that each search technique took and how far it improved the plan, and where the "
            "device that works most waits");
  line.text("--pareto", wanted.pareto,
            "memory: write plans for smaller and smaller memory limits, from the placement's memory down to "
            "the least in which any schedule fits, each with a proven bound")
      .type_name("AXIS");
  add_strict(line, wanted.strict);
  line.may_be_quiet();
}

void resolve(OptionSet& options, Wanted& wanted) {
  options.resolve();
  wanted.options = options.file();
  wanted.search = search_options(options, std::max(1, wanted.micro_batches));
  if (!wanted.pareto.empty()) check_choice("--pareto", wanted.pareto, {"memory"});
  wanted.points = static_cast<int>(options.integer("points"));
  if (wanted.search.method != "auto" && !wanted.pareto.empty())
    throw UsageError("--method cannot be combined with --pareto");
  if (wanted.search.robust_ppm > 0 && (!wanted.pareto.empty() || wanted.steady_state || wanted.sizes.given()))
    throw UsageError("--robust cannot be combined with --pareto, --steady-state or --sizes");
  if (wanted.steady_state &&
      (!wanted.output.empty() || !wanted.pareto.empty() || wanted.explain || wanted.search.method != "auto" ||
       wanted.search.objective != Objective::makespan))
    throw UsageError(
        "--steady-state cannot be combined with --output, --pareto, --explain, --method or --objective");
  wanted.sizes.check();
  if (wanted.sizes.given() &&
      (!wanted.pareto.empty() || wanted.steady_state || wanted.explain || wanted.search.method != "auto" ||
       wanted.search.objective != Objective::makespan))
    throw UsageError(
        "--sizes cannot be combined with --pareto, --steady-state, --explain, --method or --objective");
  if (wanted.explain && (!wanted.pareto.empty() || wanted.search.method != "auto"))
    throw UsageError("--explain cannot be combined with --pareto or --method");
}

/// Where the plan may not be the shortest and the search ended by itself.
std::string way_on(const Plan& plan, const SearchOptions& options) {
  if (is_optimal(plan) || plan.search.cut_by_limit || options.method != "auto" || !plan.sizes.empty())
    return "";
  return fmt::format("  to go on          --effort {} may shorten the plan, or prove it\n",
                     greater_effort(options.effort));
}

Searched search_plan(const Wanted& wanted, const SearchOptions& options, const PlacementFile& file,
                     const InterruptGuard& guard, Io& io) {
  if (wanted.sizes.given()) {
    const std::vector<MicroBatch> sizes = read_sizes(wanted.sizes.file, file.placement);
    wanted.sizes.check_count(wanted.micro_batches, sizes.size());
    return run_search_unequal(file.placement, sizes, options, wanted.sizes.keep_order, guard);
  }
  return run_search(file.placement, options, guard, io);
}

int search_once(const Wanted& wanted, PlacementFile& file, const CommandTime& time, Io& io) {
  check_apart({{"--output", wanted.output}}, {wanted.placement, wanted.sizes.file, wanted.options});
  check_can_write(wanted.output);
  const InterruptGuard guard;
  std::vector<Contribution> contributions;
  const auto steps = static_cast<std::int64_t>(file.placement.blocks.size()) * wanted.search.micro_batches;
  SearchOptions options = time.to_search(wanted.search, steps);
  if (wanted.explain) options.contributions = &contributions;
  Searched searched = search_plan(wanted, options, file, guard, io);
  Plan& plan = searched.plan;
  plan.placement_sha256 = file.sha256;
  const Placement& placement = file.placement;
  save({found_plan(wanted.output, plan, placement)}, io);
  const int status = to_int(status_of_cut(plan.search.cut_by_limit, wanted.strict, guard));
  const auto until = time.to_print(wanted.search);
  if (wanted.json) {
    Json json = {{"status", status}, {"output", wanted.output}};
    json.update(summary_json(plan, placement, searched.seconds, file.model, until));
    if (wanted.explain) json["techniques"] = contributions_json(contributions);
    if (wanted.explain && plan.objective == Objective::makespan)
      json["waiting"] = waiting_json(plan, placement);
    print_json(json, io);
  } else {
    io.say(summary(plan, placement, searched.seconds, file.model, until) + way_on(plan, wanted.search) +
           "  written to        " + wanted.output + "\n");
    if (wanted.explain) io.say(contributions_text(contributions));
    if (wanted.explain && plan.objective == Objective::makespan) io.say(waiting_text(plan, placement));
  }
  return status;
}

int search_curve(const Wanted& wanted, PlacementFile& file, Io& io) {
  make_folder(wanted.output);
  check_apart_from_curve(wanted.output, {wanted.placement, wanted.options});
  check_can_write(std::filesystem::path(wanted.output) / "plan.json");
  const InterruptGuard guard;
  SearchedCurve searched = run_pareto(file.placement, wanted.search, wanted.points, guard, io);
  const std::vector<std::string> paths = save_curve(wanted.output, searched.curve, file, io);
  const int status = to_int(status_of_cut(searched.curve.cut_by_limit, wanted.strict, guard));
  if (wanted.json) {
    Json json = {{"status", status}, {"output", wanted.output}};
    json.update(curve_json(searched, file, paths));
    print_json(json, io);
  } else {
    io.say(curve_text(searched, file, paths));
  }
  return status;
}

}  // namespace

int search_command(const std::vector<std::string>& args, Io& io) {
  const CommandTime time;
  CommandLine line("search",
                   "Searches for the best schedule of a placement: warm-up, repeating part and cool-down "
                   "together, with proven lower bounds. The plan is never worse than a known schedule that "
                   "fits the memory. Ctrl-C stops the search and writes the best plan so far.",
                   "search m.toml --micro-batches 32 --time-limit 30 --output m.json");
  Wanted wanted;
  declare(line, wanted, {typed(args, "--steady-state"), typed(args, "--sizes")});
  OptionSet options(line, {"search"});
  if (!line.parse(args, io)) return 0;
  if (line.given("--points") && wanted.pareto.empty())
    throw UsageError("--points needs --pareto: it is the number of points of the curve");
  resolve(options, wanted);
  wanted.json = line.json;
  PlacementFile file = read_placement(wanted.placement);
  check_size(file.placement, wanted.search.micro_batches, wanted.placement);
  if (wanted.steady_state) {
    const InterruptGuard guard;
    return report_steady_state(file.placement, wanted.search.time_limit_seconds, wanted.strict, guard,
                               line.json, io);
  }
  return wanted.pareto.empty() ? search_once(wanted, file, time, io) : search_curve(wanted, file, io);
}

}  // namespace ostinato::cli
