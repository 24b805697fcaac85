// SPDX-License-Identifier: Apache-2.0
// `partition` and `plan`: from a profile to a placement and a plan.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "search/files/file.h"
#include "search/placement/placement_toml.h"
#include "search/profile/profile_json.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

const std::vector<long> kUneven = {1000, 1000, 1000, 5000, 1000, 1000, 1000, 1000, 2000, 2000};

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

TEST(PlanCommand, TakesTheShortestCandidateAndExplainsIt) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(kUneven));
  const Result result = ostinato_run(
      {"plan", profile, "--devices", "2", "--micro-batches", "4", "--time-limit", "2", "--max-chunks", "2",
       "--without", "moves", "--placement-output", folder / "p.toml", "--output", folder / "p.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* text : {"1 chunk per device", "looped, 2 chunks per device", "wave, 2 chunks per device",
                           "1F1B on the best stages", "1F1B on an even split", "was chosen"}) {
    EXPECT_NE(result.out.find(text), std::string::npos) << result.out;
  }
  EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
}

/// Two rows' makespans, where the optimizer's step decides against the shorter one.
TEST(PlanCommand, ExplainsAWinnerWhoseMakespanIsNotTheShortest) {
  const TemporaryFolder folder;
  Profile profile = parse_profile(profile_text({500, 900, 300, 400, 800, 700}), "p.json");
  profile.layers[2].step_time = 2700;
  profile.layers[5].step_time = 1500;
  const Result result = ostinato_run(
      {"plan", folder.write("profile.json", format_profile(profile)), "--devices", "2", "--micro-batches",
       "4", "--time-limit", "100", "--placement-output", folder / "p.toml", "--output", folder / "p.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("  0.9"), std::string::npos) << result.out;  // a row below the starred one
  EXPECT_NE(result.out.find("was chosen: including the optimizer's step it takes 26\nus, the least found"),
            std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("takes 3.84 % more with that"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find(" -"), std::string::npos) << result.out;
  EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
}

TEST(PlanCommand, PrefersFewerBlocksWhereTheTimesAreNotKnownBetter) {
  const TemporaryFolder folder;
  const auto plan = [&](long hundredths) {
    Profile profile = parse_profile(profile_text({1100, 1100, 1000, 1000, 1100, 1100}), "p.json");
    for (LayerCost& layer : profile.layers) {
      for (Spread* spread : {&layer.forward, &layer.backward}) {
        spread->low -= spread->median * hundredths / 100;
        spread->high += spread->median * hundredths / 100;
      }
    }
    return ostinato_run({"plan", folder.write("profile.json", format_profile(profile)), "--devices", "2",
                         "--micro-batches", "100", "--max-chunks", "2", "--without", "moves", "--time-limit",
                         "100", "--placement-output", folder / "p.toml", "--output", folder / "p.json"});
  };
  const Result exact = plan(0), measured = plan(3);
  EXPECT_NE(exact.out.find("looped, 2 chunks per device was chosen"), std::string::npos) << exact.out;
  EXPECT_NE(measured.out.find("1 chunk per device was chosen: it has 4 blocks instead of 8"),
            std::string::npos)
      << measured.out;
  EXPECT_NE(measured.out.find("within the uncertainty of the profile's times"), std::string::npos);
  EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
}

TEST(PlanCommand, StatesWhatNoPlacementGoesBelow) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(kUneven));
  const std::string plan = folder / "p.json", placement = folder / "p.toml";
  const Result result = ostinato_run({"plan", profile, "--devices", "2", "--micro-batches", "4",
                                      "--placement-output", placement, "--output", plan, "--json"});
  const nlohmann::json json = result.json();
  const std::int64_t bound = json["any_placement"]["lower_bound"];
  EXPECT_GT(bound, 0);
  EXPECT_LE(bound, json["makespan"]);

  const Result alone = ostinato_run({"verify", plan, placement});
  EXPECT_EQ(alone.status, 0);
  EXPECT_NE(alone.out.find("not checked  any_placement"), std::string::npos) << alone.out;
  const Result whole = ostinato_run({"verify", plan, placement, "--profile", profile});
  EXPECT_EQ(whole.status, 0) << whole.out;
  EXPECT_NE(whole.out.find("(D1)"), std::string::npos) << whole.out;
  EXPECT_EQ(whole.out.find("not checked"), std::string::npos);

  std::string text = read_file(plan, kMaxPlacementBytes);
  const std::string claim = "\"lower_bound\": " + std::to_string(bound) + " }";
  const std::size_t at = text.find(claim, text.find("any_placement"));
  ASSERT_NE(at, std::string::npos);
  text.replace(at, claim.size(), "\"lower_bound\": " + std::to_string(bound + 1) + " }");
  const Result more =
      ostinato_run({"verify", folder.write("more.json", text), placement, "--profile", profile});
  EXPECT_EQ(more.status, 6) << more.out;
  EXPECT_EQ(ostinato_run({"verify", plan, placement, "--profile", profile, "--devices", "3"}).status, 6);
  EXPECT_EQ(ostinato_run({"verify", plan, placement, "--devices", "3"}).status, 2);
}

TEST(PlanCommand, IsNoWorseThanAnyCandidateOrBaseline) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(kUneven));
  const nlohmann::json json =
      ostinato_run({"plan", profile, "--devices", "2", "--micro-batches", "4", "--time-limit", "2",
                    "--placement-output", folder / "p.toml", "--output", folder / "p.json", "--json"})
          .json();
  ASSERT_GE(json["candidates"].size(), 7u);  // 1, looped and wave of 2, 3 and 4 chunks
  for (const auto& candidate : json["candidates"]) {
    if (candidate.contains("makespan")) {
      EXPECT_LE(json["makespan"], candidate["makespan"]);
    } else {
      EXPECT_NE(candidate["why_not"], "");
    }
  }
  EXPECT_LE(json["makespan"], json["baselines"]["1f1b"]["makespan"]);
  EXPECT_LT(json["makespan"], json["baselines"]["1f1b_even_split"]["makespan"]);
  const nlohmann::json plan = nlohmann::json::parse(read_text(folder / "p.json"));
  ASSERT_EQ(plan["baselines"].size(), 2u);
  EXPECT_EQ(plan["baselines"][0]["name"], "1f1b");
  EXPECT_EQ(plan["baselines"][0]["makespan"], json["baselines"]["1f1b"]["makespan"]);
  EXPECT_EQ(plan["baselines"][1]["name"], "1f1b_even_split");
  EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
}

