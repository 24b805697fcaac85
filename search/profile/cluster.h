// SPDX-License-Identifier: Apache-2.0
#pragma once
// The devices that a model is partitioned over: their kinds, the nodes they sit in, the links between them.
//
//   Cluster cluster = read_cluster("two-nodes.toml");   // cluster_toml.h
//   Cluster plain = alike(4, Bytes{40} << 30);          // four devices without names or links

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "search/placement/placement.h"
#include "search/profile/profile.h"

namespace ostinato {

/// Speeds are in millionths of the profiled device's.
inline constexpr std::int64_t kUsualSpeed = 1'000'000;

struct DeviceKind {
  std::string name;
  Bytes memory = kUnlimited;
  std::int64_t speed = kUsualSpeed;        ///< > 0; every time of the profile is divided by it
  std::string profile_path;                ///< as written in the file; empty: it has none
  std::shared_ptr<const Profile> profile;  ///< measured on this kind; null: the main profile counts
};

struct Node {
  std::string name;
  std::optional<Link> link;  ///< between its devices; absent: Cluster::within
  int cores = 0;             ///< that its devices share (placement.h, Host); 0: one for each
};

struct ClusterDevice {
  int kind = 0;  ///< index into Cluster::kinds
  int node = 0;  ///< index into Cluster::nodes
  /// Nodes of the ranks that it stands for (degrees.h), where there are several. Those at one place of all
  /// devices are one pipeline, and all pipelines run alike: each waits for the slowest.
  std::vector<int> rank_nodes = {};

  std::vector<int> nodes() const { return rank_nodes.empty() ? std::vector{node} : rank_nodes; }
};

struct Cluster {
  std::string name;
  std::vector<DeviceKind> kinds;
  std::vector<Node> nodes;
  std::vector<ClusterDevice> devices;  ///< in the order in which a chain passes through them
  std::optional<Link> within,
      between;  ///< of one node, of different nodes; no link here or in a node: the profile's

  /// Nodes whose devices want more cores than there are, as a placement has them. `computing`: how much of
  /// its time, in millionths, a device needs a core while it runs a block (0: all); at half, two devices
  /// share one.
  std::vector<Host> hosts(std::int64_t computing = 0) const;

  /// These of its devices alone, in this order.
  Cluster only(const std::vector<int>& positions) const;
};

/// The one that takes longer for 1 MiB.
const Link& slower(const Link& a, const Link& b);

/// Devices of one kind, without links of their own.
Cluster alike(int devices, Bytes memory);

/// The links of a cluster: its own, else the profile's measured ones, else none (transfers are free).
class LinkTable {
 public:
  LinkTable() = default;
  LinkTable(const Profile& profile, const Cluster& cluster);

  const Link& between(int from, int to) const;
  bool free() const;  ///< no transfer takes time

  /// Writes default and overrides into a placement of the same devices.
  void write(Placement& placement) const;

 private:
  void measure(const Profile& profile, int devices);
  void describe(const Cluster& cluster);

  Link usual_;
  std::map<std::pair<int, int>, Link> others_;
};

/// The layers as a kind of device runs them: its own profile where it has one, else `profile`; times divided
/// by the speed, rounded up, and with the time to read a batch in the forwards of the first and the last.
/// Halves of a backward that take less than the whole take as long as it.
/// Throws InputError where its profile is of another model.
std::vector<LayerCost> layers_on(const DeviceKind& kind, const Profile& profile);

/// Where lanes run layers: those take no time of the unit that computes.
void leave_to_lanes(std::vector<LayerCost>& layers);

}  // namespace ostinato
