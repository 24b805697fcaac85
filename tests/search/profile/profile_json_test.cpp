// SPDX-License-Identifier: Apache-2.0
#include "search/profile/profile_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "search/files/error.h"
#include "tests/support/refusal.h"

namespace ostinato {
namespace {

using test::Refusal;

Profile profile() {
  Profile p;
  p.model = "byte-level GPT";
  p.model_sha256 = "0123";
  p.device = {
      .name = "cpu0", .kind = "cpu", .driver = "", .torch = "2.13.0", .cuda = "", .clocks = "2.0 GHz"};
  p.timer = "cpu";
  p.warm_up = 2;
  p.repeats = 5;
  p.micro_batch_size = 4;
  LayerCost layer;
  layer.name = "0:Embedding";
  layer.forward = {.median = 20, .low = 18, .high = 25, .repeats = 5};
  layer.backward = {.median = 40, .low = 40, .high = 41, .repeats = 5};
  layer.kept = 4096;
  layer.forward_workspace = 1;
  layer.backward_workspace = 2;
  layer.parameters = 3;
  layer.gradients = 4;
  layer.optimizer_state = 5;
  layer.input_bytes = 6;
  layer.output_bytes = 7;
  p.layers.push_back(layer);
  layer.index = 1;
  layer.name = "1:Block";
  layer.same_as = 0;
  layer.backward_input = {.median = 1, .low = 1, .high = 1, .repeats = 1};
  layer.backward_weight = {.median = 2, .low = 1, .high = 3, .repeats = 1};
  p.layers.push_back(layer);
  p.operators.push_back({.layer = 1,
                         .name = "aten::addmm",
                         .phase = "backward",
                         .calls = 3,
                         .self_time = {.median = 9, .low = 8, .high = 9, .repeats = 5},
                         .allocated = 64,
                         .flops = {}});
  p.transfers.push_back({.from = 0,
                         .to = 1,
                         .link = {.latency = 170'000, .bytes_per_second = 1'000'000'000},
                         .residual = 0.125});
  p.completeness = {
      .complete = true, .expected = 10, .seen = 10, .dropped = 0, .out_of_range = 0, .reason = ""};
  return p;
}

// Lines: format 2, model 3, device 4, timer 5, ..., completeness 9, layers 11 and 12, operator 15,
// transfer 18.
const char* const kText = R"({
  "format": "ostinato-profile/1",
  "model": {"name":"byte-level GPT","sha256":"0123"},
  "device": {"name":"cpu0","kind":"cpu","driver":"","torch":"2.13.0","cuda":"","clocks":"2.0 GHz"},
  "timer": "cpu",
  "warm_up": 2,
  "repeats": 5,
  "micro_batch_size": 4,
  "completeness": {"complete":true,"expected":10,"seen":10,"dropped":0,"out_of_range":0,"reason":""},
  "layers": [
    {"index":0,"name":"0:Embedding","same_as":-1,"forward":{"median":20,"low":18,"high":25,"repeats":5},"backward":{"median":40,"low":40,"high":41,"repeats":5},"backward_input":{"median":0,"low":0,"high":0,"repeats":0},"backward_weight":{"median":0,"low":0,"high":0,"repeats":0},"kept":4096,"forward_workspace":1,"backward_workspace":2,"parameters":3,"gradients":4,"optimizer_state":5,"input_bytes":6,"output_bytes":7},
    {"index":1,"name":"1:Block","same_as":0,"forward":{"median":20,"low":18,"high":25,"repeats":5},"backward":{"median":40,"low":40,"high":41,"repeats":5},"backward_input":{"median":1,"low":1,"high":1,"repeats":1},"backward_weight":{"median":2,"low":1,"high":3,"repeats":1},"kept":4096,"forward_workspace":1,"backward_workspace":2,"parameters":3,"gradients":4,"optimizer_state":5,"input_bytes":6,"output_bytes":7}
  ],
  "operators": [
    {"layer":1,"name":"aten::addmm","phase":"backward","calls":3,"self_time":{"median":9,"low":8,"high":9,"repeats":5},"allocated":64}
  ],
  "transfers": [
    {"from":0,"to":1,"latency":170000,"bytes_per_second":1000000000,"residual":0.125}
  ]
}
)";

std::string replaced(const std::string& from, const std::string& to) {
  return test::replaced(kText, from, to);
}

std::string refusal(const std::string& text) {
  return test::refusal_by([&] { parse_profile(text, "profile.json"); });
}

