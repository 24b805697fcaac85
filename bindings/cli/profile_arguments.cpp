// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/profile_arguments.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>

#include "bindings/core/numbers.h"
#include "bindings/core/requests.h"
#include "search/files/error.h"
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

}  // namespace

ProfileArguments::ProfileArguments(CommandLine& line, MicroBatches micro_batches_are) {
  const std::string what = "Profile file (JSON), from ostinato profile";
  (micro_batches_are == MicroBatches::as_stages
       ? line.text("profile", profile, what)
       : line.texts("profile", profiles, what + "; with tensor slicing, one for each number of slices"))
      .required()
      .type_name("PROFILE");
  line.text("--devices", devices,
            "Devices of the pipeline: their number, a device file (TOML), or launcher: the ranks on which "
            "torchrun, deepspeed or Slurm started this command")
      .required()
      .type_name("D|FILE|launcher");
  line.whole_number("--micro-batches", micro_batches, {1, kMostMicroBatches},
                    micro_batches_are == MicroBatches::as_stages
                        ? "Micro-batches per step; limits how many are in flight (default: D * chunks)"
                        : "Micro-batches per step (with --sizes: the number in its file)")
      .required(micro_batches_are == MicroBatches::required)
      .type_name("N");
}

PartitionOptions ProfileArguments::on(const Options& options, const Io& io) const {
  return partition_devices(devices, options.text("device_memory"), io);
}

PartitionOptions partition_devices(const std::string& devices, const std::string& memory, const Io& io) {
  if (const std::optional<int> number = whole_number(devices)) return on_devices(*number, memory);
  if (devices == "launcher") {
    if (io.launcher.empty())
      throw UsageError(
          "--devices launcher works only under a launcher: torchrun -m ostinato ... --devices launcher");
    return on_cluster(parse_cluster(io.launcher, "launcher"), memory);
  }
  if (!devices.ends_with(".toml") && !std::filesystem::exists(devices)) {
    throw UsageError(
        fmt::format("--devices needs a number, a device file (TOML) or launcher, got \"{}\"", devices));
  }
  return on_cluster(read_cluster(devices), memory);
}

Profile read_times(const std::string& path, Io& io) {
  Profile profile = read_profile(path);
  const std::string warning = noise_warning(profile);
  if (!warning.empty()) io.err << fmt::format("warning: {}: {}\n", path, warning);
  return profile;
}

void check_times(const Profile& profile, const PartitionOptions& options, const std::string& path, Io& io) {
  try {
    check_partition(profile, options);
  } catch (const InputError& error) {
    throw InputError(path, 0, error.what());
  }
  const Cluster cluster = cluster_of(options);
  if (options.transfers && cluster.devices.size() > 1 && LinkTable(profile, cluster).free())
    io.err << fmt::format(
        "warning: {}: transfers count as free: neither the profile nor a device file says what they take "
        "(torchrun ... -m ostinato.devices measures it)\n",
        path);
}

}  // namespace ostinato::cli
