// SPDX-License-Identifier: Apache-2.0
#include "search/plan/plan_json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "search/files/error.h"
#include "search/files/file.h"
#include "tests/search/small.h"
#include "tests/support/refusal.h"

namespace ostinato {
namespace {

using test::Refusal;

Placement placement() {
  Placement p = test::on_devices(2);
  test::add(p, "a.F", {0}, 2);
  test::add(p, "b \"F\"", {1}, 3, {.after = {0}});
  return p;
}

const std::string kDigest(64, 'a');

Plan plan() {
  Plan plan;
  plan.placement_name = "small";
  plan.placement_sha256 = kDigest;
  plan.micro_batches = 2;
  plan.objective = Objective::span;
  plan.makespan = 8;
  plan.span = 6;
  plan.steady_state = {.period = 3, .unroll = 1, .first = 0, .count = 2};
  plan.lower_bound = {.makespan = 7, .period = 3};
  plan.optimal = {.makespan = false, .period = true};
  plan.peak_memory = {0, 12};
  plan.search = {.method = "auto", .seed = 18446744073709551615u, .cut_by_limit = true};
  plan.schedule = {{0, 0, 0}, {1, 0, 2}, {0, 1, 3}, {1, 1, 5}};
  return plan;
}

// Line by line, for the tests below.
const char* const kText = R"({
  "format": "ostinato-plan/1",
  "placement": { "name": "small", "sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" },
  "micro_batches": 2,
  "objective": "span",
  "makespan": 8,
  "span": 6,
  "steady_state": { "period": 3, "unroll": 1, "first": 0, "count": 2 },
  "lower_bound": { "makespan": 7, "period": 3 },
  "optimal": { "makespan": false, "period": true },
  "peak_memory": [0, 12],
  "search": { "method": "auto", "seed": 18446744073709551615, "cut_by_limit": true },
  "schedule": [
    { "block": "a.F", "micro_batch": 0, "start": 0 },
    { "block": "b \"F\"", "micro_batch": 0, "start": 2 },
    { "block": "a.F", "micro_batch": 1, "start": 3 },
    { "block": "b \"F\"", "micro_batch": 1, "start": 5 }
  ]
}
)";

std::string replaced(const std::string& from, const std::string& to) {
  return test::replaced(kText, from, to);
}

std::string refusal(const std::string& text, const std::string& digest = "") {
  return test::refusal_by([&] { parse_plan(text, "plan.json", placement(), digest); });
}

TEST(PlanJsonTest, WritesTheFormat) { EXPECT_EQ(format_plan(plan(), placement()), kText); }

TEST(PlanJsonTest, ReadsWhatItWrites) {
  const Plan read = parse_plan(kText, "plan.json", placement(), kDigest);
  EXPECT_EQ(read.placement_name, "small");
  EXPECT_EQ(read.objective, Objective::span);
  EXPECT_EQ(read.search.seed, 18446744073709551615u);
  EXPECT_TRUE(read.search.cut_by_limit);
  EXPECT_EQ(read.schedule, plan().schedule);
  EXPECT_EQ(format_plan(read, placement()), kText);
}

/// Of a plan that takes no time 0 is a bound.
TEST(PlanJsonTest, KeepsTheClaimOfAPlanWithoutTime) {
  Placement p = placement();
  for (Block& block : p.blocks) block.time = 0;
  Plan none = plan();
  for (ScheduledBlock& step : none.schedule) step.start = 0;
  none.optimal.objective = true;
  const std::string text = format_plan(none, p);
  EXPECT_NE(text.find("\"period\": 3, \"span\": 0 }"), std::string::npos) << text;
  EXPECT_TRUE(parse_plan(text, "plan.json", p, "").optimal.objective);
}

TEST(PlanJsonTest, KeepsBaselines) {
  Plan with = plan();
  with.baselines = {{"1f1b", 9, 7, true}, {"your_run", 11, 8, false, 0, 12}};
  const std::string text = format_plan(with, placement());
  EXPECT_NE(text.find("\n  \"baselines\": [{ \"name\": \"1f1b\", \"makespan\": 9, \"objective_value\": 7, "
                      "\"fits\": true }, {"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\"fits\": false, \"measured_step\": 12 }]"), std::string::npos) << text;
  EXPECT_EQ(parse_plan(text, "plan.json", placement(), "").baselines, with.baselines);
}

