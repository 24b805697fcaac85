// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/shape_sketch.h"
#include "bindings/core/shape_request.h"
#include "bindings/core/usage_error.h"
#include "search/files/counted.h"
#include "search/files/file.h"
#include "search/placement/lanes.h"
#include "search/placement/placement_toml.h"
#include "search/placement/shape_stages.h"
#include "search/placement/shapes.h"

namespace ostinato::cli {
namespace {

/// The request and where it goes.
struct Typed : ShapeRequest {
  std::string output;
};

void declare(CommandLine& line, Typed& typed) {
  const auto add = [&](const char* name, std::string& value, const char* type, const std::string& help) {
    line.text(name, value, value.empty() ? help : help + " (default: " + value + ")").type_name(type);
  };
  line.text("shape", typed.shape, fmt::format("{}: see below", fmt::join(shape_names(), ", ")))
      .required()
      .type_name("SHAPE");
  line.whole_number("--devices", typed.devices, {1, 65'536}, "Number of devices (default: 4)").type_name("D");
  line.whole_number("--chunks", typed.chunks, {1, 65'536},
                    "Stages per device, for looped, wave and chains (default: 2)")
      .type_name("C");
  line.whole_number("--layers", typed.layers, {1, 1'000'000},
                    "Number of layers of the model, divided equally among the stages (a stage on all devices "
                    "has one); DeepSpeed needs it to run a plan")
      .type_name("L");
  add("--forward", typed.forward, "TIMES",
      "Forward time of a stage: 1.5ms, or without a unit in --time-unit; or a list with one value per "
      "device: 3,1,1,2");
  add("--backward", typed.backward, "TIMES",
      "Backward time of a stage (with --weight: of its input half); or a list");
  add("--weight", typed.weight, "TIMES",
      "Time of a backward's weight half; above 0, backwards are split; or a list");
  add("--shard-forward", typed.shard_forward, "TIME", "Forward time of a stage on all devices");
  add("--shard-backward", typed.shard_backward, "TIME", "Backward time of a stage on all devices");
  add("--memory", typed.memory, "AMOUNTS",
      "Memory held from each forward to the end of its backward; or a list");
  add("--shard-memory", typed.shard_memory, "AMOUNT",
      "The same for a stage on all devices, on each of them (default: 0; for k: as --memory)");
  add("--offload", typed.offload, "TIMES",
      "Time of copying what a stage keeps to the host, and of copying it back, beside computing; 0: it "
      "stays; or a list");
  add("--workspace", typed.workspace, "AMOUNTS", "Memory in use only while a block runs; or a list");
  add("--capacity", typed.capacity, "AMOUNTS", "Memory of each device; or a list");
  add("--static", typed.static_memory, "AMOUNTS",
      "Memory always in use: parameters, gradients, optimizer state; or a list");
  add("--latency", typed.latency, "TIME", "Latency of every transfer between two devices");
  add("--bandwidth", typed.bandwidth, "GB/s",
      "Bandwidth of every link, in 10^9 bytes per second; 0: unlimited");
  add("--bytes", typed.bytes, "AMOUNT", "Bytes sent from stage to stage, forward and backward");
  add("--time-unit", typed.time_unit, "UNIT", "Unit of times given without one: ns, us, ms or s");
  add("--memory-unit", typed.memory_unit, "UNIT", "Unit of amounts given without one: B, KiB, MiB or GiB");
  line.flag("--inference", typed.inference, "Forwards only");
  line.text("--output", typed.output, "File to write (default: standard output)").type_name("FILE");
}

/// The file would not hold what such an option asks for.
void refuse_unread(const CommandLine& line, const Typed& typed, const Placement& placement) {
  const auto refuse = [&](std::initializer_list<const char*> options, const std::string& why) {
    for (const char* option : options)
      if (line.given(option)) throw UsageError(fmt::format("{} would do nothing: {}", option, why));
  };
  if (!find_named_shape(typed.shape)->chunked)
    refuse({"--chunks"}, fmt::format("shape {} has the same stages at any number of chunks", typed.shape));
  if (std::ranges::none_of(placement.blocks, [](const Block& block) { return block.devices.size() > 1; }))
    refuse({"--shard-forward", "--shard-backward", "--shard-memory"},
           fmt::format("no stage of shape {} is on several devices", typed.shape));
  if (typed.inference)
    refuse({"--backward", "--weight", "--shard-backward", "--offload"},
           "with --inference there are no backwards");
}

}  // namespace

int placement_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "placement",
      "Writes a placement of a named shape (Tessel, figure 2, and more). Times and memory are per stage "
      "and micro-batch. Edit the file for anything that no option covers.",
      "placement m --devices 4 --forward 1ms --backward 3ms --capacity 40GiB --memory 2GiB --output m.toml");
  Typed typed;
  declare(line, typed);
  line.may_be_quiet();
  line.explain(all_shape_sketches());
  if (!line.parse(args, io)) return 0;
  const Placement placement = shape_of(typed);
  refuse_unread(line, typed, placement);
  if (!typed.output.empty()) check_can_write(typed.output);
  const std::string text = format_placement(placement);
  if (!typed.output.empty()) {
    write_file(typed.output, text);
  } else if (!line.json) {
    io.out << text;
  }
  if (line.json) {
    Json json = {{"status", 0},
                 {"name", placement.name},
                 {"devices", count_without_lanes(placement)},
                 {"blocks", placement.blocks.size()}};
    json[typed.output.empty() ? "placement" : "output"] = typed.output.empty() ? text : typed.output;
    print_json(json, io);
  } else if (!typed.output.empty()) {
    io.say(fmt::format("{}: {}, {} on {}\n", typed.output, placement.name,
                       counted(placement.blocks.size(), "block"),
                       counted(count_without_lanes(placement), "device")));
  }
  return 0;
}

}  // namespace ostinato::cli
