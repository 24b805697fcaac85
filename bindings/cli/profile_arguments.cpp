#include "bindings/cli/profile_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "search/quantity.h"

namespace ostinato::cli {

ProfileArguments::ProfileArguments(CommandLine& line, bool micro_batches_required) {
  line.app.add_option("profile", profile, "Profile file (JSON), from ostinato profile")
      ->required()
      ->type_name("PROFILE");
  line.app.add_option("--devices", devices, "Devices in the pipeline")->required()->type_name("D");
  CLI::Option* option = line.app.add_option(
      "--micro-batches", micro_batches,
      micro_batches_required ? "Micro-batches of a step"
                             : "Micro-batches of a step; bounds what is in flight (default: D * chunks)");
  option->required(micro_batches_required)->type_name("N");
}

PartitionOptions ProfileArguments::partition_options(const OptionSet& options) const {
  if (devices < 1) throw UsageError(fmt::format("--devices needs at least 1, got {}", devices));
  if (micro_batches < 0)
    throw UsageError(fmt::format("--micro-batches needs at least 1, got {}", micro_batches));
  PartitionOptions result;
  result.devices = devices;
  result.micro_batches = micro_batches;
  result.split_backward = options.flag("split_backward");
  result.allow_incomplete = options.flag("allow_incomplete");
  const std::string& memory = options.text("device_memory");
  if (memory != "unlimited") {
    const auto bytes = parse_memory(memory, "");
    if (!bytes)
      throw UsageError(
          fmt::format("--device-memory needs a number with a unit, like 40GiB, got \"{}\"", memory));
    result.device_memory = *bytes;
  }
  return result;
}

Nanoseconds busiest_device(const Placement& placement) {
  std::vector<Nanoseconds> busy(placement.devices.size(), 0);
  for (const Block& block : placement.blocks) {
    for (const int d : block.devices) busy[d] += block.time;
  }
  return busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end());
}

}  // namespace ostinato::cli