TEST(PlanJsonTest, MembersMayStandInAnyOrder) {
  std::string text = replaced("  \"format\": \"ostinato-plan/1\",\n", "");
  text.replace(text.rfind("\n  ]\n}"), 6, "\n  ],\n\"format\": \"ostinato-plan/1\"}");
  EXPECT_EQ(parse_plan(text, "plan.json", placement(), "").schedule, plan().schedule);
}

TEST(PlanJsonTest, AnEmptyDigestFitsEveryPlacement) {
  EXPECT_EQ(refusal(replaced(kDigest, ""), std::string(64, 'b')), "accepted");
  EXPECT_EQ(refusal(kText), "accepted");
}

TEST(PlanJsonTest, OfAnotherPlacementIsSaidBeforeItsUnknownBlocks) {
  const std::string other = replaced("{ \"block\": \"a.F\"", "{ \"block\": \"z.F\"");
  EXPECT_NE(refusal(other, std::string(64, 'b')).find("plan.json:3: the plan was made for another placement"),
            std::string::npos)
      << refusal(other, std::string(64, 'b'));
  EXPECT_NE(refusal(other, kDigest).find("unknown block 'z.F'"), std::string::npos)
      << refusal(other, kDigest);
}

class PlanRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(PlanRefusalTest, SaysLineReasonAndRemedy) {
  EXPECT_EQ(refusal(GetParam().text), "plan.json:" + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    File, PlanRefusalTest,
    testing::Values(
        Refusal{"version", replaced("plan/1", "plan/2"),
                "2: 'format' is 'ostinato-plan/2'; this version of ostinato reads 'ostinato-plan/1'"},
        Refusal{"version_before_steps",
                "{\n\"format\": \"ostinato-plan/2\", \"schedule\": [{ \"other\": 1 }] }",
                "2: 'format' is 'ostinato-plan/2'; this version of ostinato reads 'ostinato-plan/1'"},
        Refusal{"no_format", "{}",
                "1: this is not a plan: it has no 'format', where 'ostinato-plan/1' is expected; is it the "
                "right file?"},
        Refusal{"list", "\n[]", "2: the file must hold a table, not a list"},
        Refusal{"empty", "",
                "1: the file ends in the middle of its JSON: was it cut off, or is it still being written?"},
        Refusal{"toml", "format = \"ostinato-placement/1\"\n",
                "1: not JSON, from the first character on: is this the right file, given for the right "
                "argument?"},
        Refusal{"cut", "{\n\"format\": \"ostinato-plan/1\",\n",
                "2: the file ends in the middle of its JSON: was it cut off, or is it still being written?"},
        Refusal{"cut_in_a_string", "{\n\"format\": \"ostin",
                "2: the file ends in the middle of its JSON: was it cut off, or is it still being written?"},
        Refusal{"behind_the_end", std::string(kText) + "{",
                "20: not valid JSON: syntax error while parsing value - unexpected "
                "'{'; expected end of input"},
        Refusal{
            "behind_the_end_of_one_line", "{ \"format\": \"ostinato-plan/1\" }}",
            "1: not valid JSON: syntax error while parsing value - unexpected '}'; expected end of input"},
        Refusal{"behind_a_nul", kText + std::string("\0\n{", 3), "20: not valid JSON: a NUL character"},
        Refusal{"no_utf8", "{\"format\": \"ostinato-plan/1\",\n\"n\xe4\": 1}",
                "2: not valid JSON: bytes that are no UTF-8"},
        Refusal{"steady_state_beyond_the_end", replaced("\"count\": 2", "\"count\": 2000000000"),
                "8: 'steady_state' covers micro-batches 0 to 1999999999, but the plan has 2"},
        Refusal{"unknown_key", replaced("\"makespan\": 8", "\"makspan\": 8"),
                "6: unknown key 'makspan' in a plan; did you mean 'makespan'?"},
        Refusal{"unknown_in_step", replaced("\"start\": 2 ", "\"begin\": 2 "),
                "15: unknown key 'begin' in a step of the schedule"},
        Refusal{"unknown_in_baseline",
                replaced("  \"schedule\"", "  \"baselines\": [{ \"nam\": \"1f1b\" }],\n  \"schedule\""),
                "13: unknown key 'nam' in a baseline; did you mean 'name'?"},
        Refusal{
            "sharded_beyond_a_count",
            replaced("  \"schedule\"",
                     "  \"any_placement\": { \"devices\": 2, \"sharded\": [4294967296], \"split\": false, "
                     "\"lower_bound\": 1 },\n  \"schedule\""),
            "13: 'sharded' is 4294967296, out of range: from 0 to 2147483647"},
        Refusal{"baselines_type", replaced("  \"schedule\"", "  \"baselines\": 7,\n  \"schedule\""),
                "13: 'baselines' must be a list, not a whole number"},
        Refusal{"unknown_in_search", replaced("\"seed\"", "\"sed\""),
                "12: unknown key 'sed' in 'search'; did you mean 'seed'?"},
        Refusal{"duplicate_key", replaced("\"span\": 6,", "\"span\": 6,\n\"span\": 6,"),
                "8: duplicate key 'span'"},
        Refusal{"duplicate_in_step", replaced("\"start\": 2 ", "\"start\": 2, \"start\": 2 "),
                "15: duplicate key 'start'"},
        Refusal{"missing", replaced("  \"span\": 6,\n", ""), "1: a plan has no 'span'"},
        Refusal{"missing_in_step", replaced(", \"start\": 2 ", ""),
                "15: a step of the schedule has no 'start'"},
        Refusal{"missing_schedule", "{ \"format\": \"ostinato-plan/1\" }", "1: a plan has no 'placement'"},
        Refusal{"schedule_type", replaced("\"schedule\": [", "\"schedule\": 1, \"x\": ["),
                "13: unknown key 'x' in a plan"},
        Refusal{"step_type", replaced("{ \"block\": \"a.F\", \"micro_batch\": 0, \"start\": 0 }", "7"),
                "14: a step of the schedule must be a table, not a whole number"}),
    [](const auto& test) { return test.param.what; });

INSTANTIATE_TEST_SUITE_P(
    Values, PlanRefusalTest,
    testing::Values(Refusal{"negative", replaced("\"makespan\": 8", "\"makespan\": -8"),
                            "6: 'makespan' is -8, out of range: from 0"},
                    Refusal{"fraction", replaced("\"makespan\": 8", "\"makespan\": 8.5"),
                            "6: 'makespan' must be a whole number, not 8.5"},
                    Refusal{"exponent", replaced("\"makespan\": 8", "\"makespan\": 8e0"),
                            "6: 'makespan' must be a whole number, not 8e0"},
                    Refusal{"beyond_int64", replaced("\"span\": 6", "\"span\": 9223372036854775808"),
                            "7: 'span' is 9223372036854775808, out of range: from 0"},
                    Refusal{"beyond_uint64", replaced("18446744073709551615", "18446744073709551616"),
                            "12: 'seed' is 18446744073709551616, out of range: from 0"},
                    Refusal{"beyond_double", replaced("\"span\": 6", "\"span\": 1e999"),
                            "7: not valid JSON: number overflow parsing '1e999'"},
                    Refusal{"nan", replaced("\"span\": 6", "\"span\": NaN"),
                            "7: not valid JSON: syntax error while parsing value - invalid literal; last "
                            "read: '\"span\": N'"},
                    Refusal{"null", replaced("\"span\": 6", "\"span\": null"),
                            "7: 'span' must be a whole number, not null"},
                    Refusal{"boolean", replaced("\"makespan\": false", "\"makespan\": 0"),
                            "10: 'makespan' must be true or false, not a whole number"},
                    Refusal{"no_micro_batches", replaced("\"micro_batches\": 2", "\"micro_batches\": 0"),
                            "4: 'micro_batches' is 0, out of range: from 1 to 2147483647"},
                    Refusal{"too_many_micro_batches",
                            replaced("\"micro_batches\": 2", "\"micro_batches\": 2147483648"),
                            "4: 'micro_batches' is 2147483648, out of range: from 1 to 2147483647"},
                    Refusal{"micro_batch",
                            replaced("\"micro_batch\": 1, \"start\": 5", "\"micro_batch\": 2, \"start\": 5"),
                            "17: 'micro_batch' is 2, out of range: from 0 to 1"},
                    Refusal{"negative_micro_batch", replaced("\"micro_batch\": 1", "\"micro_batch\": -1"),
                            "16: 'micro_batch' is -1, out of range: from 0 to 2147483646"},
                    Refusal{"negative_start", replaced("\"start\": 2", "\"start\": -2"),
                            "15: 'start' is -2, out of range: from 0"},
                    Refusal{"number_at_line_end", replaced("\"start\": 2 }", "\"start\": -2\n }"),
                            "15: 'start' is -2, out of range: from 0"},
                    Refusal{"unroll", replaced("\"unroll\": 1", "\"unroll\": 0"),
                            "8: 'unroll' is 0, out of range: from 1 to 2147483647"},
                    Refusal{"objective", replaced("\"objective\": \"span\"", "\"objective\": \"time\""),
                            "5: unknown objective 'time'; it should be makespan, span or latency"},
                    Refusal{"block", replaced("\"block\": \"a.F\"", "\"block\": \"a.f\""),
                            "14: unknown block 'a.f'; did you mean 'a.F'?"},
                    Refusal{"block_type", replaced("\"block\": \"a.F\"", "\"block\": 0"),
                            "14: 'block' must be a text, not a whole number"},
                    Refusal{"peak_size", replaced("[0, 12]", "[0]"),
                            "11: 'peak_memory' has 1 entry; the placement has 2 devices"},
                    Refusal{"peak_range", replaced("[0, 12]", "[0, -1]"),
                            "11: 'peak_memory' is -1, out of range: from 0"},
                    Refusal{"digest", replaced(kDigest, "ABC"),
                            "3: 'sha256' must be 64 lower-case hexadecimal digits, not 'ABC'"},
                    Refusal{"long_names_are_cut",
                            replaced("\"block\": \"a.F\"", "\"block\": \"" + std::string(1000, 'x') + "\""),
                            "14: unknown block '" + std::string(80, 'x') + "...'"}),
    [](const auto& test) { return test.param.what; });

TEST(PlanJsonTest, RefusesAPlanForAnotherPlacement) {
  const std::string other(64, 'b');
  EXPECT_EQ(refusal(kText, other),
            "plan.json:3: the plan was made for another placement: 'small' (sha256 " + kDigest.substr(0, 12) +
                "), and this is 'small' (sha256 bbbbbbbbbbbb): give the original placement, or search again");
}

TEST(PlanJsonTest, NestsToSixtyFourLevels) {
  const std::string format = "{ \"format\": \"ostinato-plan/1\",\n\"span\": ";
  EXPECT_EQ(refusal(format + std::string(63, '[') + std::string(63, ']') + "}"),
            "plan.json:1: a plan has no 'placement'");
  EXPECT_EQ(refusal(format + std::string(64, '[') + std::string(64, ']') + "}"),
            "plan.json:2: nested deeper than 64 levels");
  EXPECT_EQ(refusal(std::string(1000000, '[')), "plan.json:1: nested deeper than 64 levels");
}

TEST(PlanJsonTest, RefusesMoreKeysAndValuesThanAnyFileHas) {
  std::string keys = "{ \"format\": \"ostinato-plan/1\"";
  for (int i = 0; i < 64; ++i) keys += fmt::format(",\n\"k{}\": 0", i);
  EXPECT_EQ(refusal(keys + "}"), "plan.json:65: an object of more than 64 keys");
  std::string values = "{ \"span\": [0";
  for (int i = 0; i < (1 << 22); ++i) values += ",0";
  EXPECT_EQ(refusal(values + "]}"), "plan.json:1: more than 4194304 values");
}

TEST(PlanFileTest, NamesTheFile) {
  const auto path =
      std::filesystem::path(testing::TempDir()) / fmt::format("ostinato-plan-{}.json", ::getpid());
  write_file(path, kText);
  EXPECT_EQ(read_plan(path, placement(), kDigest).schedule, plan().schedule);
  write_file(path, "{\n");
  EXPECT_THROW(
      try { read_plan(path, placement(), kDigest); } catch (const InputError& error) {
        EXPECT_EQ(std::string(error.what()).find(path.string() + ":1: the file ends"), 0u) << error.what();
        throw;
      },
      InputError);
  std::filesystem::remove(path);
}

TEST(PlanLargeTest, FourHundredThousandStepsAreWrittenAndRead) {
  Placement p = test::on_devices(8);
  for (int b = 0; b < 8; ++b) test::add(p, fmt::format("block{}", b), {b}, 10);
  Plan large = plan();
  large.micro_batches = 50'000;
  large.peak_memory.assign(8, 0);
  for (int i = 0; i < large.micro_batches; ++i) {
    for (int b = 0; b < 8; ++b) large.schedule.push_back({b, i, 10 * Nanoseconds{i}});
  }
  large.schedule.erase(large.schedule.begin(), large.schedule.begin() + 4);
  const Plan read = parse_plan(format_plan(large, p), "plan.json", p, "");
  EXPECT_EQ(read.schedule, large.schedule);
}

}  // namespace
}  // namespace ostinato
