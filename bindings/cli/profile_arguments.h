// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `partition` and `plan` share: a profile, devices, micro-batches and the section [partition].

#include <string>
#include <vector>

#include "bindings/cli/command_line.h"
#include "bindings/core/options.h"
#include "search/partition/partition_options.h"
#include "search/profile/profile.h"

namespace ostinato::cli {

/// What --micro-batches may be left out for.
enum class MicroBatches { required, as_stages, as_the_sizes };

struct ProfileArguments {
  std::string profile;                ///< of `partition`
  std::vector<std::string> profiles;  ///< of `plan`
  std::string devices;                ///< a number, or a device file
  int micro_batches = 0;

  /// Declares PROFILE, --devices and --micro-batches. `plan` may be given several profiles: all but as_stages
  /// are its.
  ProfileArguments(CommandLine& line, MicroBatches micro_batches_are);

  /// On which devices. Reads the device file, and the profiles that it names. Throws UsageError and
  /// InputError.
  PartitionOptions on(const Options& options, const Io& io) const;
};

/// Of --devices and --device-memory alone: a number, or a device file and the profiles that it names.
PartitionOptions partition_devices(const std::string& devices, const std::string& memory, const Io& io);

/// A profile that `partition` or `plan` is given. Warns where its times say nothing (profile_noise.h).
Profile read_times(const std::string& path, Io& io);

/// Throws InputError with the profile's path where it cannot be planned like that (check_partition). Warns
/// where nothing says what transfers take.
void check_times(const Profile& profile, const PartitionOptions& options, const std::string& path, Io& io);

}  // namespace ostinato::cli
