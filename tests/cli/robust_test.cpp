// SPDX-License-Identifier: Apache-2.0
// search --robust, plan --robust and simulate --unequal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

using ::testing::HasSubstr;

class RobustCommand : public testing::Test {
 protected:
  RobustCommand() {
    ostinato_run({"placement", "v", "--devices", "4", "--forward", "10ms", "--backward", "10ms", "--weight",
                  "10ms", "--memory", "1MiB", "--capacity", "6MiB", "--output", placement});
  }
  Result search(const std::vector<std::string>& more, const std::string& output) {
    std::vector<std::string> words = {"search",   placement, "--micro-batches", "8",
                                      "--output", output,    "--threads",       "1"};
    words.insert(words.end(), more.begin(), more.end());
    return ostinato_run(words);
  }

  const TemporaryFolder folder;
  const std::string placement = folder / "p.toml", usual = folder / "usual.json",
                    robust = folder / "robust.json";
};

TEST_F(RobustCommand, SaysWhatItGains) {
  EXPECT_EQ(search({}, usual).out.find("robust"), std::string::npos);
  const Result found = search({"--robust", "0.3"}, robust);
  EXPECT_THAT(found.out, HasSubstr("  robust            where times vary by up to 30 %, 95 % of replays"));
  EXPECT_THAT(found.out, HasSubstr("optimal (proved)"));
  EXPECT_EQ(ostinato_run({"verify", robust, placement}).status, 0);
  const nlohmann::json json = search({"--robust", "0.3", "--json"}, robust).json();
  EXPECT_EQ(json["robust"]["variation"], 0.3);
  EXPECT_LT(json["robust"]["within"], json["robust"]["shortest"]);
  for (const char* variation : {"--jitter", "--unequal"}) {
    const auto median = [&](const std::string& plan) {
      return ostinato_run({"simulate", plan, placement, variation, "0.3", "--json"})
          .json()["median"]
          .get<std::int64_t>();
    };
    EXPECT_LT(median(robust), median(usual)) << variation;
  }
}

TEST_F(RobustCommand, PlanVariesItsWinner) {
  const std::string profile =
      folder.write("profile.json", profile_text({3000, 9000, 5000, 7000, 4000, 8000}));
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"plan",
                                      profile,
                                      "--devices",
                                      "2",
                                      "--micro-batches",
                                      "8",
                                      "--json",
                                      "--output",
                                      robust,
                                      "--placement-output",
                                      folder / "q.toml"};
    words.insert(words.end(), more.begin(), more.end());
    return ostinato_run(words).json();
  };
  const nlohmann::json before = plan({}), after = plan({"--robust", "0.4"});
  EXPECT_EQ(after["makespan"], before["makespan"]);
  EXPECT_EQ(after["robust"]["variation"], 0.4);
  EXPECT_LE(after["robust"]["within"], after["robust"]["shortest"]);
  EXPECT_EQ(ostinato_run({"verify", robust, folder / "q.toml"}).status, 0);
}

TEST_F(RobustCommand, IsRefusedWhereItWouldMeanNothing) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--objective", "span"}, "--robust is about the makespan"},
      {{"--method", "1f1b"}, "--method asks for one known schedule"},
      {{"--pareto", "memory"}, "--robust cannot be combined with --pareto"},
  };
  for (const auto& [words, message] : cases) {
    std::vector<std::string> all = {"--robust", "0.1"};
    all.insert(all.end(), words.begin(), words.end());
    const Result refused = search(all, robust);
    EXPECT_EQ(refused.status, 2) << message;
    EXPECT_THAT(refused.err, HasSubstr(message));
  }
}

}  // namespace
}  // namespace ostinato::cli::test