TEST(ProfileJsonTest, WritesTheFormat) { EXPECT_EQ(format_profile(profile()), kText); }

TEST(ProfileJsonTest, ReadsWhatItWrites) {
  const Profile read = parse_profile(kText, "profile.json");
  EXPECT_EQ(format_profile(read), kText);
  EXPECT_EQ(read.layers[1].same_as, 0);
  EXPECT_EQ(read.layers[0].forward.high, 25);
  EXPECT_EQ(read.transfers[0].link.bytes_per_second, 1'000'000'000);
  EXPECT_EQ(read.transfers[0].residual, 0.125);
  EXPECT_TRUE(read.completeness.complete);
}

TEST(ProfileJsonTest, WhatARankSpendsIsOptional) {
  Profile p = profile();
  p.rank = {.held = 1, .step = 2, .buffers = 3};
  EXPECT_NE(format_profile(p).find(R"("rank": {"held":1,"step":2,"buffers":3})"), std::string::npos);
  p.rank.forward = 4, p.rank.backward = 5, p.rank.read = 6, p.rank.step_time = 7;
  p.rank.average = 1'020'000;
  EXPECT_EQ(parse_profile(format_profile(p), "profile.json").rank, p.rank);
  p.zero = {.ranks = 4, .step = true};
  EXPECT_EQ(parse_profile(format_profile(p), "profile.json").zero, p.zero);
}

TEST(ProfileJsonTest, WhatRunsWithoutAPlanIsOptional) {
  Profile p = profile();
  EXPECT_EQ(format_profile(p).find("\"run\""), std::string::npos);
  p.run = {.layers = {2, 0}, .micro_batches = 8, .step = {}};
  EXPECT_NE(format_profile(p).find(R"("run": {"layers":[2,0],"micro_batches":8},)"), std::string::npos);
  p.run.step = {.median = 5, .low = 4, .high = 6, .repeats = 3};
  const std::string text = format_profile(p);
  const Profile read = parse_profile(text, "profile.json");
  EXPECT_EQ(read.run.layers, p.run.layers);
  EXPECT_EQ(read.run.step.high, 6);
  EXPECT_EQ(format_profile(read), text);
  p.run.layers = {1, 0};
  try {
    parse_profile(format_profile(p), "profile.json");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("'layers' of 'run' adds up to 1, but the profile has 2"),
              std::string::npos)
        << error.what();
  }
}

TEST(ProfileJsonTest, SizesAreOptional) {
  Profile p = profile();
  p.tokens = 2048;
  p.sizes = {{512, {1, 2}, {3, 4}}, {2048, {5, 6}, {7, 8}}};
  const std::string text = format_profile(p);
  EXPECT_NE(text.find(R"({"size":512,"forward":[1,2],"backward":[3,4]})"), std::string::npos) << text;
  const Profile read = parse_profile(text, "profile.json");
  EXPECT_EQ(read.sizes, p.sizes);
  EXPECT_EQ(read.tokens, 2048);
  EXPECT_EQ(format_profile(read), text);
}

TEST(ProfileJsonTest, SizesRiseAndHaveATimeForEachLayer) {
  Profile p = profile();
  p.sizes = {{512, {1, 2}, {3, 4}}, {512, {5, 6}, {7, 8}}};
  EXPECT_THAT(refusal(format_profile(p)),
              testing::HasSubstr("the rows of 'sizes' must be in ascending order"));
  p.sizes = {{512, {1, 2}, {3}}};
  EXPECT_THAT(refusal(format_profile(p)),
              testing::HasSubstr("'backward' must have one time per layer, that is, 2"));
}

TEST(ProfileJsonTest, TheBackendOfATransferIsOptional) {
  const std::string text = replaced("\"residual\":0.125", "\"residual\":0.125,\"backend\":\"nccl\"");
  const Profile read = parse_profile(text, "profile.json");
  EXPECT_EQ(read.transfers[0].backend, "nccl");
  EXPECT_EQ(format_profile(read), text);
}

TEST(ProfileJsonTest, AForwardThatRunsAgainMayTakeAnyTime) {
  Profile given = profile();
  given.layers[0].recompute = 0;  // given, and not as the first time
  const Profile read = parse_profile(format_profile(given), "p.json");
  EXPECT_EQ(read.layers[0].recompute, std::optional<Nanoseconds>(0));
  EXPECT_FALSE(read.layers[1].recompute);
  std::string wrong = kText;
  wrong.replace(wrong.find("\"kept\":4096"), 0, "\"recompute\":-1,");
  EXPECT_THROW(parse_profile(wrong, "p.json"), InputError);
}

