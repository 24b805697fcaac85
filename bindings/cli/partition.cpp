#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/partition_graph.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/profile_arguments.h"
#include "bindings/cli/progress.h"
#include "search/file.h"
#include "search/partition/chain.h"
#include "search/partition/profile_json.h"
#include "search/placement_toml.h"
#include "search/quantity.h"

namespace ostinato::cli {
namespace {

/// "s0   device d0   layers 0-3   forward 1 ms   backward 2 ms".
std::string stage_lines(const Placement& placement) {
  std::string text;
  for (const StageLayers& stage : placement.stages) {
    Nanoseconds forward = 0;
    Nanoseconds backward = 0;
    int device = 0;
    for (const Block& block : placement.blocks) {
      if (block.stage != stage.name) continue;
      (block.kind == Kind::forward ? forward : backward) += block.time;
      device = block.devices.front();
    }
    text += fmt::format("  {:<5} on {:<6} layers {:>3} to {:>3}   forward {:>10}   backward {:>10}\n",
                        stage.name, placement.devices[device].name, stage.first_layer, stage.end_layer - 1,
                        format_time(forward), format_time(backward));
  }
  return text;
}

Json stages_json(const Placement& placement) {
  Json list = Json::array();
  for (const StageLayers& stage : placement.stages) {
    list.push_back(
        {{"name", stage.name}, {"first_layer", stage.first_layer}, {"end_layer", stage.end_layer}});
  }
  return list;
}

}  // namespace

int partition_command(const std::vector<std::string>& args, Io& io) {
  if (asks_for_graph(args)) return partition_graph_command(args, io);
  CommandLine line(
      "partition",
      "Cuts a profiled model into contiguous stages and puts them on devices, so that the "
      "busiest device is as\n"
      "little busy as possible and every device's memory suffices.\n"
      "An operator graph (GRAPH.csv) has other options: ostinato partition --strategy best --help",
      "partition profile.json --devices 4 --chunks 2 --layout wave --device-memory 40GiB "
      "--output placement.toml");
  std::string output;
  ProfileArguments arguments(line, false);
  OptionSet options(line, {"partition"});
  line.app.add_option("--output", output, "Placement file to write (TOML)")
      ->required()
      ->type_name("PLACEMENT");
  if (!line.parse(args, io)) return 0;
  options.resolve();
  PartitionOptions wanted = arguments.partition_options(options);
  wanted.chunks = static_cast<int>(std::min<std::int64_t>(options.integer("chunks"), 1 << 20));
  wanted.layout = options.text("layout") == "wave" ? ChunkLayout::wave : ChunkLayout::looped;
  if (wanted.micro_batches == 0) {
    const std::int64_t stages = static_cast<std::int64_t>(wanted.devices) * wanted.chunks;
    wanted.micro_batches = static_cast<int>(std::clamp<std::int64_t>(stages, 1, 1 << 20));
  }
  const Profile profile = read_profile(arguments.profile);
  check_can_write(output);
  const ChainCuts cuts = cut_chain(profile, wanted);
  const Placement placement = partition_chain(profile, wanted);
  write_file(output, format_placement(placement));
  if (line.json) {
    print_json({{"status", 0},
                {"output", output},
                {"busiest", cuts.busiest},
                {"lower_bound", cuts.lower_bound},
                {"in_flight", cuts.in_flight},
                {"stages", stages_json(placement)}},
               io);
    return 0;
  }
  io.out << fmt::format("{}: {} layers in {} stages on {} devices\n", placement.name, profile.layers.size(),
                        placement.stages.size(), wanted.devices)
         << stage_lines(placement)
         << fmt::format("  busiest device {} per micro-batch, {}\n", format_time(cuts.busiest),
                        cuts.exact() ? "optimal (proved)"
                                     : fmt::format("proven bound {}, gap {}", format_time(cuts.lower_bound),
                                                   gap(cuts.busiest, cuts.lower_bound)))
         << "  written to " << output << '\n';
  return 0;
}

}  // namespace ostinato::cli
