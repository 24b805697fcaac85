// SPDX-License-Identifier: Apache-2.0
// `ostinato search --pareto`, and what verify makes of its plans.

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

TEST(ParetoOption, WritesAFileAPointThatVerifyAccepts) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const std::vector<std::string> args = {"search",   folder / "v.toml", "--micro-batches", "8",
                                         "--pareto", "memory",          "--time-limit",    "0",
                                         "--output", folder / "curve",  "--json"};
  const Result result = ostinato_run(args);
  ASSERT_EQ(result.status, 0) << result.err;
  const nlohmann::json json = result.json();
  ASSERT_EQ(json["points"].size(), 4u);
  EXPECT_EQ(json["least_memory"]["memory"], 1 << 20);
  EXPECT_EQ(json["least_memory"]["proved"], true);
  for (const nlohmann::json& point : json["points"]) {
    const Result verified = ostinato_run({"verify", point["output"], folder / "v.toml"});
    EXPECT_EQ(verified.status, 0) << verified.out << verified.err;
    EXPECT_NE(verified.out.find("no schedule within"), std::string::npos) << verified.out;
    EXPECT_EQ(point["memory"], point["capacity"]["memory"]);
  }
  EXPECT_EQ(json["points"][0]["proved_optimal"], true);
}

TEST(ParetoOption, PrintsATable) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const std::vector<std::string> args = {"search",   folder / "v.toml", "--micro-batches", "4",
                                         "--pareto", "memory",          "--points",        "2",
                                         "--output", folder / "curve",  "--time-limit",    "0"};
  const Result result = ostinato_run(args);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err.find("earlier curve"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("gap  plan"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("No schedule fits in less than 1 MiB per device (proved)."), std::string::npos)
      << result.out;
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder / "curve")) ++files;
  EXPECT_EQ(files, 2);
  folder.write("curve/memory-7.json", "{}");
  EXPECT_NE(ostinato_run(args).err.find("curve also holds 1 plan of an earlier curve"), std::string::npos);
}

TEST(ParetoOption, SaysWhatTheOptimizersStepTakesWhateverThePlan) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const std::string placement = read_text(folder / "v.toml");
  const auto curve_with = [&](const std::string& step_memory) {
    folder.write("v.toml", placement + "\n[model]\nstep_memory = [" + step_memory + "]\n");
    return ostinato_run({"search", folder / "v.toml", "--micro-batches", "4", "--pareto", "memory",
                         "--output", folder / "curve", "--time-limit", "0"});
  };
  const Result more = curve_with("0, 2097152, 0, 0");
  ASSERT_EQ(more.status, 0) << more.err;
  EXPECT_NE(more.out.find("The optimizer's step takes 2 MiB on device1 whatever the plan"), std::string::npos)
      << more.out;
  const Result less = curve_with("0, 1024, 0, 0");
  ASSERT_EQ(less.status, 0) << less.err;
  EXPECT_EQ(less.out.find("optimizer"), std::string::npos) << less.out;
}

TEST(ParetoOption, RefusesWhatItCannotDo) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const auto status = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"search", folder / "v.toml", "--micro-batches",
                                     "2",      "--output",        folder / "v.json"};
    args.insert(args.end(), more.begin(), more.end());
    return ostinato_run(args).status;
  };
  EXPECT_EQ(status({"--pareto", "memroy"}), 2);
  EXPECT_EQ(status({"--pareto", "memory", "--points", "1"}), 2);
  EXPECT_EQ(status({"--pareto", "memory", "--method", "1f1b"}), 2);
  EXPECT_EQ(status({"--pareto", "memory"}), 3) << "the output is a file, not a folder";
}

}  // namespace
}  // namespace ostinato::cli::test
