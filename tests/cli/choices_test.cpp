// SPDX-License-Identifier: Apache-2.0
// `ostinato search --choose` and `--pareto`, and what verify, simulate, show and lower make of their plans.

#include <gtest/gtest.h>

#include <filesystem>

#include "search/files/file.h"
#include "tests/cli/support/cli_run.h"
#include "tests/support/source_dir.h"

namespace ostinato::cli::test {
namespace {

const std::string kChoices = (ostinato::test::source_dir() / "configs/choices-4.toml").string();

/// Two stages whose whole backward is quicker than its halves: the search takes it, and it can be lowered.
std::string write_whole_is_quicker(const TemporaryFolder& folder) {
  return folder.write("p.toml", R"(format = "ostinato-placement/1"
name = "p"
devices = [{ name = "gpu0" }, { name = "gpu1" }]
blocks = [
  { name = "0.F", stage = "0", kind = "forward", devices = [0], time = 1 },
  { name = "1.F", stage = "1", kind = "forward", devices = [1], time = 1, after = ["0.F"] },
  { name = "1.I", stage = "1", kind = "backward_input", devices = [1], time = 1, after = ["1.F"] },
  { name = "1.W", stage = "1", kind = "backward_weight", devices = [1], time = 1, after = ["1.I"] },
  { name = "0.B", stage = "0", kind = "backward", devices = [0], time = 1, after = ["0.F", "1.I"] },
]
[[choices]]
name = "backward of 1"
modes = [{ name = "split" }, { name = "whole", blocks = [
  { block = "1.I", kind = "backward", time = 1 }, { block = "1.W", absent = true } ] }]
)");
}

TEST(ChooseOption, WritesAPlanThatEveryCommandUnderstands) {
  const TemporaryFolder folder;
  const std::string p = write_whole_is_quicker(folder);
  const std::string plan = folder / "plan.json";
  const Result result =
      ostinato_run({"search", p, "--micro-batches", "2", "--choose", "--output", plan, "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json()["modes"]["taken"]["backward of 1"], "whole");
  EXPECT_EQ(result.json()["makespan"], 6000);
  EXPECT_EQ(result.json()["modes"]["lower_bound"], 6000);
  const Result verified = ostinato_run({"verify", plan, p});
  EXPECT_EQ(verified.status, 0) << verified.out << verified.err;
  EXPECT_NE(verified.out.find("with any modes"), std::string::npos) << verified.out;
  EXPECT_EQ(ostinato_run({"simulate", plan, p, "--jitter", "0.1", "--explain"}).status, 0);
  EXPECT_EQ(ostinato_run({"show", plan, p, "--html", folder / "p.html"}).status, 0);
  const Result lowered = ostinato_run({"lower", plan, p, "--rank", "1", "--form", "compute"});
  EXPECT_EQ(lowered.out, "1F0,1F1,1B0,1B1\n") << lowered.err << "no I or W: the backward is whole";
}

TEST(ChooseOption, ChangesNothingWhereItIsNotGiven) {
  const TemporaryFolder folder;
  const std::string p = write_whole_is_quicker(folder);
  const Result result = ostinato_run({"search", p, "--micro-batches", "2", "--output", folder / "x.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(read_text(folder / "x.json").find("modes"), std::string::npos);
  EXPECT_EQ(ostinato_run({"lower", folder / "x.json", p, "--rank", "1", "--form", "compute"}).out.find('B'),
            std::string::npos);
}

TEST(ChooseOption, SaysWhichModesWereTaken) {
  const TemporaryFolder folder;
  const Result result = ostinato_run({"search", kChoices, "--micro-batches", "4", "--choose", "--time-limit",
                                      "0", "--output", folder / "x.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("modes             s0 recompute"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("with any modes    proven bound"), std::string::npos) << result.out;
}

TEST(ChooseOption, IsRefusedWhereThereIsNoChoice) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const Result result = ostinato_run(
      {"search", folder / "v.toml", "--micro-batches", "2", "--choose", "--output", folder / "x.json"});
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find("--choose needs [[choices]]"), std::string::npos) << result.err;
  EXPECT_EQ(ostinato_run({"search", kChoices, "--micro-batches", "2", "--choose", "--method", "1f1b",
                          "--output", folder / "x.json"})
                .status,
            2);
}

/// Lowers a plan of the sample with all choices, its mode "recompute" under another name.
Result lowered_with(const TemporaryFolder& folder, const std::string& mode) {
  std::string text = read_file(kChoices, 1 << 20);
  for (std::size_t at = 0; (at = text.find("\"recompute\"", at)) != std::string::npos; ++at)
    text.replace(at, 11, '"' + mode + '"');
  const std::string placement = folder.write("choices.toml", text);
  const Result searched = ostinato_run({"search", placement, "--micro-batches", "4", "--choose",
                                        "--time-limit", "0", "--output", folder / "x.json"});
  EXPECT_EQ(searched.status, 0) << searched.err;
  return ostinato_run({"lower", folder / "x.json", placement});
}

TEST(LowerCommand, RefusesAModeThatTheExecutorCannotRun) {
  const TemporaryFolder folder;
  const Result result = lowered_with(folder, "offload");
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find("mode 'offload' of choice 's0' cannot be enforced"), std::string::npos)
      << result.err;
}

TEST(LowerCommand, KnowsHowToRecompute) {
  const TemporaryFolder folder;
  const Result result = lowered_with(folder, "recompute");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("0B0"), std::string::npos) << result.out;
}

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
  const Result result =
      ostinato_run({"search", folder / "v.toml", "--micro-batches", "4", "--pareto", "memory", "--points",
                    "2", "--time-limit", "0", "--output", folder / "curve"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("gap  plan"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("No schedule fits in less than 1 MiB per device (proved)."), std::string::npos)
      << result.out;
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder / "curve")) ++files;
  EXPECT_EQ(files, 2);
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
