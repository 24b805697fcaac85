// SPDX-License-Identifier: Apache-2.0
// `plan --sizes`.

#include <gtest/gtest.h>

#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

TEST(PlanSizes, MayTakeWhatHasNoPlanForEqualMicroBatches) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({4000, 9000, 3000, 6000}));
  const std::string out = folder / "plan.json", placement = folder / "p.toml";
  std::string sizes = "format = \"ostinato-sizes/1\"\nsize = 3\n";
  for (const char* size : {"5", "4", "6"}) sizes += std::string("[[micro_batches]]\nsize = ") + size + "\n";
  const auto plan = [&](const std::string& option, const std::string& value) {
    return ostinato_run({"plan", profile, "--devices", "2", option, value, "--output", out,
                         "--placement-output", placement, "--strict", "--json"});
  };
  const auto alike = plan("--micro-batches", "3").json()["candidates"];
  const Result result = plan("--sizes", folder.write("step.toml", sizes));
  ASSERT_EQ(result.status, 0) << result.err;
  const auto chosen = result.json()["chosen"];
  for (const auto& candidate : alike) {
    if (candidate["name"] != chosen) continue;
    EXPECT_FALSE(candidate.contains("makespan"));
  }
  EXPECT_EQ(ostinato_run({"verify", out, placement}).status, 0);
}

}  // namespace
}  // namespace ostinato::cli::test