/// `plan` of the profile into p.json and p.toml of the folder.
Result planned_of(const TemporaryFolder& folder, const Profile& profile, const std::string& devices,
                  const std::string& micro_batches, const std::vector<std::string>& more) {
  std::vector<std::string> args = {"plan", folder.write("profile.json", format_profile(profile))};
  args.insert(args.end(), {"--devices", devices, "--micro-batches", micro_batches, "--placement-output",
                           folder / "p.toml", "--output", folder / "p.json"});
  args.insert(args.end(), more.begin(), more.end());
  return ostinato_run(args);
}

/// The profile keeps how DeepSpeed divides the layers, and what its steps took.
TEST(PlanCommand, ComparesWithWhatTheScriptRunsNow) {
  const TemporaryFolder folder;
  Profile profile = parse_profile(profile_text({1000, 1000, 1000, 7000}), "p.json");
  profile.run = {.layers = {3, 1}, .micro_batches = 4, .step = {70'000, 60'000, 80'000, 5}};
  const auto planned = [&](const std::string& devices, const std::string& micro_batches,
                           const std::vector<std::string>& more) {
    return planned_of(folder, profile, devices, micro_batches, more);
  };
  const Result told = planned("2", "4", {"--without", "shards"});
  ASSERT_EQ(told.status, 0) << told.err;
  std::string flat = told.out;
  std::replace(flat.begin(), flat.end(), '\n', ' ');
  for (const char* text : {"* this plan: ", "  your run now, layers 3|1 ", "  1F1B on the best stages ",
                           "times as fast as your run now (measured: 70 us per step, including",
                           "times as fast as 1F1B on the best stages"})
    EXPECT_NE(flat.find(text), std::string::npos) << text << "\n" << told.out;
  for (const char* text : {"an even split", "not known", "\n  1f1b "})
    EXPECT_EQ(told.out.find(text), std::string::npos) << text << "\n" << told.out;
  const nlohmann::json plan = nlohmann::json::parse(read_text(folder / "p.json"));
  ASSERT_EQ(plan["baselines"].size(), 2u);
  EXPECT_EQ(plan["baselines"][0]["name"], "your_run");
  EXPECT_EQ(plan["baselines"][0]["measured_step"], 70'000);
  const nlohmann::json json = planned("2", "4", {"--json"}).json();
  EXPECT_EQ(json["baselines"]["your_run"]["makespan"], plan["baselines"][0]["makespan"]);
  EXPECT_TRUE(json["baselines"]["1f1b_even_split"].is_null());
  EXPECT_FALSE(planned("2", "5", {"--json"}).json()["baselines"]["your_run"].contains("measured_step"));
  const Result others = planned("3", "4", {});  // DeepSpeed's partition is of two stages
  EXPECT_NE(others.out.find("The time of your current run is not known"), std::string::npos) << others.out;
  EXPECT_NE(others.out.find("1F1B on an even split of layers"), std::string::npos) << others.out;
}

/// A layer that is more than a device's share, and what ends that; what cannot be tried is refused.
TEST(PlanCommand, NamesTheLayerThatLimitsEveryPlan) {
  const TemporaryFolder folder;
  Profile profile = parse_profile(profile_text({1000, 1000, 1000, 1000, 9000}), "p.json");
  const auto planned = [&](std::vector<std::string> more) {
    more.emplace_back("--all-devices");
    return planned_of(folder, profile, "4", "4", more);
  };
  const Result told = planned({});
  const std::string name = profile.layers[4].name;
  const auto flat = [](std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  };
  const std::string limit = name + " is 69 % of the work and runs on one of 4 devices: no plan is more than ";
  EXPECT_NE(flat(told.out).find(limit), std::string::npos) << told.out;
  EXPECT_NE(flat(told.out).find("or give its class sharded(shard)."), std::string::npos) << told.out;
  EXPECT_EQ(planned({"--json"}).json()["limit"].get<std::string>().substr(0, limit.size()), limit);
  const Result refused = planned({"--shard", "4"});
  EXPECT_EQ(refused.status, 3);
  EXPECT_NE(refused.err.find("layer \"" + name + "\" cannot be divided"), std::string::npos) << refused.err;
  const Result nothing = planned({"--only", "shards,branches"});
  EXPECT_EQ(nothing.status, 2);
  EXPECT_NE(nothing.err.find("--only shards,branches leaves nothing to try"), std::string::npos)
      << nothing.err;
  profile.layers[4].shardable = true;
  EXPECT_NE(flat(planned({"--exact-losses"}).out).find("allow shards, which change the rounding"),
            std::string::npos);
  EXPECT_EQ(planned({"--only", "shards", "--json"}).json()["limit"], "");
}

TEST(PlanCommand, WhatTheLimitCutIsWrittenAndToldOf) {
  const TemporaryFolder folder;
  std::vector<Nanoseconds> times;  // more than any machine searches in the time
  for (int l = 0; l < 64; ++l) times.push_back(1000 + 137 * (l * l % 31));
  const std::string profile = folder.write("profile.json", profile_text(times));
  std::vector<std::string> args = {"plan",
                                   profile,
                                   "--devices",
                                   "8",
                                   "--micro-batches",
                                   "64",
                                   "--time-limit",
                                   "0.0001",
                                   "--placement-output",
                                   folder / "p.toml",
                                   "--output",
                                   folder / "p.json"};
  const Result cut = ostinato_run(args);
  EXPECT_EQ(cut.status, 0) << cut.err;
  EXPECT_NE(cut.out.find("a longer --time-limit"), std::string::npos) << cut.out;
  EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
  args.insert(args.end(), {"--strict", "--json"});
  const Result strict = ostinato_run(args);
  EXPECT_EQ(strict.status, 5);
  EXPECT_GT(strict.json()["candidates_cut"], 0);
  EXPECT_TRUE(strict.json()["cut_by_limit"]);
  EXPECT_TRUE(nlohmann::json::parse(read_text(folder / "p.json"))["search"]["cut_by_limit"]);
}

/// However much time a machine needs: a plan that no limit has cut is the one without a limit.
TEST(PlanCommand, WhatIsNotCutIsAsWithoutALimit) {
  const TemporaryFolder folder;
  std::vector<Nanoseconds> times;
  for (int l = 0; l < 12; ++l) times.push_back(1000 + 137 * (l * l % 31));
  const std::string profile = folder.write("profile.json", profile_text(times));
  const auto planned = [&](const std::string& limit) {
    const Result result = ostinato_run({"plan", profile, "--devices", "4", "--micro-batches", "6", "--strict",
                                        "--time-limit", limit, "--json", "--placement-output",
                                        folder / "p.toml", "--output", folder / "p.json"});
    const nlohmann::json file = nlohmann::json::parse(read_text(folder / "p.json"));
    const bool cut = file["search"]["cut_by_limit"];
    EXPECT_EQ(result.status, cut ? 5 : 0) << result.err;
    EXPECT_EQ(result.json()["cut_by_limit"], cut);
    return std::tuple(cut, file["makespan"].get<Nanoseconds>(), read_text(folder / "p.toml"));
  };
  const auto whole = planned("0");
  EXPECT_FALSE(std::get<0>(whole));
  for (const char* limit : {"0.001", "0.01", "0.03", "0.1", "0.3", "1", "3"}) {
    SCOPED_TRACE(limit);
    const auto some = planned(limit);
    if (!std::get<0>(some)) {
      EXPECT_EQ(some, whole);
    }
  }
}

TEST(PlanCommand, WhatIsProvedIsNotCut) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000}));
  const Result result =
      ostinato_run({"plan", profile, "--devices", "1", "--micro-batches", "2", "--strict", "--json",
                    "--placement-output", folder / "p.toml", "--output", folder / "p.json"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json()["candidates_cut"], 0);
  EXPECT_TRUE(result.json()["optimal"]["makespan"]);
}

