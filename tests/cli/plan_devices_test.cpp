// SPDX-License-Identifier: Apache-2.0
// `plan` for devices of several kinds, and for fewer than there are.

#include <gtest/gtest.h>

#include "search/placement/placement_toml.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

const std::string kTwoKinds =
    "format = \"ostinato-devices/1\"\n"
    "[[kinds]]\nname = \"fast\"\n"
    "[[kinds]]\nname = \"slow\"\nspeed = 0.5\n"
    "[[nodes]]\nkind = \"fast\"\ndevices = 1\n"
    "[[nodes]]\nkind = \"slow\"\ndevices = 1\n";

TEST(PlanCommand, TakesADeviceFile) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(std::vector<long>(9, 1000)));
  const std::string devices = folder.write("devices.toml", kTwoKinds);
  const Result result = ostinato_run({"plan", profile, "--devices", devices, "--micro-batches", "64",
                                      "--max-chunks", "1", "--without", "moves", "--placement-output",
                                      folder / "p.toml", "--output", folder / "p.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Placement placement = read_placement(folder / "p.toml").placement;
  ASSERT_EQ(placement.devices.size(), 2u);
  EXPECT_EQ(placement.devices[1].kind, "slow");
  // Twice as many layers where they run twice as fast, whichever kind comes first in the chain.
  const bool fast_first = placement.blocks[placement.find_block("s0.F")].devices == std::vector{0};
  EXPECT_EQ(placement.stages[0].layers, Layers::run(0, fast_first ? 6 : 3));
  EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
}

TEST(PlanCommand, IsProvedOfTheDevicesThatItWasMadeFor) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(kUneven));
  const std::string devices = folder.write("devices.toml", kTwoKinds), plan = folder / "p.json";
  const Result made = ostinato_run({"plan", profile, "--devices", devices, "--micro-batches", "4", "--output",
                                    plan, "--placement-output", folder / "p.toml"});
  ASSERT_EQ(made.status, 0) << made.err;
  std::vector<std::string> words = {"verify", plan, folder / "p.toml", "--profile", profile, "--json"};
  const Result forgotten = ostinato_run(words);
  EXPECT_EQ(forgotten.status, 6);
  const std::string why = forgotten.json()["failures"][0];
  EXPECT_NE(why.find("of one kind: is the plan for these devices?"), std::string::npos) << why;
  words.insert(words.end(), {"--devices", devices});
  EXPECT_EQ(ostinato_run(words).status, 0);
}

TEST(PlanCommand, TakesTheProfileOfAKindBesideTheDeviceFile) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000, 1000}));
  const std::string devices =
      folder.write("devices.toml",
                   "format = \"ostinato-devices/1\"\n[[kinds]]\nname = \"fast\"\n"
                   "[[kinds]]\nname = \"slow\"\nprofile = \"slow.json\"\n"
                   "[[nodes]]\nkind = \"fast\"\ndevices = 1\n[[nodes]]\nkind = \"slow\"\ndevices = 1\n");
  const std::vector<std::string> words = {"partition", profile,           "--devices",
                                          devices,     "--micro-batches", "4",
                                          "--output",  folder / "p.toml", "--json"};
  const Result missing = ostinato_run(words);
  EXPECT_EQ(missing.status, 3);
  EXPECT_NE(missing.err.find(devices + ":6: 'profile': there is no " + folder / "slow.json"),
            std::string::npos)
      << missing.err;
  folder.write("slow.json", profile_text({9000, 9000, 9000}));
  EXPECT_EQ(ostinato_run(words).json()["busiest"], 27'000);  // one layer on the slow device
}

TEST(PlanCommand, LeavesTheSlowDeviceIdleWhereverItIsListed) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000}));
  const std::string devices =
      folder.write("devices.toml",
                   "format = \"ostinato-devices/1\"\n[[kinds]]\nname = \"fast\"\n"
                   "[[kinds]]\nname = \"slow\"\nspeed = 0.01\n"
                   "[[nodes]]\nkind = \"slow\"\ndevices = 1\n[[nodes]]\nkind = \"fast\"\ndevices = 1\n");
  const std::vector<std::string> words = {
      "plan",     profile,           "--devices",          devices,          "--micro-batches", "4",
      "--output", folder / "p.json", "--placement-output", folder / "p.toml"};
  const Result result = ostinato_run(words);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(read_placement(folder / "p.toml").placement.devices[0].kind, "fast");
  EXPECT_NE(result.out.find("It leaves 0 of the 2 devices (counted from 0, as listed) idle"),
            std::string::npos)
      << result.out;
  std::vector<std::string> json = words;
  json.emplace_back("--json");
  EXPECT_EQ(ostinato_run(json).json()["candidates"].back()["idle"][0], 0);
  const Result verified = ostinato_run(
      {"verify", folder / "p.json", folder / "p.toml", "--profile", profile, "--devices", devices});
  EXPECT_EQ(verified.status, 0) << verified.out;
}

// A link so slow that one device alone is quicker: that is chosen, and what to launch is said.
TEST(PlanCommand, LeavesDevicesIdleWhereThatIsShorter) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(std::vector<long>(6, 1000)));
  const std::string devices = folder.write("devices.toml",
                                           "format = \"ostinato-devices/1\"\n"
                                           "[within]\nlatency = 1000000000\nbandwidth = 0\n"
                                           "[[kinds]]\nname = \"slow\"\n"
                                           "[[nodes]]\nkind = \"slow\"\ndevices = 3\n");
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"plan", profile, "--devices", devices, "--micro-batches", "4"};
    args.insert(args.end(), {"--output", folder / "p.json", "--placement-output", folder / "p.toml"});
    args.insert(args.end(), more.begin(), more.end());
    return ostinato_run(args);
  };
  const Result usual = run({});
  ASSERT_EQ(usual.status, 0) << usual.err;
  EXPECT_NE(usual.out.find("\"1 chunk on 1 of 3 devices\" was chosen"), std::string::npos) << usual.out;
  EXPECT_NE(usual.out.find("Launch 1 rank"), std::string::npos) << usual.out;
  EXPECT_EQ(read_placement(folder / "p.toml").placement.devices.size(), 1u);
  const Result all = run({"--all-devices"});
  EXPECT_NE(all.out.find("on all 3 devices"), std::string::npos) << all.out;
  EXPECT_EQ(all.out.find("Launch"), std::string::npos) << all.out;
  EXPECT_EQ(run({"--all-devices", "--json"}).json()["devices_used"], 3);
  EXPECT_EQ(run({"--all-devices", "--fewer-devices"}).status, 2);
}

TEST(PlanCommand, RefusesABadDeviceFileWithItsLine) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000}));
  const auto run = [&](const std::string& devices) {
    return ostinato_run({"plan", profile, "--devices", devices, "--micro-batches", "2", "--placement-output",
                         folder / "p.toml", "--output", folder / "p.json"});
  };
  const std::string unknown = kTwoKinds + "[[nodes]]\nkind = \"slwo\"\ndevices = 2\n";
  const Result kind = run(folder.write("devices.toml", unknown));
  EXPECT_EQ(kind.status, 3);
  EXPECT_NE(kind.err.find("devices.toml:14: unknown kind 'slwo'; did you mean 'slow'?"), std::string::npos)
      << kind.err;
  EXPECT_EQ(run(folder / "missing.toml").status, 3);
  EXPECT_EQ(run("four").status, 2);
  const Result launcher = run("launcher");
  EXPECT_EQ(launcher.status, 2);
  EXPECT_NE(launcher.err.find("torchrun"), std::string::npos) << launcher.err;
}

}  // namespace
}  // namespace ostinato::cli::test
