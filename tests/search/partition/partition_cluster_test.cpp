// SPDX-License-Identifier: Apache-2.0
// Device files: what they say, and what is refused with its line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/profile/cluster_toml.h"
#include "tests/search/partition/partition_profiles.h"
#include "tests/support/refusal.h"

namespace ostinato {
namespace {

constexpr const char* kTwoKinds = R"(format = "ostinato-devices/1"
name = "two-kinds"
memory_unit = "GiB"

[within]
latency = 3
bandwidth = 300

[between]
latency = 15
bandwidth = 25

[[kinds]]
name = "big"
memory = 140

[[kinds]]
name = "small"
memory = 40
speed = 0.5

[[nodes]]
kind = "big"
devices = 2

[[nodes]]
name = "old"
kind = "small"
devices = 3
count = 2
bandwidth = 100
)";

TEST(Cluster, ReadsKindsNodesAndLinks) {
  const Cluster cluster = parse_cluster(kTwoKinds, "d.toml");
  EXPECT_EQ(cluster.name, "two-kinds");
  ASSERT_EQ(cluster.devices.size(), 8u);
  EXPECT_EQ(cluster.kinds[1].memory, Bytes{40} << 30);
  EXPECT_EQ(cluster.kinds[1].speed, 500'000);
  EXPECT_EQ(cluster.devices[2].kind, 1);
  EXPECT_EQ(cluster.nodes.size(), 3u);
  EXPECT_EQ(cluster.nodes[2].name, "old.1");
  const LinkTable links(test::profile_of({1}), cluster);
  EXPECT_EQ(links.between(0, 1).bytes_per_second, 300'000'000'000);  // of one node
  EXPECT_EQ(links.between(1, 2).latency, 15'000);                    // of two
  EXPECT_EQ(links.between(2, 3).bytes_per_second, 100'000'000'000);  // a node with a link of its own
  EXPECT_EQ(links.between(4, 5).bytes_per_second, 25'000'000'000);
}

TEST(Cluster, PlacementHasItsKindsMemoryAndLinks) {
  PartitionOptions options;
  options.cluster = parse_cluster(kTwoKinds, "d.toml");
  const Placement p = partition_chain(test::profile_of(std::vector<Nanoseconds>(16, 5)), options);
  ASSERT_EQ(p.devices.size(), 8u);
  EXPECT_EQ(p.devices[0].kind, "big");
  EXPECT_EQ(p.devices[7].memory, Bytes{40} << 30);
  EXPECT_EQ(p.link.latency, 15'000);
  EXPECT_EQ(p.link_between(5, 6).bytes_per_second, 100'000'000'000);
}

TEST(Cluster, WithoutLinksThoseOfTheProfileCount) {
  Profile profile = test::profile_of({1, 1});
  profile.transfers = {{0, 1, {7, 1000}, 0}};
  EXPECT_EQ(LinkTable(profile, alike(2, kUnlimited)).between(0, 1).latency, 7);
  EXPECT_TRUE(LinkTable(test::profile_of({1}), alike(2, kUnlimited)).free());
}

TEST(Cluster, ANodesOwnLinkIsEnough) {
  Profile profile = test::profile_of({1, 1});
  profile.transfers = {{0, 1, {7, 1000}, 0}};
  Cluster cluster = alike(2, kUnlimited);
  cluster.nodes.front().link = Link{3, 0};
  EXPECT_EQ(LinkTable(profile, cluster).between(0, 1).latency, 3);
}

TEST(Cluster, SlowDevicesTakeLonger) {
  DeviceKind kind;
  kind.speed = 300'000;
  const std::vector<LayerCost> layers = layers_on(kind, test::profile_of({3, 10}));
  EXPECT_EQ(layers[0].forward.median, 10);
  EXPECT_EQ(layers[1].backward.median, 67);  // 66.67 rounded up
}

TEST(Cluster, AStepTakesWhatLayersTakeOnAverage) {
  Profile profile = test::profile_of({10, 3});
  profile.layers[0].recompute = 8;
  profile.rank = {.read = 100, .average = 1'250'000};
  const std::vector<LayerCost> layers = layers_on(DeviceKind{}, profile);
  EXPECT_EQ(layers[0].forward.median, 13 + 100);  // 12.5 rounded up, and a batch, which is no layer
  EXPECT_EQ(layers[0].backward.median, 25);
  EXPECT_EQ(layers[0].recompute, 10);
  EXPECT_EQ(layers[1].recompute, 4);  // as its forward: 3.75
  EXPECT_EQ(layers[1].backward_input.median, 0);
}

TEST(Cluster, AKindsOwnProfileHasItsOwnAverage) {
  Profile profile = test::profile_of({10});
  DeviceKind kind;
  kind.profile = std::make_shared<const Profile>(profile);
  profile.rank.average = 2'000'000;
  EXPECT_EQ(layers_on(kind, profile)[0].forward.median, 10);
}

TEST(Cluster, AKindMayHaveAProfileOfItsOwn) {
  const Profile main = test::profile_of({3, 10});
  DeviceKind kind;
  kind.profile = std::make_shared<const Profile>(test::profile_of({7, 7}));
  EXPECT_EQ(layers_on(kind, main)[0].forward.median, 7);
  kind.profile = std::make_shared<const Profile>(test::profile_of({7}));
  EXPECT_THROW(layers_on(kind, main), InputError);
}

struct Refusal {
  const char* from;  ///< in kTwoKinds
  const char* to;
  const char* message;
};

class ClusterRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(ClusterRefusal, NamesTheLine) {
  std::string text = kTwoKinds;
  const std::size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, std::string(GetParam().from).size(), GetParam().to);
  try {
    parse_cluster(text, "d.toml");
    ADD_FAILURE() << "not refused";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ClusterRefusal,
    testing::Values(Refusal{"devices/1", "devices/2", "d.toml:1: "},
                    Refusal{"memory_unit", "memory_unti", "d.toml:3: unknown key 'memory_unti'"},
                    Refusal{"\"GiB\"", "\"GB\"",
                            "d.toml:3: 'memory_unit' is 'GB'; it should be one of B, KiB"},
                    Refusal{"bandwidth = 300", "bandwith = 300", "did you mean 'bandwidth'?"},
                    Refusal{"latency = 15", "latency = -15", "d.toml:10: "},
                    Refusal{"speed = 0.5", "speed = 0", "d.toml:20: 'speed' must be above 0"},
                    Refusal{"name = \"small\"", "name = \"big\"", "duplicate kind 'big', first on line 13"},
                    Refusal{"kind = \"small\"", "kind = \"smal\"",
                            "d.toml:28: unknown kind 'smal'; did you mean 'small'?"},
                    Refusal{"devices = 2", "devices = 0", "d.toml:24: "},
                    Refusal{"count = 2", "count = 65536", "more than 65536 devices in all"},
                    Refusal{"name = \"old\"", "name = \"node0\"", "duplicate node 'node0', first on line 22"},
                    Refusal{"memory = 140", "memory = \"140\"", "d.toml:15: "},
                    Refusal{"memory_unit = \"GiB\"", "", "'memory' has no unit: write \"40GiB\""}));

TEST(Cluster, AnAmountOfMemoryMayHaveItsUnit) {
  const std::string text =
      "format = \"ostinato-devices/1\"\n[[kinds]]\nname = \"a\"\nmemory = \"40GiB\"\n"
      "[[nodes]]\nkind = \"a\"\ndevices = 1\n";
  EXPECT_EQ(parse_cluster(text, "d.toml").kinds[0].memory, Bytes{40} << 30);
}

TEST(Cluster, NamesAllThatIsWrong) {
  const std::string text =
      "format = \"ostinato-devices/1\"\ntime_units = \"us\"\nmemory_unit = \"GB\"\n[within]\nlatency = "
      "\"3us\"\n"
      "[[kinds]]\nname = \"a\"\nmemory = -40\nsped = 1\n[[nodes]]\nkind = \"b\"\ndevices = 0\n";
  EXPECT_EQ(test::refusal_by([&] { parse_cluster(text, "d.toml"); }),
            "d.toml:2: unknown key 'time_units' in a device file; did you mean 'time_unit'?\n"
            "d.toml:3: 'memory_unit' is 'GB'; it should be one of B, KiB, MiB, GiB\n"
            "d.toml:5: 'latency' must be a number, not a text\n"
            "d.toml:8: 'memory' is -40, out of range: from 0\n"
            "d.toml:9: unknown key 'sped' in [[kinds]]; did you mean 'speed'?\n"
            "d.toml:11: unknown kind 'b'\n"
            "d.toml:12: 'devices' is 0, out of range: from 1 to 65536");
}

/// What does not fit is told in the unit of the file.
TEST(Cluster, SaysWhereAnAmountOfMemoryIsWritten) {
  const auto written = [](const std::string& head, const std::string& memory) {
    return memory_as_written(head + "[[kinds]]\nname = \"a\"\nmemory = " + memory + "\n", "d.toml");
  };
  EXPECT_THAT(written("", "\"40GB\""), testing::ElementsAre("d.toml:3: 40GB of memory on 'a'"));
  EXPECT_THAT(written("memory_unit = \"GiB\"\n", "1.5"),
              testing::ElementsAre("d.toml:4: 1.5 GiB of memory on 'a'"));
  EXPECT_THAT(written("", "\"1B\"\n[[kinds]]\nname = \"b\""), testing::SizeIs(1));
}

TEST(Cluster, NeedsKindsAndNodes) {
  const std::string head = "format = \"ostinato-devices/1\"\n";
  EXPECT_THROW(parse_cluster(head + "kinds = []\nnodes = []\n", "d.toml"), InputError);
  EXPECT_EQ(test::refusal_by([&] { parse_cluster(head, "d.toml"); }),
            "d.toml:1: a device file needs [[kinds]]: there must be at least one kind of device\n"
            "d.toml:1: a device file needs [[nodes]]: there must be at least one device");
  EXPECT_THROW(parse_cluster(head, "d.toml"), InputError);
}

}  // namespace
}  // namespace ostinato