TEST(PlanCommand, VerboseTellsEveryCandidate) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(kUneven));
  std::vector<std::string> args = {"plan",
                                   profile,
                                   "--devices",
                                   "2",
                                   "--micro-batches",
                                   "4",
                                   "--time-limit",
                                   "2",
                                   "--placement-output",
                                   folder / "p.toml",
                                   "--output",
                                   folder / "p.json"};
  const std::string few = ostinato_run(args).out;
  args.emplace_back("-v");
  const std::string all = ostinato_run(args).out;
  EXPECT_NE(few.find("more cannot be shorter (proved)"), std::string::npos) << few;
  EXPECT_EQ(all.find("more cannot be shorter (proved)"), std::string::npos) << all;
  EXPECT_GT(std::count(all.begin(), all.end(), '\n'), std::count(few.begin(), few.end(), '\n') + 3);
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

/// Of `plan` on kUneven layers with halves, with these options: the names of its candidates.
std::string names_of_candidates(const std::vector<std::string>& options) {
  const TemporaryFolder folder;
  nlohmann::json profile = nlohmann::json::parse(profile_text(kUneven));
  for (nlohmann::json& layer : profile["layers"])
    layer["backward_input"] = layer["backward_weight"] = layer["forward"];
  std::vector<std::string> words = {"plan",
                                    folder.write("profile.json", profile.dump()),
                                    "--devices",
                                    "2",
                                    "--micro-batches",
                                    "4",
                                    "--placement-output",
                                    folder / "p.toml",
                                    "--output",
                                    folder / "p.json",
                                    "--time-limit",
                                    "100",
                                    "--json"};
  words.insert(words.end(), options.begin(), options.end());
  const Result result = ostinato_run(words);
  if (result.status == 2) return result.err;
  EXPECT_EQ(result.status, 0) << result.err;
  const nlohmann::json json = result.json();
  std::string names;
  for (const auto& candidate : json["candidates"]) names += candidate["name"].get<std::string>() + "\n";
  return names;
}

