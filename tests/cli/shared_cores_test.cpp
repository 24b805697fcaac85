// SPDX-License-Identifier: Apache-2.0
// What the commands say of devices that share cores: the makespan of the replay, in the same words.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

using testing::HasSubstr;
using testing::Not;

/// 1F1B of 8 micro-batches, 33 us: as v.json beside v.toml, where four devices share as many cores.
void make_shared_plan(const TemporaryFolder& folder, int cores) {
  const Result placed = ostinato_run({"placement", "v"});
  ASSERT_EQ(placed.status, 0) << placed.err;
  folder.write("v.toml",
               placed.out + "\n[[hosts]]\ndevices = [0, 1, 2, 3]\ncores = " + std::to_string(cores) + "\n");
  const Result searched = ostinato_run({"search", folder / "v.toml", "--micro-batches", "8", "--method",
                                        "1f1b", "--output", folder / "v.json"});
  ASSERT_EQ(searched.status, 0) << searched.err;
  EXPECT_THAT(searched.out, HasSubstr("on shared cores   "));
}

TEST(SharedCores, ShowSaysTheMakespanThere) {
  const TemporaryFolder folder;
  make_shared_plan(folder, 2);
  const Result shown = ostinato_run({"show", folder / "v.json", "--html", folder / "v.html"});
  ASSERT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("makespan 33 us"));
  EXPECT_THAT(shown.out, HasSubstr("\n  on shared cores 51 us (4 devices share 2 cores)\n"));
  const std::string page = read_text(folder / "v.html");
  EXPECT_THAT(page, HasSubstr("\"51 us (4 devices share 2 cores)\""));
  EXPECT_THAT(page, HasSubstr("\"The cores hold up this plan: on shared cores "));
  EXPECT_EQ(ostinato_run({"show", folder / "v.json", "--json"}).json()["shared_makespan"], 51'000);
}

TEST(SharedCores, SimulateSaysThatTheyHoldUpThePlan) {
  const TemporaryFolder folder;
  make_shared_plan(folder, 2);
  const Result replayed = ostinato_run({"simulate", folder / "v.json", "--explain"});
  ASSERT_EQ(replayed.status, 0) << replayed.err;
  EXPECT_THAT(replayed.out,
              HasSubstr("planned  33 us, on shared cores 51 us (4 devices share 2 cores)\nbest     51 us"));
  const std::size_t cores = replayed.out.find("The cores hold up this plan: on shared cores a replay");
  ASSERT_NE(cores, std::string::npos) << replayed.out;
  EXPECT_LT(cores, replayed.out.find("The critical chain"));
  EXPECT_EQ(ostinato_run({"simulate", folder / "v.json", "--json"}).json()["shared_makespan"], 51'000);
}

TEST(SharedCores, ACoreForEachDeviceHoldsUpNothing) {
  const TemporaryFolder folder;
  make_shared_plan(folder, 4);
  const Result replayed = ostinato_run({"simulate", folder / "v.json", "--explain"});
  EXPECT_THAT(replayed.out, HasSubstr("on shared cores 33 us (4 devices share 4 cores)"));
  EXPECT_THAT(replayed.out, Not(HasSubstr("The cores hold up")));
}

}  // namespace
}  // namespace ostinato::cli::test
