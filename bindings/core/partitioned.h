// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `ostinato partition` makes of a profile.
//
//   Options options({"partition"});
//   const PartitionOptions wanted = cut_options(options, on_devices(4, "40GiB"), 8, profile);
//   const Partitioned cut = partition_profile(profile, wanted, options.text("stages") == "graph");
//   write_file("placement.toml", cut.text);

#include <string>

#include "search/files/json.h"
#include "search/partition/partition_options.h"
#include "search/placement/placement.h"
#include "search/profile/profile.h"

namespace ostinato::core {

struct Partitioned {
  PartitionOptions options;
  StageCuts cuts;
  Placement placement;
  std::string text;   ///< of the placement file, with its model
  std::string scope;  ///< what the bound of the busiest device holds for; "": every way to cut
};

/// `over_graph`: stages over the graph of what layers read, else of the chain. Throws what cut_chain() and
/// cut_graph() throw, and InputError where a restriction of the profile forbids the placement, or its stages
/// do not fit the memory after all (check_memory()).
Partitioned partition_profile(const Profile& profile, const PartitionOptions& options, bool over_graph);

/// Stages with their layers and times, the busiest device and what is proved of it.
std::string partition_text(const Partitioned& cut);
Json partition_json(const Partitioned& cut, const Profile& profile);

/// Which stages keep their backward whole though backwards are split, and why, a line each; "" where none
/// does.
std::string whole_backward_lines(const Profile& profile, const PartitionOptions& options,
                                 const std::vector<Stage>& stages);

}  // namespace ostinato::core