TEST(PlanCommand, TriesEverythingUnlessToldOtherwise) {
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string all = names_of_candidates({});
  for (const char* part : {", split", ", moved", "looped", "wave", "1 of 2 devices"})
    EXPECT_TRUE(has(all, part)) << part << " in\n" << all;
  const std::string exact = names_of_candidates({"--exact-losses"});
  EXPECT_FALSE(has(exact, ", split"));
  EXPECT_TRUE(has(exact, "looped"));
  const std::string without = names_of_candidates({"--without", "chunks,moves"});
  EXPECT_TRUE(has(without, ", split"));
  EXPECT_FALSE(has(without, "looped") || has(without, "moved"));
  const std::string only = names_of_candidates({"--only", "chunks"});
  EXPECT_TRUE(has(only, "looped"));
  EXPECT_FALSE(has(only, ", split") || has(only, "moved") || has(only, "of 2 devices"));
}

/// `plan` of four even layers with halves, whose quartiles are so far off the median: with so many
/// micro-batches split backwards gain less than a hundredth.
Result of_even_layers(const TemporaryFolder& folder, long off, const std::vector<std::string>& options) {
  nlohmann::json profile = nlohmann::json::parse(profile_text({100'000, 100'000, 100'000, 100'000}));
  for (nlohmann::json& layer : profile["layers"]) {
    layer["backward_input"] = layer["backward_weight"] = layer["forward"];
    for (const char* direction : {"forward", "backward"}) {
      const long median = layer[direction]["median"];
      layer[direction].update({{"low", median - off}, {"high", median + off}});
    }
  }
  std::vector<std::string> words = {"plan", folder.write("profile.json", profile.dump())};
  for (const char* word :
       {"--devices", "2", "--micro-batches", "200", "--max-chunks", "1", "--time-limit", "100"})
    words.emplace_back(word);
  words.insert(words.end(), {"--placement-output", folder / "p.toml", "--output", folder / "p.json"});
  words.insert(words.end(), options.begin(), options.end());
  return ostinato_run(words);
}

