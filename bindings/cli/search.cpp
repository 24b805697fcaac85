#include "search/search.h"

#include <fmt/format.h>

#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/options.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/plan_summary.h"
#include "bindings/cli/run_search.h"
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
  line.app.add_option("--micro-batches", micro_batches, "Micro-batches of a step")
      ->required()
      ->type_name("N");
  line.app.add_option("--output", output, "Plan file to write (JSON)")->required()->type_name("PLAN");
  OptionSet options(line, {"search"});
  if (!line.parse(args, io)) return 0;
  options.resolve();
  const SearchOptions wanted = search_options(options, micro_batches);
  const PlacementFile file = read_placement(placement_path);
  check_can_write(output);

  const InterruptGuard guard;
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
