#include "search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/options.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/plan_summary.h"
#include "bindings/cli/run_search.h"
#include "bindings/cli/steady_state.h"
#include "search/placement_toml.h"

namespace ostinato::cli {

int search_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "search",
      "Searches the schedule of a placement: the repeating part, warm-up and cool-down together, with "
      "proven\n"
      "lower bounds. Never worse than a named schedule that fits. Ctrl-C writes the best plan so far.",
      "search m.toml --micro-batches 32 --time-limit 30 --output m.json");
  std::string placement_path, output;
  int micro_batches = 0;
  line.app.add_option("placement", placement_path, "Placement file (TOML)")
      ->required()
      ->type_name("PLACEMENT");
  bool steady_state = false;
  const bool plan_wanted = std::find(args.begin(), args.end(), "--steady-state") == args.end();
  line.app.add_option("--micro-batches", micro_batches, "Micro-batches of a step")
      ->required(plan_wanted)
      ->type_name("N");
  line.app.add_option("--output", output, "Plan file to write (JSON)")
      ->required(plan_wanted)
      ->type_name("PLAN");
  line.app.add_flag("--steady-state", steady_state,
                    "Only report the repeating part: its least period, the least memory at that period, and "
                    "what of it is proved; no plan");
  OptionSet options(line, {"search"});
  if (!line.parse(args, io)) return 0;
  options.resolve();
  const SearchOptions wanted = search_options(options, plan_wanted ? micro_batches : 1);
  const PlacementFile file = read_placement(placement_path);
  const InterruptGuard guard;
  if (steady_state) {
    return report_steady_state(file.placement, wanted.time_limit_seconds, guard, line.json, io);
  }
  check_can_write(output);
  Searched searched = run_search(file.placement, wanted, guard, "", io);
  searched.plan.placement_sha256 = file.sha256;
  save_plan(output, searched.plan, file.placement, io);
  const int status = to_int(status_of(searched.plan, guard));
  if (line.json) {
    Json json = {{"status", status}, {"output", output}};
    json.update(summary_json(searched.plan, file.placement, searched.seconds));
    print_json(json, io);
  } else {
    io.out << summary(searched.plan, file.placement, searched.seconds) << "  written to        " << output
           << '\n';
  }
  return status;
}

}  // namespace ostinato::cli
