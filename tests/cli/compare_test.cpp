// SPDX-License-Identifier: Apache-2.0
// Plans side by side, each with the placement that it names.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

/// F = B = 1 ms on two devices: "v.toml", and plans of it by 1F1B and one micro-batch after the other.
void make_plans(const TemporaryFolder& folder) {
  ASSERT_EQ(ostinato_run({"placement", "v", "--devices", "2", "--forward", "1ms", "--backward", "1ms",
                          "--output", folder / "v.toml"})
                .status,
            0);
  for (const std::string method : {"1f1b", "gpipe"})
    ASSERT_EQ(ostinato_run({"search", folder / "v.toml", "--micro-batches", "4", "--method", method,
                            "--output", folder / (method + ".json")})
                  .status,
              0);
}

TEST(CompareCommand, PutsPlansSideBySide) {
  const TemporaryFolder folder;
  make_plans(folder);
  const Result result = ostinato_run({"compare", folder / "1f1b.json", folder / "gpipe.json", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const nlohmann::json plans = result.json()["plans"];
  ASSERT_EQ(plans.size(), 2u);
  // Four micro-batches of 2 ms on each device, and a bubble of 2 ms: 10 ms, of which 8 are work.
  for (const nlohmann::json& plan : plans) {
    EXPECT_EQ(plan["makespan"], 10'000'000);
    EXPECT_NEAR(plan["bubble"].get<double>(), 0.2, 1e-12);
    EXPECT_EQ(plan["work"], 4'000'000);
    EXPECT_EQ(plan["placement_file"], folder / "v.toml");
  }
  EXPECT_EQ(plans[0]["peak_memory"], nlohmann::json({2 << 20, 1 << 20}));
  EXPECT_EQ(plans[1]["peak_memory"], nlohmann::json({4 << 20, 4 << 20}));
  const std::string text = ostinato_run({"compare", folder / "1f1b.json", folder / "gpipe.json"}).out;
  EXPECT_NE(text.find("10 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("20.0 %"), std::string::npos) << text;
}

TEST(CompareCommand, CountsNoLanes) {
  const TemporaryFolder folder;
  const std::string placement = folder / "offload.toml", plan = folder / "p.json", curve = folder / "curve";
  const Result made = ostinato_run({"placement", "looped", "--devices", "4", "--chunks", "1", "--forward",
                                    "1ms", "--backward", "2ms", "--memory", "1MiB", "--capacity", "3",
                                    "--offload", "0.5ms", "--output", placement});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.out.find(" on 4 devices"), std::string::npos) << made.out;
  const std::vector<std::string> search = {"search", placement, "--micro-batches", "4"};
  const auto searched = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> words = search;
    words.insert(words.end(), more);
    return ostinato_run(words).out;
  };
  searched({"--output", plan});
  const nlohmann::json compared = ostinato_run({"compare", plan, plan, "--json"}).json();
  EXPECT_EQ(compared["plans"][0]["devices"], 4);
  EXPECT_LT(compared["plans"][0]["work"], 12'100'000);
  EXPECT_EQ(ostinato_run({"compare", plan, plan}).out.find("device 4"), std::string::npos);
  EXPECT_NE(searched({"--pareto", "memory", "--output", curve}).find(" on 4 devices"), std::string::npos);
  const std::string repeats = searched({"--steady-state"});
  const std::size_t peaks = repeats.find("peak memory");
  ASSERT_NE(peaks, std::string::npos) << repeats;
  EXPECT_EQ(std::count(repeats.begin() + static_cast<std::ptrdiff_t>(peaks), repeats.end(), ','), 3)
      << repeats;
}

TEST(CompareCommand, CountsNoLanesOfBlocksThatComputeBesides) {
  const TemporaryFolder folder;
  const std::string plan = folder / "p.json";
  const std::string placement = folder.write("p.toml", R"(format = "ostinato-placement/1"
[[devices]]
lanes = ["net"]
[[devices]]
lanes = ["net"]
[[blocks]]
name = "F"
devices = [0]
time = 20
[[blocks]]
name = "X"
devices = [0, 1]
lane = ["compute", "net"]
time = 80
after = ["F"]
)");
  ASSERT_EQ(ostinato_run({"search", placement, "--micro-batches", "4", "--output", plan}).status, 0);
  const nlohmann::json compared = ostinato_run({"compare", plan, plan, "--json"}).json();
  EXPECT_EQ(compared["plans"][0]["work"], 180'000);  // 20 us on device 0, 80 on both
  EXPECT_NEAR(compared["plans"][0]["bubble"].get<double>(), 0.1, 1e-12);
}

TEST(CompareCommand, PutsKnownSchedulesBeside) {
  const TemporaryFolder folder;
  ASSERT_EQ(ostinato_run({"placement", "looped", "--devices", "2", "--chunks", "2", "--output",
                          folder / "looped.toml"})
                .status,
            0);
  ASSERT_EQ(ostinato_run(
                {"search", folder / "looped.toml", "--micro-batches", "4", "--output", folder / "plan.json"})
                .status,
            0);
  const std::vector<std::string> args = {"compare", folder / "plan.json", "--json", "--against"};
  const auto with = [&](const std::string& name) {
    std::vector<std::string> all = args;
    all.push_back(name);
    return ostinato_run(all);
  };
  const nlohmann::json plans = with("1f1b").json()["plans"];
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[1]["plan"], "interleaved-1f1b");  // which 1F1B is called on several chunks per device
  EXPECT_EQ(plans[1], with("interleaved-1f1b").json()["plans"][1]);
  EXPECT_LE(plans[0]["makespan"], plans[1]["makespan"]);
  EXPECT_NE(with("zb-v").err.find("--against zb-v is not possible on this placement: "), std::string::npos);
  EXPECT_NE(with("1F1B").err.find("; did you mean '1f1b'?"), std::string::npos);
  EXPECT_NE(with("2f2b").err.find("--against 2f2b: not a known schedule (gpipe, 1f1b, "), std::string::npos);
}

TEST(CompareCommand, RefusesPlansOfDifferentModels) {
  const TemporaryFolder folder;
  make_plans(folder);
  const std::string placement = read_text(folder / "v.toml");
  std::vector<std::string> plans;
  for (const char digit : {'a', 'b'}) {
    const std::string name(1, digit);
    folder.write(name + ".toml", placement + "\n[model]\nsha256 = \"" + std::string(64, digit) + "\"\n");
    plans.push_back(folder / (name + ".json"));
    ASSERT_EQ(ostinato_run({"search", folder / (name + ".toml"), "--micro-batches", "4", "--method", "1f1b",
                            "--output", plans.back()})
                  .status,
              0);
  }
  const Result compared = ostinato_run({"compare", plans[0], plans[1]});
  const Result shown =
      ostinato_run({"show", plans[0], "--html", folder / "page.html", "--against", plans[1]});
  for (const Result& result : {compared, shown}) {
    EXPECT_EQ(result.status, 3);
    EXPECT_NE(result.err.find("b.toml: this is a placement of another model (its digest begins with "
                              "bbbbbbbbbbbb, that of the first plan's with aaaaaaaaaaaa)"),
              std::string::npos)
        << result.err;
  }
  EXPECT_EQ(ostinato_run({"compare", plans[0], folder / "1f1b.json"}).status, 0);  // which names no model
}

TEST(CompareCommand, FindsPlacementsByTheirDigest) {
  const TemporaryFolder folder;
  make_plans(folder);
  for (const char* command : {"show", "verify", "simulate", "lower"})
    EXPECT_EQ(ostinato_run({command, folder / "1f1b.json"}).status, 0) << command;
  const TemporaryFolder other;
  std::filesystem::rename(folder / "v.toml", other / "moved.toml");
  const std::vector<std::string> args = {"compare", folder / "1f1b.json", folder / "gpipe.json"};
  const Result none = ostinato_run(args);
  EXPECT_EQ(none.status, 3);
  EXPECT_NE(
      none.err.find(
          "its placement is not in the same folder: give its file too, with --placement where there are "
          "several plans"),
      std::string::npos)
      << none.err;
  EXPECT_EQ(ostinato_run({"show", folder / "1f1b.json"}).status, 3);
  EXPECT_EQ(ostinato_run({"show", folder / "1f1b.json", other / "moved.toml"}).status, 0);
  std::vector<std::string> given = args;
  given.insert(given.begin() + 1, {"--placement", other / "moved.toml"});
  EXPECT_EQ(ostinato_run(given).status, 0);
}

TEST(CompareCommand, OnePlanIsAUsageError) {
  const Result result = ostinato_run({"compare", "plan.json"});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("give at least two plans"), std::string::npos) << result.err;
}

TEST(CompareCommand, RefusesWhatVerifyRefuses) {
  const TemporaryFolder folder;
  make_plans(folder);
  std::string text = read_text(folder / "gpipe.json");
  const std::size_t step = text.find("\"start\": 1000000");
  ASSERT_NE(step, std::string::npos);
  folder.write("bad.json", text.replace(step, 16, "\"start\": 1"));
  EXPECT_EQ(ostinato_run({"compare", folder / "1f1b.json", folder / "bad.json"}).status, 3);
}

}  // namespace
}  // namespace ostinato::cli::test
