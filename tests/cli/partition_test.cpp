// SPDX-License-Identifier: Apache-2.0
// `partition`: from a profile to a placement.

#include <gtest/gtest.h>

#include "search/placement/placement_toml.h"
#include "search/profile/profile_json.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

TEST(PartitionCommand, BalancesTheStages) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000, 2000, 4000}));
  const Result result =
      ostinato_run({"partition", profile, "--devices", "2", "--output", folder / "p.toml", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json()["busiest"], 12'000);
  EXPECT_EQ(result.json()["lower_bound"], 12'000);
  const Placement placement = read_placement(folder / "p.toml").placement;
  ASSERT_EQ(placement.stages.size(), 2u);
  EXPECT_EQ(placement.stages[0].layers, (Layers{0, 1, 2}));
}

TEST(PartitionCommand, WarnsOfTimesThatSayNothing) {
  const TemporaryFolder folder;
  Profile noisy = parse_profile(profile_text({1000, 1000}), "p.json");
  noisy.layers[1].forward.high = 9000;
  const std::string profile = folder.write("profile.json", format_profile(noisy));
  for (const std::string command : {"partition", "plan"}) {
    std::vector<std::string> words = {command, profile,    "--devices",      "2",     "--micro-batches",
                                      "2",     "--output", folder / "p.out", "--json"};
    if (command == "plan") words.insert(words.end(), {"--placement-output", folder / "p.toml"});
    const Result result = ostinato_run(words);
    EXPECT_NE(result.err.find("the times of 1 of 2 measured layers are uncertain"), std::string::npos)
        << result.err;
    EXPECT_NE(result.json()["noise"].get<std::string>().find("'1:"), std::string::npos);
    if (command == "partition") continue;
    EXPECT_EQ(result.json()["proved_for_times"], "half of the profile's samples are off by up to 66.7 %");
    std::erase(words, "--json");
    EXPECT_NE(ostinato_run(words).out.find("proved for these times: "), std::string::npos);
  }
}

TEST(PartitionCommand, WarnsWhereTransfersCountAsFree) {
  const TemporaryFolder folder;
  Profile profile = parse_profile(profile_text({1000, 1000}), "p.json");
  profile.transfers.clear();
  const std::string without = folder.write("without.json", format_profile(profile));
  profile.transfers = {{0, 1, {10, 1'000'000'000}, 0}};
  const std::string with = folder.write("with.json", format_profile(profile));
  const std::string linked =
      folder.write("linked.toml",
                   "format = \"ostinato-devices/1\"\n[within]\nlatency = 5000\nbandwidth = 1.0\n"
                   "[[kinds]]\nname = \"a\"\n[[nodes]]\nkind = \"a\"\ndevices = 2\n");
  const auto warns = [&](const std::string& command, const std::string& path, const std::string& devices) {
    std::vector<std::string> words = {command,           path, "--devices", devices,
                                      "--micro-batches", "2",  "--output",  folder / "p.out"};
    if (command == "plan") words.insert(words.end(), {"--placement-output", folder / "p.toml"});
    const Result result = ostinato_run(words);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.err.find("warning: " + path + ": transfers count as free") != std::string::npos;
  };
  for (const std::string command : {"partition", "plan"}) {
    EXPECT_TRUE(warns(command, without, "2"));
    EXPECT_FALSE(warns(command, without, "1"));
    EXPECT_FALSE(warns(command, without, linked));
    EXPECT_FALSE(warns(command, with, "2"));
  }
}

TEST(PartitionCommand, NamesTheProfileThatCannotBePlanned) {
  const TemporaryFolder folder;
  const auto expect_refused = [&](auto change, const std::string& message) {
    Profile profile = parse_profile(profile_text({1000, 1000}), "p.json");
    change(profile);
    const std::string path = folder.write("profile.json", format_profile(profile));
    for (const std::string command : {"partition", "plan"}) {
      std::vector<std::string> words = {command,           path, "--devices", "2",
                                        "--micro-batches", "2",  "--output",  folder / "p.out"};
      if (command == "plan") words.insert(words.end(), {"--placement-output", folder / "p.toml"});
      const Result result = ostinato_run(words);
      EXPECT_EQ(result.status, 3);
      EXPECT_NE(result.err.find(path + ": " + message), std::string::npos) << result.err;
    }
  };
  expect_refused([](Profile& p) { p.layers.clear(); }, "the profile has no layers");
  expect_refused([](Profile& p) { p.layers[1].forward.repeats = 0; }, "the forward of layer 1:");
  expect_refused([](Profile& p) { p.completeness.complete = false; }, "the profile of");
  expect_refused([](Profile& p) { p.layers[0].forward.median = p.layers[0].forward.high = 1L << 62; },
                 "the times of all layers together reach 4.6e+18 ns");
  expect_refused([](Profile& p) { p.layers[0].kept = 1L << 62; },
                 "the memory of all layers in 2 micro-batches");
}

TEST(PartitionCommand, PutsSeveralChunksOnADevice) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(std::vector<long>(8, 1000)));
  const Result result = ostinato_run({"partition", profile, "--devices", "2", "--chunks", "2", "--layout",
                                      "wave", "--output", folder / "p.toml"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Placement placement = read_placement(folder / "p.toml").placement;
  EXPECT_EQ(placement.blocks[placement.find_block("s2.F")].devices, std::vector{1});
  EXPECT_EQ(placement.blocks[placement.find_block("s3.F")].devices, std::vector{0});
  EXPECT_NE(result.out.find("s3"), std::string::npos);
}

TEST(PartitionCommand, ProvesThatTheMemoryIsTooSmall) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000}));
  const Result result = ostinato_run(
      {"partition", profile, "--devices", "2", "--device-memory", "100B", "--output", folder / "p.toml"});
  EXPECT_EQ(result.status, 4) << result.err;
}

TEST(PartitionCommand, InferenceHasForwardsAlone) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000, 2000, 4000}));
  const Result result =
      ostinato_run({"partition", profile, "--inference", "--devices", "2", "--output", folder / "p.toml"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out.find("backward"), std::string::npos) << result.out;
  const Placement placement = read_placement(folder / "p.toml").placement;
  ASSERT_EQ(placement.blocks.size(), 2u);
  EXPECT_EQ(placement.blocks[1].kind, Kind::forward);
  EXPECT_EQ(placement.blocks[1].memory, 0);
  for (const auto& [option, value] : {std::pair{"--split-backward", ""}, {"--recompute", "needed"}}) {
    std::vector<std::string> words = {"partition", profile,    "--inference",     "--devices",
                                      "2",         "--output", folder / "q.toml", option};
    if (*value != 0) words.emplace_back(value);
    const Result refused = ostinato_run(words);
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find(option), std::string::npos) << refused.err;
  }
}

}  // namespace
}  // namespace ostinato::cli::test