TEST(PlanCommand, KeepsLossesWhereTheTimesAreNotKnownBetter) {
  const TemporaryFolder folder;
  const Result exact = of_even_layers(folder, 0, {});
  EXPECT_NE(exact.out.find(", split was chosen"), std::string::npos) << exact.out << exact.err;
  const Result measured = of_even_layers(folder, 5'000, {});
  EXPECT_NE(measured.out.find("losses are equal to 1F1B's"), std::string::npos) << measured.out;
  const Result data = of_even_layers(folder, 5'000, {"--json"});
  EXPECT_EQ(data.json()["chosen"].get<std::string>().find("split"), std::string::npos);
  EXPECT_NE(data.json()["shortest"].get<std::string>().find("split"), std::string::npos);
  EXPECT_EQ(
      ostinato_run({"verify", folder / "p.json", folder / "p.toml", "--profile", folder / "profile.json"})
          .status,
      0);
}

TEST(PlanCommand, ChoosesHowManyPipelinesRunBesideEachOther) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(kUneven));
  const auto plan = [&](const std::string& replicas, const std::vector<std::string>& options = {}) {
    std::vector<std::string> words = {"plan", profile, "--devices", "4", "--micro-batches", "8"};
    words.insert(words.end(), {"--replicas", replicas, "--without", "moves"});
    words.insert(words.end(), {"--placement-output", folder / "p.toml", "--output", folder / "p.json"});
    words.insert(words.end(), options.begin(), options.end());
    return ostinato_run(words);
  };
  const Result any = plan("auto");
  ASSERT_EQ(any.status, 0) << any.err;
  EXPECT_NE(any.out.find("Launch 4 ranks with PipelineModule(num_stages=1)"), std::string::npos) << any.out;
  EXPECT_NE(any.out.find("no link was measured"), std::string::npos) << any.out;
  const Result two = plan("2");
  EXPECT_NE(two.out.find("num_stages=2) and gradient_accumulation_steps\n4."), std::string::npos) << two.out;
  EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml", "--profile", profile}).status, 0);
  EXPECT_EQ(plan("3").status, 3);
  EXPECT_EQ(plan("all").status, 2);
  const nlohmann::json degrees = plan("auto", {"--json"}).json()["degrees"];
  ASSERT_EQ(degrees.size(), 3U) << degrees;
  for (const nlohmann::json& degree : degrees) {
    EXPECT_EQ(degree["pipeline"].get<int>() * degree["replicas"].get<int>(), 4);
    EXPECT_EQ(degree["micro_batches"].get<int>() * degree["replicas"].get<int>(), 8);
    if (degree.contains("why_not")) continue;
    EXPECT_EQ(degree["step"].get<std::int64_t>(), degree["objective_value"].get<std::int64_t>());
    EXPECT_EQ(degree["all_reduce"], 0);
  }
  EXPECT_TRUE(degrees[0].contains("step") && degrees[1].contains("why_not")) << degrees;
}

TEST(PlanCommand, RefusesRestrictionsThatAreNone) {
  EXPECT_NE(names_of_candidates({"--without", "chunk"}).find("did you mean chunks?"), std::string::npos);
  EXPECT_NE(names_of_candidates({"--without", "split", "--only", "chunks"}).find("exclude each other"),
            std::string::npos);
  EXPECT_NE(names_of_candidates({"--exact-losses", "--split-backward"})
                .find("--split-backward asks for split backwards (--exact-losses)"),
            std::string::npos);
}

