// SPDX-License-Identifier: Apache-2.0
// `plan`: the winner, what it is compared with, and what a time limit cuts.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "bindings/core/plan_table.h"
#include "search/files/file.h"
#include "search/partition/joint.h"
#include "search/placement/placement_toml.h"
#include "search/profile/profile_json.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

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
  // It has the stages of another row, and so no figures.
  EXPECT_EQ(result.out.find("1 chunk per device, cut for 1F1B"), std::string::npos) << result.out;
  EXPECT_EQ(ostinato_run({"verify", folder / "p.json", folder / "p.toml"}).status, 0);
}

TEST(PlanCommand, RefusesMoreMicroBatchesThanAFileCanHold) {
  const TemporaryFolder folder;
  const Result result = ostinato_run({"plan", folder.write("profile.json", profile_text({500, 900})),
                                      "--devices", "2", "--micro-batches", "99999999", "--placement-output",
                                      folder / "p.toml", "--output", folder / "p.json"});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("makes at least 399999996 steps; at most 16777216 can be planned"),
            std::string::npos)
      << result.err;
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
  std::string words = result.out;
  std::replace(words.begin(), words.end(), '\n', ' ');
  EXPECT_NE(words.find("was chosen: including the optimizer's step it takes 26 us, the least found"),
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
  EXPECT_NE(exact.out.find("\"looped, 2 chunks per device\" was chosen"), std::string::npos) << exact.out;
  EXPECT_NE(measured.out.find("\"1 chunk per device\" was chosen: it has 4 blocks instead of 8"),
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
  text.insert(text.find(" }", at), "000");
  const Result refuted = ostinato_run({"verify", folder.write("refuted.json", text), placement});
  EXPECT_EQ(refuted.status, 6) << refuted.out;
  EXPECT_NE(refuted.out.find("but this plan takes only"), std::string::npos) << refuted.out;
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

TEST(PlanCommand, IsComparedWith1F1BThatRecomputesWhereNoOtherFits) {
  const TemporaryFolder folder;
  const Profile profile = parse_profile(profile_text({1000, 1000, 1000, 1000}), "p.json");
  const Result tight = planned_of(folder, profile, "2", "4", {"--device-memory", "3000B"});
  ASSERT_EQ(tight.status, 0) << tight.err;
  const std::string usual = "times as fast as 1F1B on the best stages, recomputing.";
  std::string words = tight.out;
  std::replace(words.begin(), words.end(), '\n', ' ');
  EXPECT_NE(words.find(usual), std::string::npos) << tight.out;
  const nlohmann::json kept = nlohmann::json::parse(read_text(folder / "p.json"))["baselines"];
  EXPECT_EQ(kept[0]["name"], "1f1b_recompute");
  EXPECT_EQ(kept[0]["fits"], true);
  // One forward more of both layers in each backward of the first stage.
  const nlohmann::json wide = planned_of(folder, profile, "2", "4", {"--json"}).json();
  EXPECT_EQ(wide["baselines"]["1f1b"]["fits"], true);
  EXPECT_GT(kept[0]["makespan"], wide["baselines"]["1f1b"]["makespan"]);
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
  for (const char* text :
       {"* this plan: ", "  your run now, layers 3|1 ", "  1F1B on the best stages ",
        "as fast as your run now (measured: 70 us per step, including", "as fast as 1F1B on the best stages"})
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
  const nlohmann::json split = planned("2", "4", {"--split-backward", "--json"}).json();
  EXPECT_EQ(split["baselines"], json["baselines"]);  // DeepSpeed's own engine splits no backward
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

/// On a slow device the layer takes longer, but nothing makes it lie there.
TEST(PlanCommand, TheLayerThatLimitsIsPricedOnTheFastestDevice) {
  const TemporaryFolder folder;
  const Profile profile = parse_profile(profile_text({1000, 1000, 1000, 9000}), "p.json");
  const std::string devices = folder.write("d.toml",
                                           "format = \"ostinato-devices/1\"\nname = \"d\"\n"
                                           "[[kinds]]\nname = \"slow\"\nspeed = 0.5\n"
                                           "[[kinds]]\nname = \"fast\"\n"
                                           "[[nodes]]\nname = \"a\"\nkind = \"slow\"\ndevices = 1\n"
                                           "[[nodes]]\nname = \"b\"\nkind = \"fast\"\ndevices = 1\n");
  const nlohmann::json json = planned_of(folder, profile, devices, "4", {"--json"}).json();
  const std::string limit = json["limit"];
  ASSERT_NE(limit, "");
  const double usual = json["baselines"]["1f1b"]["makespan"], ours = json["makespan"];
  const std::size_t at = limit.find("no plan is more than ");
  ASSERT_NE(at, std::string::npos) << limit;
  EXPECT_GE(std::stod(limit.substr(at + 21)) + 0.0005, usual / ours) << limit;
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

TEST(PlanCommand, ShowsOnePlanOfAKindWithTheSameFigures) {
  const Profile profile = parse_profile(profile_text(kUneven), "p.json");
  JointOptions options{.partition = {.devices = 2, .micro_batches = 4}, .moves = false};
  options.search.micro_batches = 4;
  JointChoice choice = choose_plan(profile, options);
  const auto second = std::find_if(
      choice.candidates.begin(), choice.candidates.end(),
      [&](const Candidate& one) { return one.plan && &one != &choice.candidates[choice.winner]; });
  ASSERT_NE(second, choice.candidates.end());
  Candidate twin = *second;
  twin.name += " (2)";
  choice.candidates.push_back(std::move(twin));
  EXPECT_EQ(core::choice_text(choice, {}, profile, false).find("(2)"), std::string::npos);
  EXPECT_NE(core::choice_text(choice, {}, profile, true).find("(2)"), std::string::npos);
}

}  // namespace
}  // namespace ostinato::cli::test
