// SPDX-License-Identifier: Apache-2.0
// `plan`: which candidates it tries, and what options leave out.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "search/placement/placement_toml.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

/// Of `plan` on kUneven layers with halves, with these options.
Result plan_of_uneven(const std::vector<std::string>& options) {
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
                                    "--time-limit",
                                    "100",
                                    "--json"};
  words.insert(words.end(), options.begin(), options.end());
  for (const auto& [option, name] : {std::pair("--output", "p.json"), {"--placement-output", "p.toml"}})
    if (std::ranges::find(options, option) == options.end())
      words.insert(words.end(), {option, folder / name});
  return ostinato_run(words);
}

/// Of its candidates, or the message where an option is refused.
std::string names_of_candidates(const std::vector<std::string>& options) {
  const Result result = plan_of_uneven(options);
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

TEST(PlanCommand, SaysOfMovedStagesWhatTheyAre) {
  const nlohmann::json json = plan_of_uneven({}).json();
  int moved = 0;
  for (const auto& candidate : json["candidates"]) {
    int chunks = 0, most = 0;
    const std::string name = candidate["name"];
    if (std::sscanf(name.c_str(), "%d chunks, at most %d per device", &chunks, &most) != 2) continue;
    ++moved;
    EXPECT_EQ(candidate["chunks"], most) << name;
    EXPECT_FALSE(candidate.contains("layout")) << name;
  }
  EXPECT_GT(moved, 0);
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
  EXPECT_NE(exact.out.find(", split\" was chosen"), std::string::npos) << exact.out << exact.err;
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

TEST(PlanCommand, WhatCannotBeWrittenIsKeptAllTheSame) {
  const Result full = plan_of_uneven({"--output", "/dev/full", "--placement-output", "/dev/full"});
  EXPECT_EQ(full.status, 3);
  std::vector<std::string> kept;
  for (const std::string what : {"plan", "placement"}) {
    const std::string said = "; the " + what + " is in ";
    const std::size_t at = full.err.find(said);
    ASSERT_NE(at, std::string::npos) << full.err;
    std::istringstream(full.err.substr(at + said.size())) >> kept.emplace_back();
  }
  EXPECT_NE(full.err.find("/dev/full: cannot be written: "), std::string::npos) << full.err;
  EXPECT_EQ(ostinato_run({"verify", kept[0], kept[1]}).status, 0);
  for (const std::string& file : kept) std::filesystem::remove(file);
}

TEST(PlanCommand, RefusesRestrictionsThatAreNone) {
  EXPECT_NE(names_of_candidates({"--without", "chunk"}).find("did you mean chunks?"), std::string::npos);
  EXPECT_NE(names_of_candidates({"--without", "split", "--only", "chunks"}).find("exclude each other"),
            std::string::npos);
  EXPECT_NE(names_of_candidates({"--exact-losses", "--split-backward"})
                .find("--split-backward and --exact-losses exclude each other"),
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
                           "wave, 2 chunks per device (not allowed: fixed_ends)", "; none of"})
    EXPECT_NE(waves.out.find(text), std::string::npos) << text << waves.out << waves.err;
  // Of these layers a wave is shorter than what is left.
  const nlohmann::json plain = nlohmann::json::parse(profile_text({10'000, 9000, 2000, 1000}));
  const Result shorter =
      ostinato_run({"plan", folder.write("plain.json", plain.dump()), "--devices", "2", "--micro-batches",
                    "32", "--all-devices", "--without", "moves", "--fixed-ends", "--placement-output",
                    folder / "p.toml", "--output", folder / "p.json", "--json"});
  EXPECT_NE(shorter.json()["not_tried"].dump().find("; the closest of these, wave, 2 chunks"),
            std::string::npos)
      << shorter.out << shorter.err;
  profile["restrictions"] = {
      {{"rule", "most_chunks"}, {"chunks", 1}, {"reason", "Net has its own forward()"}},
      {{"rule", "whole_backwards"}, {"reason", "halves draw other numbers"}}};
  const nlohmann::json own = plan({"--max-chunks", "3", "--json"}).json();
  EXPECT_EQ(own["not_tried"], (nlohmann::json{"more than 1 stage per device (Net has its own forward())",
                                              "split backwards (halves draw other numbers)"}));
  EXPECT_NE(
      plan({"--split-backward"}).err.find("--split-backward is not possible: halves draw other numbers"),
      std::string::npos);
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
    EXPECT_NE(result.out.find("one after the other on an even split"), std::string::npos) << result.out;
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

}  // namespace
}  // namespace ostinato::cli::test
