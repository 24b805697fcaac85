#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/partition_graph.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/profile_arguments.h"
#include "bindings/cli/progress.h"
#include "search/files/file.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/joint.h"
#include "search/partition/stages.h"
#include "search/placement/placement_toml.h"
#include "search/placement/quantity.h"
#include "search/profile/profile_json.h"
#include "search/profile/profile_noise.h"

namespace ostinato::cli {
namespace {

/// "0 to 3", or "0, 2, 5".
std::string layers_text(const std::vector<int>& layers) {
  if (layers.back() - layers.front() + 1 == static_cast<int>(layers.size()))
    return fmt::format("{:>3} to {:>3}", layers.front(), layers.back());
  return fmt::format("{}", fmt::join(layers, ", "));
}

/// "s0   on d0   layers 0 to 3   forward 1 ms   backward 2 ms"; of an inference without the last.
std::string stage_lines(const Placement& placement, const std::vector<ModelStage>& stages) {
  std::string text;
  const bool trains = std::any_of(placement.blocks.begin(), placement.blocks.end(),
                                  [](const Block& block) { return block.kind != Kind::forward; });
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::string name = fmt::format("s{}", s);
    Nanoseconds forward = 0;
    Nanoseconds backward = 0;
    for (const Block& block : placement.blocks) {
      if (block.stage == name) (block.kind == Kind::forward ? forward : backward) += block.time;
    }
    const std::string where =
        stages[s].devices.size() > 1 ? "all" : placement.devices[stages[s].devices.front()].name;
    text += fmt::format("  {:<5} on {:<6} layers {}   forward {:>10}", name, where,
                        layers_text(stages[s].layers), format_time(forward));
    if (trains) text += fmt::format("   backward {:>10}", format_time(backward));
    text += stages[s].recompute ? "   recomputes\n" : "\n";
  }
  return text;
}

Json stages_json(const std::vector<ModelStage>& stages) {
  Json list = Json::array();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    list.push_back({{"name", fmt::format("s{}", s)},
                    {"layers", stages[s].layers},
                    {"devices", stages[s].devices},
                    {"recompute", stages[s].recompute}});
  }
  return list;
}

/// What the options say beside `arguments`; the layers that are sharded are looked up later.
PartitionOptions resolve(const ProfileArguments& arguments, const OptionSet& options) {
  PartitionOptions wanted = arguments.partition_options(options);
  wanted.chunks = static_cast<int>(options.integer("chunks"));
  wanted.layout = options.text("layout") == "wave" ? ChunkLayout::wave : ChunkLayout::looped;
  const std::string& recompute = options.text("recompute");
  if (recompute != "never") wanted.recompute = recompute == "always" ? Recompute::always : Recompute::needed;
  if (wanted.inference && wanted.recompute != Recompute::never)
    throw UsageError("--inference has no backward that --recompute would run a forward for");
  if (wanted.micro_batches == 0) {
    const std::int64_t stages = static_cast<std::int64_t>(wanted.devices) * wanted.chunks;
    wanted.micro_batches = static_cast<int>(std::clamp<std::int64_t>(stages, 1, 1 << 20));
  }
  if (options.text("stages") == "graph" && wanted.chunks > 1)
    throw UsageError("--stages graph has one stage per device: leave --chunks out");
  return wanted;
}

/// What the bound of the busiest device holds for, where that is not every way to cut.
std::string bound_scope(const StageCuts& cuts, const PartitionOptions& options, bool over_graph) {
  std::vector<std::string> scope;
  const int most = std::min<int>(options.micro_batches, static_cast<int>(cuts.stages.size()));
  if (cuts.in_flight < most) scope.push_back(fmt::format("{} micro-batches in flight", cuts.in_flight));
  if (over_graph) scope.emplace_back("connected stages");
  if (cluster_of(options).kinds.size() > 1 && (over_graph || options.chunks > 1))
    scope.emplace_back("devices in this order");
  return fmt::format("{}", fmt::join(scope, ", "));
}

std::string proof(const StageCuts& cuts, const std::string& scope) {
  std::string text = cuts.exact() ? "optimal (proved)"
                                  : fmt::format("proven bound {}, gap {}", format_time(cuts.lower_bound),
                                                gap(cuts.busiest, cuts.lower_bound));
  return scope.empty() ? text : text + " of " + scope;
}

void print(const StageCuts& cuts, const Placement& placement, const std::string& scope,
           const std::string& output, Io& io) {
  std::size_t layers = 0;
  for (const ModelStage& stage : cuts.stages) layers += stage.layers.size();
  io.out << fmt::format("{}: {} layers in {} stages on {} devices\n", placement.name, layers,
                        cuts.stages.size(), placement.devices.size())
         << stage_lines(placement, cuts.stages)
         << fmt::format("  busiest device {} per micro-batch, {}\n", format_time(cuts.busiest),
                        proof(cuts, scope));
  io.out << "  written to " << output << '\n';
}

Json whole_json(const std::vector<WholeBackward>& whole) {
  Json list = Json::array();
  for (const WholeBackward& one : whole) list.push_back({{"stage", one.stage}, {"layers", one.layers}});
  return list;
}

}  // namespace

int partition_command(const std::vector<std::string>& args, Io& io) {
  if (asks_for_graph(args)) return partition_graph_command(args, io);
  CommandLine line(
      "partition",
      "Cuts a profiled model into stages and puts them on devices, so that the busiest device is as\n"
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
  PartitionOptions wanted = resolve(arguments, options);
  const Profile profile = read_times(arguments.profile, io);
  wanted.sharded = find_layers(profile, options.text("shard"));
  check_can_write(output);
  const bool over_graph = options.text("stages") == "graph";
  const StageCuts cuts = over_graph ? cut_graph(profile, wanted) : cut_chain(profile, wanted);
  const Placement placement = place_stages(profile, wanted, cuts.stages);
  write_file(output, format_placement(placement) + format_model(facts_of(profile, wanted, cuts.stages)));
  const std::string scope = bound_scope(cuts, wanted, over_graph);
  if (line.json) {
    Json object = {{"status", 0},
                   {"output", output},
                   {"busiest", cuts.busiest},
                   {"lower_bound", cuts.lower_bound},
                   {"lower_bound_of", scope},
                   {"in_flight", cuts.in_flight},
                   {"stages", stages_json(cuts.stages)},
                   {"whole_backwards", whole_json(whole_backwards(profile, wanted, cuts.stages))}};
    if (const std::string noise = noise_of(profile); !noise.empty()) object["noise"] = noise;
    print_json(object, io);
  } else {
    print(cuts, placement, scope, output, io);
    io.out << whole_backward_lines(profile, wanted, cuts.stages);
  }
  return 0;
}

}  // namespace ostinato::cli
