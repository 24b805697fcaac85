#include <fmt/format.h>

#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_files.h"
#include "search/file.h"
#include "search/placement_toml.h"
#include "search/quantity.h"
#include "search/shapes.h"

namespace ostinato::cli {
namespace {

/// The options as typed, before units.
struct Typed {
  std::string shape, output;
  int devices = 4;
  int chunks = 2;
  std::string forward = "1", backward = "2", weight = "0", shard_forward = "1", shard_backward = "1";
  std::string memory = "1", capacity = "unlimited";
  std::string time_unit = "us", memory_unit = "MiB";
  bool inference = false;
};

void declare(CLI::App& app, Typed& typed) {
  const auto add = [&](const char* name, std::string& value, const char* type, const std::string& help) {
    app.add_option(name, value, help + " (default: " + value + ")")->type_name(type);
  };
  app.add_option("shape", typed.shape, "v, x, m, nn, k, looped or wave")->required()->type_name("SHAPE");
  app.add_option("--devices", typed.devices, "Number of devices (default: 4)")->type_name("D");
  app.add_option("--chunks", typed.chunks, "Stages per device, for looped and wave (default: 2)")
      ->type_name("C");
  add("--forward", typed.forward, "TIME", "Forward of one stage; 1.5ms, or without a unit in --time-unit");
  add("--backward", typed.backward, "TIME", "Backward of one stage; its input half where --weight is given");
  add("--weight", typed.weight, "TIME", "Weight half of a backward; above 0 the backward is split");
  add("--shard-forward", typed.shard_forward, "TIME", "Forward of a stage on all devices, for m, nn and k");
  add("--shard-backward", typed.shard_backward, "TIME", "Backward of a stage on all devices");
  add("--memory", typed.memory, "BYTES", "Kept from each forward to the end of its backward");
  add("--capacity", typed.capacity, "BYTES", "Memory of each device");
  add("--time-unit", typed.time_unit, "UNIT", "Of times without a unit: ns, us, ms or s");
  add("--memory-unit", typed.memory_unit, "UNIT", "Of amounts without a unit: B, KiB, MiB or GiB");
  app.add_flag("--inference", typed.inference, "Forwards only");
  app.add_option("--output", typed.output, "File to write (default: standard output)")->type_name("FILE");
}

ShapeOptions resolve(const Typed& typed) {
  check_choice("--time-unit", typed.time_unit, {"ns", "us", "ms", "s"});
  check_choice("--memory-unit", typed.memory_unit, {"B", "KiB", "MiB", "GiB"});
  const auto time = [&](const char* name, const std::string& text) {
    const auto value = parse_time(text, typed.time_unit);
    if (!value) throw UsageError(fmt::format("{} needs a time like 1.5 or 1.5ms, got \"{}\"", name, text));
    return *value;
  };
  const auto memory = [&](const char* name, const std::string& text) {
    const auto value = parse_memory(text, typed.memory_unit);
    if (!value) throw UsageError(fmt::format("{} needs an amount like 64 or 64MiB, got \"{}\"", name, text));
    return *value;
  };
  ShapeOptions options{.devices = typed.devices, .chunks = typed.chunks};
  options.forward = time("--forward", typed.forward);
  options.backward = time("--backward", typed.backward);
  options.weight = time("--weight", typed.weight);
  options.shard_forward = time("--shard-forward", typed.shard_forward);
  options.shard_backward = time("--shard-backward", typed.shard_backward);
  options.memory = memory("--memory", typed.memory);
  if (typed.capacity != "unlimited") options.capacity = memory("--capacity", typed.capacity);
  options.training = !typed.inference;
  return options;
}

}  // namespace

int placement_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "placement",
      "Writes a placement of a named shape (Tessel, figure 2): V, X, M, NN, K, or a chain with several\n"
      "stages per device, looped or as a wave.",
      "placement m --devices 4 --forward 1ms --backward 3ms --capacity 40GiB --memory 2GiB --output m.toml");
  Typed typed;
  declare(line.app, typed);
  if (!line.parse(args, io)) return 0;
  check_choice("shape", typed.shape, shape_names());
  const Placement placement = shape(typed.shape, resolve(typed));
  const std::string text = format_placement(placement);
  if (!typed.output.empty()) {
    write_file(typed.output, text);
  } else if (!line.json) {
    io.out << text;
  }
  if (line.json) {
    Json json = {{"status", 0},
                 {"name", placement.name},
                 {"devices", placement.devices.size()},
                 {"blocks", placement.blocks.size()}};
    json[typed.output.empty() ? "placement" : "output"] = typed.output.empty() ? text : typed.output;
    print_json(json, io);
  } else if (!typed.output.empty()) {
    io.out << fmt::format("{}: {}, {} blocks on {} devices\n", typed.output, placement.name,
                          placement.blocks.size(), placement.devices.size());
  }
  return 0;
}

}  // namespace ostinato::cli