TEST(ProfileJsonTest, AnEmptyProfileRoundTrips) {
  Profile empty;
  empty.timer = "device-events";
  empty.micro_batch_size = 1;
  const std::string text = format_profile(empty);
  EXPECT_EQ(format_profile(parse_profile(text, "profile.json")), text);
}

class ProfileRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(ProfileRefusalTest, SaysLineReasonAndRemedy) {
  EXPECT_EQ(refusal(GetParam().text), "profile.json:" + GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, ProfileRefusalTest,
    testing::Values(
        Refusal{"version", replaced("profile/1", "profile/9"),
                "2: 'format' is 'ostinato-profile/9'; this version of ostinato reads 'ostinato-profile/1'"},
        Refusal{"another_file", replaced("profile/1", "plan/1"),
                "2: 'format' is 'ostinato-plan/1'; 'ostinato-profile/1' is expected here: is this the right "
                "file?"},
        Refusal{"unknown_key", replaced("\"warm_up\"", "\"warmup\""),
                "6: unknown key 'warmup' in a profile; did you mean 'warm_up'?"},
        Refusal{"unknown_in_layer", replaced("\"kept\"", "\"keept\""),
                "11: unknown key 'keept' in a layer; did you mean 'kept'?"},
        Refusal{"unknown_in_spread", replaced("\"median\"", "\"mean\""),
                "11: unknown key 'mean' in 'forward'; did you mean 'median'?"},
        Refusal{"duplicate_key", replaced("\"calls\":3", "\"calls\":3,\"calls\":3"),
                "15: duplicate key 'calls'"},
        Refusal{"missing", replaced("\"calls\":3,", ""), "15: an operator has no 'calls'"},
        Refusal{"timer", replaced("\"cpu\",\n", "\"gpu\",\n"),
                "5: 'timer' is 'gpu'; it should be cpu, cupti or device-events"},
        Refusal{"negative", replaced("\"kept\":4096", "\"kept\":-1"),
                "11: 'kept' is -1, out of range: from 0"},
        Refusal{"fraction", replaced("\"median\":20", "\"median\":19.5"),
                "11: 'median' must be a whole number, not 19.5"},
        Refusal{"spread_order", replaced("\"low\":18", "\"low\":21"),
                "11: 'forward' must have low <= median <= high"},
        Refusal{"index", replaced("\"index\":1", "\"index\":2"),
                "12: 'index' is 2, out of range: from 1 to 1"},
        Refusal{"same_as_later", replaced("\"same_as\":0", "\"same_as\":1"),
                "12: 'same_as' is 1, out of range: from -1 to 0"},
        Refusal{"operator_layer", replaced("\"layer\":1", "\"layer\":2"),
                "15: 'layer' is 2, out of range: from -1 to 1"},
        Refusal{"phase", replaced("\"phase\":\"backward\"", "\"phase\":\"back\""),
                "15: 'phase' is 'back'; it should be forward or backward"},
        Refusal{"transfer_itself", replaced("\"to\":1", "\"to\":0"), "18: a transfer from 0 to itself"},
        Refusal{"transfer_twice",
                replaced("\"residual\":0.125}",
                         "\"residual\":0},\n{\"from\":0,\"to\":1,\"latency\":0,"
                         "\"bytes_per_second\":0,\"residual\":0}"),
                "19: duplicate transfer from 0 to 1"},
        Refusal{"residual", replaced("0.125", "-0.125"), "18: 'residual' is -0.125, out of range: from 0"},
        Refusal{"residual_type", replaced("0.125", "\"small\""),
                "18: 'residual' must be a number of at least 0, not 'small'"},
        Refusal{"lost_events", replaced("\"dropped\":0", "\"dropped\":3"),
                "9: 'complete' is true, but 3 events were dropped"},
        Refusal{"unseen_events", replaced("\"seen\":10", "\"seen\":9"),
                "9: 'complete' is true, but 9 of 10 events were seen"},
        Refusal{"events_out_of_range", replaced("\"out_of_range\":0", "\"out_of_range\":2"),
                "9: 'complete' is true, but 2 events are out of range"},
        Refusal{"a_reason", replaced("\"reason\":\"\"", "\"reason\":\"no CUPTI\""),
                "9: 'complete' is true, but 'reason' is 'no CUPTI'"}),
    [](const auto& test) { return test.param.what; });

}  // namespace
}  // namespace ostinato