TEST(PlanCommand, SaysWhatWasNotTriedAndWhy) {
  const TemporaryFolder folder;
  nlohmann::json profile = nlohmann::json::parse(profile_text({9000, 2000, 2000, 2000, 2000, 9000}));
  for (nlohmann::json& layer : profile["layers"])
    layer["backward_input"] = layer["backward_weight"] = layer["forward"];
  const auto plan = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words = {"plan", folder.write("profile.json", profile.dump()), "--devices", "2"};
    words.insert(words.end(),
                 {"--micro-batches", "4", "--time-limit", "100", "--all-devices", "--without", "moves"});
    words.insert(words.end(), {"--placement-output", folder / "p.toml", "--output", folder / "p.json"});
    words.insert(words.end(), options.begin(), options.end());
    return ostinato_run(words);
  };
  EXPECT_EQ(plan({}).out.find("not tried"), std::string::npos);
  const Result waves = plan({"--fixed-ends", "--max-chunks", "2"});
  for (const char* text : {"not tried: more than 2 stages per device (--max-chunks 2)",
                           "wave, 2 chunks per device (not allowed: fixed_ends)", "of these, wave, 2 chunks"})
    EXPECT_NE(waves.out.find(text), std::string::npos) << text << waves.out << waves.err;
  profile["restrictions"] = {
      {{"rule", "most_chunks"}, {"chunks", 1}, {"reason", "Net has its own forward()"}},
      {{"rule", "whole_backwards"}, {"reason", "halves draw other numbers"}}};
  const nlohmann::json own = plan({"--max-chunks", "3", "--json"}).json();
  EXPECT_EQ(own["not_tried"], (nlohmann::json{"more than 1 stage per device (Net has its own forward())",
                                              "split backwards (halves draw other numbers)"}));
  EXPECT_NE(plan({"--split-backward"}).err.find("(halves draw other numbers): leave"), std::string::npos);
  const Result cut = ostinato_run({"partition", folder / "profile.json", "--devices", "2", "--chunks", "2",
                                   "--output", folder / "p.toml"});
  EXPECT_EQ(cut.status, 3);
  EXPECT_NE(cut.err.find("more than 1 stage per device (Net has its own forward())"), std::string::npos)
      << cut.err;
}

TEST(PlanCommand, InferenceForLatencyAndForThroughput) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text(kUneven));
  for (const char* objective : {"latency", "makespan"}) {
    const Result result = ostinato_run(
        {"plan", profile, "--inference", "--devices", "2", "--micro-batches", "8", "--objective", objective,
         "--time-limit", "2", "--placement-output", folder / "p.toml", "--output", folder / "p.json"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("One after the other on an even split"), std::string::npos) << result.out;
    EXPECT_EQ(result.out.find("1F1B on"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("in flight         at least 2 requests"), std::string::npos) << result.out;
    EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
    EXPECT_EQ(ostinato_run({"show", folder / "p.json", folder / "p.toml"}).status, 0);
    EXPECT_EQ(ostinato_run({"lower", folder / "p.json", folder / "p.toml"}).status, 0);
    for (const Block& block : read_placement(folder / "p.toml").placement.blocks)
      EXPECT_EQ(block.kind, Kind::forward);
  }
}

TEST(PlanCommand, SaysWhyACandidateIsNone) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000, 1000}));
  const Result result =
      ostinato_run({"plan", profile, "--devices", "4", "--micro-batches", "2", "--time-limit", "1",
                    "--placement-output", folder / "p.toml", "--output", folder / "p.json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("need at least 4 layers"), std::string::npos) << result.out;
}

TEST(PlanCommand, IsInfeasibleWhereEveryCandidateIs) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000, 1000, 1000}));
  const Result result =
      ostinato_run({"plan", profile, "--devices", "2", "--micro-batches", "2", "--device-memory", "100B",
                    "--placement-output", folder / "p.toml", "--output", folder / "p.json"});
  EXPECT_EQ(result.status, 4) << result.err;
  EXPECT_NE(result.err.find("1 chunk per device and "), std::string::npos) << result.err;
  EXPECT_LT(std::count(result.err.begin(), result.err.end(), '\n'), 6) << result.err;  // each reason once
}

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
  const Result result = ostinato_run({"plan", profile, "--devices", devices, "--micro-batches", "4",
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
  EXPECT_NE(usual.out.find("1 chunk on 1 of 3 devices was chosen"), std::string::npos) << usual.out;
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
