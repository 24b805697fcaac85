// SPDX-License-Identifier: Apache-2.0
// What a time limit may not take away: the shortest of the named schedules, however early the clock runs out.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

const std::vector<std::string> kLimits = {"0.001", "0.003", "0.01", "0.03", "0.1", "0.3", "1"};

/// With room for all of 1F1B, which one micro-batch after another is ten times as long as.
TEST(TimeLimit, ASearchIsNeverBehindANamedScheduleThatFits) {
  const TemporaryFolder folder;
  for (const std::string capacity : {"9", "16"}) {
    ASSERT_EQ(ostinato_run({"placement", "v", "--devices", "16", "--capacity", capacity, "--output",
                            folder / "p.toml"})
                  .status,
              0);
    for (const std::string& limit : kLimits) {
      SCOPED_TRACE(capacity + " in " + limit + " s");
      const Result result = ostinato_run({"search", folder / "p.toml", "--micro-batches", "64",
                                          "--time-limit", limit, "--output", folder / "p.json", "--json"});
      ASSERT_EQ(result.status, 0) << result.err;
      const nlohmann::json json = result.json();
      EXPECT_TRUE(json["named"].contains("1f1b"));
      for (const auto& [name, named] : json["named"].items()) {
        if (!named["fits"]) continue;
        EXPECT_LE(json["makespan"], named["makespan"]) << name;
      }
      EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
    }
  }
}

/// Layers of three lengths in turns over 16 devices, with no more memory than 1F1B needs of the best stages.
TEST(TimeLimit, APlanIsNeverBehindABaselineThatFits) {
  const TemporaryFolder folder;
  std::vector<long> layers;
  for (long i = 0; i < 48; ++i) layers.push_back(1'000'000 + 700'000 * (i % 3));
  const std::string profile = folder.write("profile.json", profile_text(layers));
  for (const std::string memory : {"40000B", "52000B", "unlimited"}) {
    for (const std::string& limit : kLimits) {
      SCOPED_TRACE(memory + " in " + limit + " s");
      const Result result =
          ostinato_run({"plan", profile, "--devices", "16", "--micro-batches", "32", "--device-memory",
                        memory, "--time-limit", limit, "--output", folder / "plan.json", "--placement-output",
                        folder / "p.toml", "--json"});
      if (result.status == 4) continue;
      ASSERT_EQ(result.status, 0) << result.err;
      const nlohmann::json json = result.json();
      for (const auto& [name, baseline] : json["baselines"].items()) {
        if (!baseline.is_object() || !baseline["fits"]) continue;
        EXPECT_LE(json["makespan"], baseline["makespan"]) << name;
      }
      EXPECT_EQ(ostinato_run({"verify", folder / "plan.json", folder / "p.toml"}).status, 0);
    }
  }
}

}  // namespace
}  // namespace ostinato::cli::test
