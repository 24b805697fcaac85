// SPDX-License-Identifier: Apache-2.0
// The joint choice where devices share processors.

#include <gtest/gtest.h>

#include "search/named/named.h"
#include "search/partition/chain.h"
#include "search/partition/even_split.h"
#include "search/partition/joint.h"
#include "search/profile/cluster_toml.h"
#include "search/simulate/simulate.h"
#include "tests/search/checked.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

constexpr int kMicroBatches = 6;

Cluster sharing(int devices, int cores) {
  Cluster cluster = alike(devices, kUnlimited);
  cluster.nodes[0].cores = cores;
  return cluster;
}

JointOptions on(Cluster cluster) {
  JointOptions options = test::joint_options(static_cast<int>(cluster.devices.size()), kMicroBatches);
  options.restrictions.push_back({Rule::most_chunks, "", 3});
  options.fewer_devices = FewerDevices::none;
  options.partition.cluster = std::move(cluster);
  return options;
}

/// 1F1B's makespan with the sharing.
Nanoseconds usual(const Placement& placement) {
  const auto orders = named_schedule("1f1b", placement, kMicroBatches).orders;
  return replayed_makespan(placement, kMicroBatches, *earliest_starts(placement, kMicroBatches, *orders));
}

TEST(SharedCores, ThePlanIsNeverBehind1F1BThere) {
  std::mt19937 random(23);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    Profile profile = test::random_profile(random, 9);
    profile.rank = test::some_block_times(random);
    const JointOptions options = on(sharing(3, 1 + round % 2));
    const JointChoice choice = choose_plan(profile, options);
    const Candidate& best = choice.candidates[choice.winner];
    test::expect_holds(*best.plan, *best.placement);
    ASSERT_EQ(best.placement->hosts.size(), 1u);
    EXPECT_EQ(best.value(), replayed_makespan(*best.placement, kMicroBatches, best.plan->schedule));
    EXPECT_LE(best.value(), usual(even_split(profile, options.partition)));
    EXPECT_LE(best.value(), usual(partition_chain(profile, options.partition)));
    EXPECT_GE(best.value(), shared_work(*best.placement, kMicroBatches));
    for (const Candidate& candidate : choice.candidates) {
      if (candidate.plan) {
        EXPECT_LE(best.value(), candidate.value() + candidate.value() / 100) << candidate.name;
      } else if (candidate.no_shorter && candidate.bound > 0) {
        EXPECT_GE(candidate.bound + candidate.bound / 100, best.value()) << candidate.name;
      }
    }
  }
}

TEST(SharedCores, AProcessorForEachDeviceChangesNothing) {
  std::mt19937 random(29);
  const Profile profile = test::random_profile(random, 8);
  const auto plan_on = [&](int cores) {
    const JointChoice choice = choose_plan(profile, on(sharing(3, cores)));
    return *choice.candidates[choice.winner].plan;
  };
  EXPECT_EQ(plan_on(3).makespan, plan_on(0).makespan);
  EXPECT_EQ(plan_on(7).makespan, plan_on(0).makespan);
}

constexpr const char* kDevices = R"(format = "ostinato-devices/1"
[[kinds]]
name = "cpu"
[[nodes]]
kind = "cpu"
devices = 4
cores = 2
count = 2
[[nodes]]
kind = "cpu"
devices = 2
)";

TEST(SharedCores, ADeviceFileSaysHowMany) {
  const Cluster cluster = parse_cluster(kDevices, "d.toml");
  const std::vector<Host> hosts = cluster.hosts();
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[1].devices, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(hosts[1].cores, 2);
  EXPECT_EQ(cluster.only({0, 1, 2, 3, 4, 5}).hosts().size(), 1u);  // two devices have a core each
}

}  // namespace
}  // namespace ostinato
