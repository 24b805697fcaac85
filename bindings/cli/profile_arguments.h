#pragma once
// What `partition` and `plan` share: a profile, devices, micro-batches and the section [partition].

#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/options.h"
#include "search/partition/partition_options.h"
#include "search/profile/profile.h"

namespace ostinato::cli {

struct ProfileArguments {
  std::string profile;
  std::string devices;  ///< a number, or a device file
  int micro_batches = 0;

  /// Declares PROFILE, --devices and --micro-batches.
  ProfileArguments(CommandLine& line, bool micro_batches_required);

  /// The partition options but for chunks, layout, sharded and recompute. Reads the device file, and the
  /// profiles that it names. Throws UsageError and InputError.
  PartitionOptions partition_options(const OptionSet& options) const;
};

/// Of --devices and --device-memory alone: a number, or a device file and the profiles that it names.
PartitionOptions partition_devices(const std::string& devices, const std::string& memory);

/// A profile that `partition` or `plan` is given. Warns where its times say nothing (profile_noise.h).
Profile read_times(const std::string& path, Io& io);

/// Which stages keep their backward whole though backwards are split, and why, a line each; "" where none
/// does.
std::string whole_backward_lines(const Profile& profile, const PartitionOptions& options,
                                 const std::vector<ModelStage>& stages);

/// Time of the busiest device for one micro-batch.
Nanoseconds busiest_device(const Placement& placement);

}  // namespace ostinato::cli
