// SPDX-License-Identifier: Apache-2.0
// The commands that work on placements and plans, as a user runs them.

#include <gtest/gtest.h>

#include <filesystem>

#include "bindings/core/plan_summary.h"
#include "search/placement/placement_toml.h"
#include "search/placement/shapes.h"
#include "search/plan/plan_json.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

TEST(PlacementCommand, WritesWhatTheOptionsSay) {
  const TemporaryFolder folder;
  const Result result = ostinato_run({"placement", "wave", "--devices", "3", "--chunks", "2", "--forward",
                                      "1.5ms", "--backward", "2", "--weight", "3", "--memory", "64MiB",
                                      "--capacity", "2GiB", "--output", folder / "p.toml"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Placement placement = read_placement(folder / "p.toml").placement;
  EXPECT_EQ(placement.devices.size(), 3u);
  EXPECT_EQ(placement.devices[0].memory, Bytes{2} << 30);
  EXPECT_EQ(placement.blocks.size(), 18u);
  EXPECT_EQ(placement.blocks[placement.find_block("s4.F")].time, 1'500'000);
  EXPECT_EQ(placement.blocks[placement.find_block("s4.I")].time, 2000);
  EXPECT_EQ(placement.blocks[placement.find_block("s4.W")].memory, -(Bytes{64} << 20));
}

TEST(PlacementCommand, SharesTheLayersOfAModel) {
  const Placement placement =
      parse_placement(ostinato_run({"placement", "wave", "--devices", "2", "--layers", "16"}).out, "out")
          .placement;
  ASSERT_EQ(placement.stages.size(), 4u);
  EXPECT_EQ(placement.stages[1].layers.front(), 4);
  EXPECT_EQ(placement.stages[3].layers.back(), 15);
  const Result few = ostinato_run({"placement", "wave", "--devices", "2", "--layers", "3"});
  EXPECT_EQ(few.status, 2);
  EXPECT_NE(few.err.find("3 layers cannot be divided"), std::string::npos) << few.err;
}

TEST(PlacementCommand, TakesDecimalSizes) {
  const std::string text = ostinato_run({"placement", "v", "--capacity", "40GB"}).out;
  EXPECT_EQ(parse_placement(text, "out").placement.devices[0].memory, 40'000'000'000);
}

TEST(PlacementCommand, PrintsWithoutAnOutputFile) {
  const Result result = ostinato_run({"placement", "k", "--devices", "2", "--inference"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(parse_placement(result.out, "out").placement.blocks.size(), 3u);
}

TEST(PlacementCommand, TakesOneFigureForEachDevice) {
  const TemporaryFolder folder;
  const Result result = ostinato_run(
      {"placement",      "v",        "--devices", "2",           "--forward", "1.5ms,2",        "--capacity",
       "unlimited,3GiB", "--static", "1,2",       "--workspace", "4",         "--latency",      "20",
       "--bandwidth",    "12.5",     "--bytes",   "1",           "--output",  folder / "p.toml"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Placement placement = read_placement(folder / "p.toml").placement;
  EXPECT_EQ(placement.blocks[0].time, 1'500'000);
  EXPECT_EQ(placement.blocks[1].time, 2000);
  EXPECT_EQ(placement.devices[0].memory, kUnlimited);
  EXPECT_EQ(placement.devices[1].memory, Bytes{3} << 30);
  EXPECT_EQ(placement.devices[1].static_memory, Bytes{2} << 20);
  EXPECT_EQ(placement.blocks[0].workspace, Bytes{4} << 20);
  EXPECT_EQ(placement.link.latency, 20'000);
  EXPECT_EQ(placement.link.bytes_per_second, 12'500'000'000);
  EXPECT_EQ(placement.blocks[1].after[0].bytes, Bytes{1} << 20);
}

TEST(PlacementCommand, HelpShowsEveryShape) {
  const Result result = ostinato_run({"placement", "--help"});
  for (const std::string& name : shape_names())
    EXPECT_NE(result.out.find("\n  " + name + ": "), std::string::npos) << name;
  EXPECT_NE(result.out.find("    device 0   F             B\n    device 1     F         B\n"),
            std::string::npos);
}

TEST(PlacementCommand, RefusesWhatTheShapeCannotBe) {
  EXPECT_EQ(ostinato_run({"placement", "v", "--forward", "1,2"}).status, 2);

  const Result result = ostinato_run({"placement", "x", "--devices", "3"});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("even number of devices"), std::string::npos);
}

TEST(PlacementCommand, RefusesOptionsThatItsShapeDoesNotRead) {
  EXPECT_EQ(ostinato_run({"placement", "wave", "--chunks", "3"}).status, 0);
  EXPECT_EQ(ostinato_run({"placement", "m", "--shard-forward", "3"}).status, 0);
  for (const std::vector<std::string>& more : {std::vector<std::string>{"v", "--chunks", "2"},
                                               {"v", "--shard-forward", "3"},
                                               {"v", "--shard-memory", "3"},
                                               {"v", "--inference", "--weight", "3"},
                                               {"m", "--inference", "--shard-backward", "3"}}) {
    std::vector<std::string> args = {"placement"};
    args.insert(args.end(), more.begin(), more.end());
    const Result result = ostinato_run(args);
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find(" would do nothing: "), std::string::npos) << result.err;
  }
}

TEST(PlacementCommand, NamesOfFilesThatAreNone) {
  EXPECT_NE(ostinato_run({"placement", "v", "--output", "-"})
                .err.find("is not a file name here; for standard output give /dev/stdout"),
            std::string::npos);
  EXPECT_NE(ostinato_run({"placement", "v", "--output", ""}).err.find("--output needs a value, got \"\""),
            std::string::npos);
}

TEST(SearchCommand, ARepeatingPartAboveItsBoundIsProvedForAsManyMicroBatches) {
  const TemporaryFolder folder;
  const std::string path = folder / "p.toml";
  ASSERT_EQ(ostinato_run({"placement", "wave", "--devices", "2", "--chunks", "2", "--forward", "1",
                          "--backward", "2", "--memory", "1B", "--capacity", "3B", "--output", path})
                .status,
            0);
  const std::string told = ostinato_run({"search", path, "--steady-state"}).out;
  EXPECT_NE(told.find("7 us for 1 micro-batch, the shortest for as many (proved)"), std::string::npos)
      << told;
}

TEST(SearchCommand, ReportsTheRepeatingPartAlone) {
  const TemporaryFolder folder;
  const std::string path = folder / "p.toml";
  ASSERT_EQ(ostinato_run({"placement", "m", "--forward", "1", "--backward", "3", "--shard-forward", "1",
                          "--shard-backward", "1", "--memory", "1", "--output", path})
                .status,
            0);
  const Result text = ostinato_run({"search", path, "--steady-state"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("6 us for 1 micro-batch, the shortest (proved)"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("5 MiB, the least at this period (proved)"), std::string::npos) << text.out;

  const Result json = ostinato_run({"search", path, "--steady-state", "--json"});
  const auto report = nlohmann::json::parse(json.out);
  EXPECT_EQ(report["period"], 6000);
  EXPECT_EQ(report["peak_memory"].size(), 4u);
  EXPECT_TRUE(report["period_proved"]);
  EXPECT_TRUE(report["memory_proved"]);
  EXPECT_EQ(ostinato_run({"search", path}).status, 2);
  EXPECT_NE(ostinato_run({"search", path, "--steady-state", "--points", "4"}).err.find("--points needs"),
            std::string::npos);
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--explain"},
                                               {"--method", "gpipe"},
                                               {"--objective", "latency"},
                                               {"--output", "p.json"},
                                               {"--pareto", "memory"}}) {
    std::vector<std::string> args = {"search", path, "--steady-state"};
    args.insert(args.end(), more.begin(), more.end());
    const Result refused = ostinato_run(args);
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find("--steady-state cannot be combined"), std::string::npos) << refused.err;
  }
}

TEST(SearchCommand, WritesOutTheControlCharactersOfAName) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("p.toml",
                   "format = \"ostinato-placement/1\"\nname = \"\\u001b[31mX\"\ntime_unit = "
                   "\"ns\"\n[[devices]]\n[[blocks]]\nname = \"F\"\ndevices = [0]\ntime = 2\n");
  const Result text = ostinato_run({"search", path, "--steady-state"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\\u001b[31mX: "), std::string::npos) << text.out;
}

TEST(SearchCommand, SaysOfARepeatingPartWhatItLeavesBehind) {
  const TemporaryFolder folder;
  const std::string path = folder / "p.toml";
  const std::string text =
      "format = \"ostinato-placement/1\"\ntime_unit = \"ns\"\nmemory_unit = \"B\"\n[[devices]]\n"
      "[[blocks]]\nname = \"F\"\ndevices = [0]\ntime = 2\nmemory = 3\n";
  folder.write("p.toml", text);
  const Result words = ostinato_run({"search", path, "--steady-state"});
  EXPECT_EQ(words.status, 0) << words.err;
  EXPECT_NE(words.out.find("each micro-batch leaves 3 B behind"), std::string::npos) << words.out;
  const auto report = nlohmann::json::parse(ostinato_run({"search", path, "--steady-state", "--json"}).out);
  EXPECT_TRUE(report["peak_memory"].is_null());
  EXPECT_EQ(report["left_behind"], nlohmann::json({3}));
}

TEST(SearchCommand, WritesAPlanThatVerifyAccepts) {
  const TemporaryFolder folder;
  for (const std::string& shape : shape_names()) {
    ASSERT_EQ(ostinato_run({"placement", shape, "--output", folder / "p.toml"}).status, 0);
    const Result searched = ostinato_run({"search", folder / "p.toml", "--micro-batches", "3", "--time-limit",
                                          "0.5", "--output", folder / "p.json"});
    EXPECT_EQ(searched.status, 0) << shape << searched.err;
    const Result verified = ostinato_run({"verify", folder / "p.json", folder / "p.toml"});
    EXPECT_EQ(verified.status, 0) << shape << verified.out << verified.err;
  }
}

TEST(SearchCommand, AKnownScheduleThatWasShortenedIsStillCompared) {
  const TemporaryFolder folder;
  make_plan(folder, 8);
  PlanAndPlacement read = read_plan_and_placement(folder / "v.json", folder / "v.toml");
  read.plan.search.method = "gpipe";
  const std::string as_it_is = core::summary(read.plan, read.file.placement, -1);
  EXPECT_EQ(as_it_is.find("gpipe, 33 us"), std::string::npos) << as_it_is;
  EXPECT_NE(as_it_is.find("method            gpipe\n"), std::string::npos) << as_it_is;
  read.plan.makespan -= 1000;
  const std::string shorter = core::summary(read.plan, read.file.placement, -1);
  EXPECT_NE(shorter.find("gpipe, 33 us, 1.031 times as long"), std::string::npos) << shorter;
  EXPECT_NE(shorter.find("method            gpipe, improved\n"), std::string::npos) << shorter;
}

TEST(SearchCommand, ShowsTheBoundAndOneFOneB) {
  const TemporaryFolder folder;
  make_plan(folder, 8);
  const Result result = ostinato_run({"search", folder / "v.toml", "--micro-batches", "8", "--method", "1f1b",
                                      "--output", folder / "again.json"});
  EXPECT_NE(result.out.find("makespan          33 us, optimal (proved)"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("known schedules   1f1b, 33 us, 1.000 times as long"), std::string::npos)
      << result.out;
  EXPECT_EQ(result.err, "") << "progress belongs on a terminal only";
  EXPECT_EQ(read_text(folder / "again.json"), read_text(folder / "v.json"));
}

TEST(SearchCommand, PrintsOneJsonObject) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  const nlohmann::json json = ostinato_run({"search", folder / "v.toml", "--micro-batches", "4", "--method",
                                            "gpipe", "--output", folder / "g.json", "--json"})
                                  .json();
  EXPECT_EQ(json["status"], 0);
  EXPECT_EQ(json["makespan"], 21'000);
  EXPECT_EQ(json["method"], "gpipe");
  EXPECT_EQ(json["peak_memory"], nlohmann::json(std::vector<Bytes>(4, Bytes{4} << 20)));
  EXPECT_EQ(json["named"]["1f1b"]["makespan"], 21'000);
  EXPECT_EQ(json["named"]["1f1b"]["fits"], true);
}

TEST(SearchCommand, ReportsInfeasibilityWithItsProof) {
  const TemporaryFolder folder;
  ASSERT_EQ(
      ostinato_run({"placement", "v", "--memory", "2", "--capacity", "1", "--output", folder / "p.toml"})
          .status,
      0);
  const Result result =
      ostinato_run({"search", folder / "p.toml", "--micro-batches", "2", "--output", folder / "p.json"});
  EXPECT_EQ(result.status, 4);
  EXPECT_NE(result.err.find("infeasible"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "p.json"));
}

TEST(SearchCommand, RefusesAMethodThatThePlacementDoesNotAdmit) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const Result result = ostinato_run({"search", folder / "v.toml", "--micro-batches", "2", "--method",
                                      "zb-h1", "--output", folder / "z.json"});
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find("backward split"), std::string::npos) << result.err;
}

TEST(SearchCommand, LooksAtTheOutputBeforeItSearches) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const Result result = ostinato_run(
      {"search", folder / "v.toml", "--micro-batches", "2", "--output", folder / "no/such/folder/plan.json"});
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find("the folder does not exist"), std::string::npos) << result.err;
}

TEST(VerifyCommand, FailsWithStatus6WhereAClaimIsWrong) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  nlohmann::ordered_json plan = nlohmann::ordered_json::parse(read_text(folder / "v.json"));
  plan["makespan"] = plan["makespan"].get<long>() - 1;
  const std::string wrong = folder.write("wrong.json", plan.dump());
  const Result result = ostinato_run({"verify", wrong, folder / "v.toml"});
  EXPECT_EQ(result.status, 6);
  EXPECT_NE(result.out.find("FAILED"), std::string::npos) << result.out;
  const nlohmann::json json = ostinato_run({"verify", wrong, folder / "v.toml", "--json"}).json();
  EXPECT_EQ(json["ok"], false);
  EXPECT_FALSE(json["failures"].empty());
}

TEST(VerifyCommand, FailsWithStatus6WhereABoundOfTheSpanIsTooHigh) {
  const TemporaryFolder folder;
  ASSERT_EQ(ostinato_run({"placement", "v", "--backward", "1", "--weight", "1", "--capacity", "4", "--output",
                          folder / "v.toml"})
                .status,
            0);
  const Result search = ostinato_run({"search", folder / "v.toml", "--micro-batches", "8", "--objective",
                                      "span", "--output", folder / "v.json"});
  ASSERT_EQ(search.status, 0) << search.err;
  EXPECT_NE(search.out.find("optimal"), std::string::npos) << search.out;  // 3 * 8 + 3 us
  EXPECT_EQ(ostinato_run({"verify", folder / "v.json", folder / "v.toml"}).status, 0);
  nlohmann::ordered_json plan = nlohmann::ordered_json::parse(read_text(folder / "v.json"));
  EXPECT_EQ(plan["lower_bound"]["span"], 27'000);
  plan["lower_bound"]["span"] = 27'001;
  plan["optimal"]["span"] = false;
  const std::string wrong = folder.write("wrong.json", plan.dump());
  const Result result = ostinato_run({"verify", wrong, folder / "v.toml"});
  EXPECT_EQ(result.status, 6);
  EXPECT_NE(result.out.find("lower_bound.span is 27001 ns, but only 27000 ns are proved"), std::string::npos)
      << result.out;
}

TEST(VerifyCommand, RefusesAPlanOfAnotherPlacement) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  const std::string other = folder.write("other.toml", read_text(folder / "v.toml") + "\n# another file\n");
  EXPECT_EQ(ostinato_run({"verify", folder / "v.json", other}).status, 3);
}

TEST(SimulateCommand, PrintsMakespansAndWhatBinds) {
  const TemporaryFolder folder;
  make_plan(folder, 8);
  const std::vector<std::string> args = {
      "simulate", folder / "v.json", folder / "v.toml", "--jitter", "0.1", "--runs", "30", "--seed",
      "5",        "--explain"};
  const Result result = ostinato_run(args);
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* word :
       {"planned  33 us", "median", "worst", "The critical chain determines the makespan of 33 us"}) {
    EXPECT_NE(result.out.find(word), std::string::npos) << result.out;
  }
  EXPECT_EQ(ostinato_run(args).out, result.out);
}

TEST(SimulateCommand, WithoutVariationEveryRunIsThePlan) {
  const TemporaryFolder folder;
  make_plan(folder, 8);
  const nlohmann::json json =
      ostinato_run({"simulate", folder / "v.json", folder / "v.toml", "--runs", "2", "--json"}).json();
  EXPECT_EQ(json["planned"], 33'000);
  EXPECT_EQ(json["worst"], 33'000);
  EXPECT_EQ(json["runs"], 2);
}

TEST(SimulateCommand, VariesEachMicroBatchAlsoOfAPlanWithSizes) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  std::string text = "format = \"ostinato-sizes/1\"\nsize = 1\n";
  for (int i = 0; i < 4; ++i) text += "[[micro_batches]]\nsize = 1\n";
  const std::string sizes = folder.write("alike.toml", text);
  const std::vector<std::string> args = {
      "simulate", folder / "v.json", folder / "v.toml", "--unequal", "0.5", "--jitter", "0.1", "--runs",
      "20"};
  std::vector<std::string> with_sizes = args;
  with_sizes.insert(with_sizes.end(), {"--sizes", sizes});
  EXPECT_EQ(ostinato_run(with_sizes).out, ostinato_run(args).out);
}

TEST(LowerCommand, PrintsARowARank) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const Result all = ostinato_run({"lower", folder / "v.json", folder / "v.toml"});
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'), 4);
  const Result one =
      ostinato_run({"lower", folder / "v.json", folder / "v.toml", "--rank", "3", "--form", "compute"});
  EXPECT_EQ(one.out, "3F0,3B0,3F1,3B1\n");
  EXPECT_EQ(ostinato_run({"lower", folder / "v.json", folder / "v.toml", "--rank", "4"}).status, 2);
}

TEST(LowerCommand, NamesTheFileOfAPlacementThatOnlySearchesTake) {
  const TemporaryFolder folder;
  const std::string placement = folder.write("p.toml", R"(format = "ostinato-placement/1"
[[devices]]
[[blocks]]
name = "f"
stage = "a"
kind = "forward"
devices = [0]
time = 1
[[blocks]]
name = "b"
stage = "c"
kind = "backward"
devices = [0]
time = 1
after = ["f"]
)");
  const std::string plan = folder / "plan.json";
  ASSERT_EQ(ostinato_run({"search", placement, "--micro-batches", "2", "--output", plan}).status, 0);
  const Result lowered = ostinato_run({"lower", plan, placement});
  EXPECT_EQ(lowered.status, 3);
  EXPECT_NE(lowered.err.find(placement + ": placement"), std::string::npos) << lowered.err;
}

TEST(SearchCommand, ExplainTellsWhatEachTechniqueBrought) {
  const TemporaryFolder folder;
  const std::string path = folder / "p.toml", plan = folder / "p.json";
  ASSERT_EQ(ostinato_run({"placement", "m", "--devices", "4", "--output", path}).status, 0);
  const std::vector<std::string> words = {"search",   path, "--micro-batches", "8",
                                          "--output", plan, "--explain"};
  const Result text = ostinato_run(words);
  EXPECT_EQ(text.status, 0);
  EXPECT_NE(text.out.find("\nnamed schedules  "), std::string::npos) << text.out;
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  EXPECT_NE(text.out.find(" works most, "), std::string::npos) << text.out;
  const nlohmann::json said = ostinato_run(as_json).json();
  Nanoseconds whole = 0;
  for (const char* part : {"work", "before_first", "warm_up", "repetends", "cool_down", "after_last"})
    whole += said["waiting"][part].get<Nanoseconds>();
  EXPECT_EQ(whole, said["makespan"]);
  const auto& techniques = said["techniques"];
  ASSERT_GE(techniques.size(), 3);
  EXPECT_EQ(techniques[0]["technique"], "one micro-batch after another");
  std::vector<std::string> contradicting = words;
  contradicting.insert(contradicting.end(), {"--method", "gpipe"});
  EXPECT_EQ(ostinato_run(contradicting).status, 2);
}

}  // namespace
}  // namespace ostinato::cli::test
