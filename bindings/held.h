// SPDX-License-Identifier: Apache-2.0
#pragma once
// What Python holds of the core, and the parts of its module. Private to bindings.
//
//   HeldPlan plan = held_plan(held_placement(text, "placement"), search(...));

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bindings/core/options.h"
#include "search/files/json.h"
#include "search/partition/partition_options.h"
#include "search/placement/placement_toml.h"
#include "search/plan/plan.h"
#include "search/profile/profile.h"

namespace ostinato {

using Settings = std::map<std::string, std::string>;  ///< keyword to value, as it would be typed

/// A placement with the bytes of its file.
struct HeldPlacement {
  std::string text;
  PlacementFile file;
};
using PlacementRef = std::shared_ptr<const HeldPlacement>;

struct HeldPlan {
  PlacementRef of;
  Plan plan;

  const Placement& placement() const { return of->file.placement; }
};

struct HeldProfile {
  std::string text;
  Profile profile;
};

struct HeldDevices {
  std::string text;    ///< of the device file; "": devices that are alike
  std::string memory;  ///< of each of those
  PartitionOptions on;
};

PlacementRef held_placement(std::string text, const std::string& name);

/// The plan says which placement it is of.
HeldPlan held_plan(PlacementRef of, Plan plan);

/// What tells, draws, replays or runs a plan asks for it here: it may have been read from a file. Throws
/// InputError.
const HeldPlan& checked(const HeldPlan& held);

/// Throws UsageError.
core::Options options_of(const std::vector<std::string>& sections, const Settings& settings);

template <typename Named>
std::vector<std::string> names_of(const std::vector<Named>& list) {
  std::vector<std::string> names;
  for (const Named& one : list) names.push_back(one.name);
  return names;
}

void bind_placement(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_profile(pybind11::module_& m);
void bind_search(pybind11::module_& m);
void bind_graph(pybind11::module_& m);

}  // namespace ostinato
