#include "bindings/cli/profile_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <vector>

#include "bindings/cli/numbers.h"
#include "search/partition/stages.h"
#include "search/placement/quantity.h"
#include "search/profile/cluster_toml.h"
#include "search/profile/profile_json.h"
#include "search/profile/profile_noise.h"

namespace ostinato::cli {
namespace {

std::optional<int> whole_number(const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Cluster cluster_from(const std::string& file) {
  Cluster cluster = read_cluster(file);
  for (DeviceKind& kind : cluster.kinds) {
    if (!kind.profile_path.empty())
      kind.profile = std::make_shared<const Profile>(read_profile(kind.profile_path));
  }
  return cluster;
}

Bytes device_memory(const std::string& text) {
  if (text == "unlimited") return kUnlimited;
  const auto bytes = parse_memory(text, "");
  if (!bytes)
    throw UsageError(fmt::format("--device-memory needs a number with a unit, like 40GiB, got \"{}\"", text));
  return *bytes;
}

}  // namespace

ProfileArguments::ProfileArguments(CommandLine& line, bool micro_batches_required) {
  line.app.add_option("profile", profile, "Profile file (JSON), from ostinato profile")
      ->required()
      ->type_name("PROFILE");
  line.app
      .add_option(
          "--devices", devices,
          "Devices in the pipeline: how many, a device file (TOML), or launcher: the ranks that torchrun, "
          "deepspeed or Slurm started this command on")
      ->required()
      ->type_name("D|FILE|launcher");
  CLI::Option* option = line.app.add_option(
      "--micro-batches", micro_batches,
      micro_batches_required ? "Micro-batches of a step"
                             : "Micro-batches of a step; bounds what is in flight (default: D * chunks)");
  option->required(micro_batches_required)
      ->transform(whole_number_check(1, kMostMicroBatches))
      ->type_name("N");
}

PartitionOptions ProfileArguments::partition_options(const OptionSet& options) const {
  PartitionOptions result = partition_devices(devices, options.text("device_memory"));
  result.micro_batches = micro_batches;
  result.split_backward = options.flag("split_backward");
  result.inference = options.flag("inference");
  if (result.inference && result.split_backward)
    throw UsageError("--inference has no backward for --split-backward");
  result.allow_incomplete = options.flag("allow_incomplete");
  return result;
}

PartitionOptions partition_devices(const std::string& devices, const std::string& memory) {
  PartitionOptions result;
  result.device_memory = device_memory(memory);
  if (const std::optional<int> number = whole_number(devices)) {
    if (*number < 1) throw UsageError(fmt::format("--devices needs at least 1, got {}", *number));
    result.devices = *number;
    return result;
  }
  if (devices == "launcher")
    throw UsageError("--devices launcher needs a launcher: torchrun -m ostinato ... --devices launcher");
  if (!devices.ends_with(".toml") && !std::filesystem::exists(devices)) {
    throw UsageError(fmt::format("--devices needs a number or a device file (TOML), got \"{}\"", devices));
  }
  if (result.device_memory != kUnlimited)
    throw UsageError("--device-memory does not go with a device file, whose kinds have their own memory");
  result.cluster = cluster_from(devices);
  result.devices = static_cast<int>(result.cluster->devices.size());
  return result;
}

Profile read_times(const std::string& path, Io& io) {
  Profile profile = read_profile(path);
  const std::string noise = noise_of(profile);
  if (!noise.empty())
    io.err << fmt::format("warning: {}: {}; profile again when the machine is quiet\n", path, noise);
  return profile;
}

Nanoseconds busiest_device(const Placement& placement) {
  std::vector<Nanoseconds> busy(placement.devices.size(), 0);
  for (const Block& block : placement.blocks) {
    for (const int d : block.devices) busy[d] += block.time;
  }
  return busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end());
}

std::string whole_backward_lines(const Profile& profile, const PartitionOptions& options,
                                 const std::vector<ModelStage>& stages) {
  std::string text;
  for (const WholeBackward& whole : whole_backwards(profile, options, stages)) {
    std::vector<std::string> names;
    for (const int l : whole.layers) names.push_back(profile.layers[static_cast<std::size_t>(l)].name);
    text += fmt::format("  the backward of s{} stays whole: the profile has no halves of {}\n", whole.stage,
                        fmt::join(names, ", "));
  }
  return text;
}

}  // namespace ostinato::cli
