// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/lower.h"

#include <gtest/gtest.h>

#include <random>

#include "plugin/lowering/deadlock.h"
#include "plugin/lowering/program_text.h"
#include "search/files/error.h"
#include "search/unequal/unequal.h"
#include "tests/support/plans.h"
#include "tests/support/refusal.h"

namespace ostinato {
namespace {

using testing::backward_first;
using testing::chain;
using testing::graph;

std::string transfers(const Placement& placement, int micro_batches, int in_flight = 0) {
  return format_program(lower(backward_first(placement, micro_batches, in_flight), placement),
                        TextForm::transfers);
}

TEST(Lower, ChainOnTwoDevices) {
  EXPECT_EQ(transfers(chain({0, 1}), 2, 2),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(Lower, StagesOnOneRankHandOverWithoutInstruction) {
  // Wave on two devices: 0 1 | 1 0; stages 1 and 2 share device 1.
  const Program program = lower(backward_first(chain({0, 1, 1, 0}), 1), chain({0, 1, 1, 0}));
  EXPECT_EQ(format_rank(program, 1, TextForm::transfers),
            "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0");
  EXPECT_EQ(format_rank(program, 0, TextForm::compute), "0F0,3F0,3B0,0B0");
}

TEST(Lower, TransferCarriesItsPlannedTimesAndBothEnds) {
  const Placement p = graph({.device_of = {0, 1}, .edges = {{0, 1}}, .latency = 7});
  const Program program = lower(backward_first(p, 1), p);
  const Instruction& send = program.ranks[0][1];
  EXPECT_EQ(send, (Instruction{.action = Action::send_forward,
                               .stage = 0,
                               .micro_batch = 0,
                               .peer = 1,
                               .peer_stage = 1,
                               .start = 10,
                               .end = 17}));
  EXPECT_EQ(program.ranks[1][0], (Instruction{.action = Action::receive_forward,
                                              .stage = 1,
                                              .micro_batch = 0,
                                              .peer = 0,
                                              .peer_stage = 0,
                                              .start = 10,
                                              .end = 17}));
}

/// Two stages of 10 and 11 ns, 16 bytes between them at a byte a nanosecond; micro-batches of 6, 1 and 2
/// times that.
Placement sized_pair() { return graph({.device_of = {0, 1}, .edges = {{0, 1}}, .latency = 7}); }

Plan sized_plan(const Placement& placement, bool keep_order = false) {
  const std::vector<MicroBatch> sizes = {scaled(placement, 6, 1), scaled(placement, 1, 1),
                                         scaled(placement, 2, 1)};
  return search_unequal(placement, sizes, {.keep_order = keep_order});
}

TEST(Lower, MicroBatchesOfTheirOwnSizesRunInThePlansOrderForTheirOwnTimes) {
  const Placement p = sized_pair();
  const Plan plan = sized_plan(p);
  const Program program = lower(plan, p);
  EXPECT_TRUE(prove_deadlock_free(program).ok());
  EXPECT_EQ(program.micro_batches, 3);
  EXPECT_EQ(program.makespan, plan.makespan);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::vector<std::tuple<Nanoseconds, int>> ran, planned;
    for (const Instruction& i : program.ranks[rank]) {
      if (!is_compute(i.action)) continue;
      ran.emplace_back(i.start, i.micro_batch);
      const Nanoseconds times[] = {6, 1, 2};
      const Nanoseconds one = (10 + static_cast<Nanoseconds>(rank)) * (i.action == Action::forward ? 1 : 2);
      EXPECT_EQ(i.end - i.start, one * times[i.micro_batch]) << to_string(i);
    }
    for (const ScheduledBlock& s : plan.schedule)
      if (p.blocks[s.block].devices[0] == static_cast<int>(rank))
        planned.emplace_back(s.start, s.micro_batch);
    EXPECT_EQ(ran, planned);
  }
}

TEST(Lower, SizedPlansSayWhetherGradientsAreAddedInOrder) {
  const Placement p = sized_pair();
  EXPECT_FALSE(keeps_order(lower(sized_plan(p), p)));
  EXPECT_TRUE(keeps_order(lower(sized_plan(p, true), p)));
}

TEST(Lower, SizedTransfersTakeWhatTheBytesOfTheirMicroBatchTake) {
  Placement p = sized_pair();
  p.link.bytes_per_second = 1'000'000'000;
  for (Block& block : p.blocks)
    for (Dependency& input : block.after) input.bytes = 100;
  const Program program = lower(sized_plan(p), p);
  int transfers = 0;
  for (const Instruction& i : program.ranks[0]) {
    if (is_compute(i.action)) continue;
    const Nanoseconds times[] = {6, 1, 2};
    EXPECT_EQ(i.end - i.start, 7 + 100 * times[i.micro_batch]) << to_string(i);
    ++transfers;
  }
  EXPECT_EQ(transfers, 6);
}

TEST(Lower, RefusesSizesThatAreNotThePlacements) {
  const Placement p = sized_pair();
  Plan plan = sized_plan(p);
  plan.sizes[1].times.pop_back();
  EXPECT_THROW(lower(plan, p), InputError);
}

TEST(Lower, StagesFollowTheModelOrderOfThePlacement) {
  Placement p = chain({0, 1, 0});
  p.stages = {{"0", {0, 1}}, {"1", {2}}, {"2", {3, 4, 5, 6}}};
  const Program program = lower(backward_first(p, 1), p);
  EXPECT_EQ(program.stages[2].layers, Layers::run(3, 7));
  EXPECT_EQ(program.stages[1].inputs, std::vector<int>{0});
  EXPECT_EQ(program.stages[1].outputs, std::vector<int>{2});
  EXPECT_EQ(program.stages[1].devices, std::vector<int>{1});
}

TEST(Lower, AStageOverAGraphMayLeaveLayersOut) {
  Placement p = chain({0, 1});
  p.stages = {{"0", {0, 1, 4}}, {"1", {2, 3}}};
  const Program program = lower(backward_first(p, 1), p);
  ASSERT_EQ(program.stages.size(), 2u);
  EXPECT_EQ(program.stages[0].layers, (Layers{0, 1, 4}));
  EXPECT_EQ(program.stages[1].layers, (Layers{2, 3}));
}

TEST(Lower, SplitBackwardSendsTheGradientAfterItsInputHalf) {
  EXPECT_EQ(transfers(chain({0, 1}, true), 1),
            "0F0,0SEND_F0,0RECV_B0,0I0,0W0\n1RECV_F0,1F0,1I0,1SEND_B0,1W0\n");
}

TEST(Lower, SkipEdgeAndTwoInputs) {
  // 0 feeds 1 and 2; 2 takes both.
  const Placement p = graph({.device_of = {0, 1, 2}, .edges = {{0, 1}, {0, 2}, {1, 2}}});
  const Program program = lower(backward_first(p, 1), p);
  EXPECT_EQ(program.stages[2].inputs, (std::vector<int>{0, 1}));
  EXPECT_EQ(format_rank(program, 0, TextForm::transfers), "0F0,0SEND_F0,0SEND_F0,0RECV_B0,0RECV_B0,0B0");
}

// An embedding on both devices before a chain: it hands over to stage 1 where stage 1 is, and its second
// shard gets the gradient from there.
TEST(Lower, StageShardedOverSeveralRanks) {
  const Placement p = graph({.device_of = {0, 0, 1}, .edges = {{0, 1}, {1, 2}}, .shards = {{0, {0, 1}}}});
  const Program program = lower(backward_first(p, 1), p);
  EXPECT_EQ(program.stages[0].devices, (std::vector{0, 1}));
  EXPECT_EQ(format_program(program, TextForm::transfers),
            "0F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,0B0\n"
            "0F0,2RECV_F0,2F0,2B0,2SEND_B0,0RECV_B0,0B0\n");
}

TEST(Lower, EachRankOfAShardedStageIsServedByTheQuickestHolder) {
  Placement p =
      graph({.device_of = {0, 1}, .edges = {{0, 1}}, .latency = 9, .shards = {{0, {0, 1}}, {1, {1, 2, 3}}}});
  p.links[{1, 3}] = {.latency = 5, .bytes_per_second = 0};
  const Program program = lower(backward_first(p, 1), p);
  EXPECT_EQ(format_program(program, TextForm::transfers),
            "0F0,0SEND_F0,0RECV_B0,0B0\n"
            "0F0,0SEND_F0,1F0,1B0,1SEND_B0,0B0\n"
            "1RECV_F0,1F0,1B0\n"
            "1RECV_F0,1F0,1B0\n");
  EXPECT_EQ(program.ranks[2][0].peer, 0);  // both holders take 9: the lower one
  EXPECT_EQ(program.ranks[3][0].peer, 1);  // 5 against 9
}

TEST(Lower, ForwardOnly) {
  const Placement p = graph({.device_of = {0, 1}, .edges = {{0, 1}}, .training = false});
  EXPECT_EQ(transfers(p, 2), "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n");
}

TEST(Lower, BlocksWithoutTimeKeepTheirOrder) {
  Placement p = chain({0, 1, 0});
  for (Block& block : p.blocks) block.time = 0;
  Plan plan;
  plan.micro_batches = 2;
  for (int b = 0; b < 6; ++b) {
    for (int m = 0; m < 2; ++m) plan.schedule.push_back({b, m, 0});
  }
  EXPECT_TRUE(prove_deadlock_free(lower(plan, p)).ok());
}

// Any acyclic graph, any map of stages to devices, some of them sharded or on lanes, some blocks without
// time, any order that list scheduling can make.
TEST(Lower, RandomGraphsAndOrdersAreFreeOfDeadlock) {
  std::mt19937 random(7);
  for (int round = 0; round < 150; ++round) {
    const int stages = 2 + static_cast<int>(random() % 5);
    const unsigned devices = 1 + random() % 4;
    testing::GraphOptions options{.device_of = {},
                                  .edges = {},
                                  .split = random() % 2 == 0,
                                  .latency = static_cast<Nanoseconds>(random() % 3) * 9};
    for (int s = 0; s < stages; ++s) {
      options.device_of.push_back(static_cast<int>(random() % devices));
      if (random() % 3 == 0) {
        for (unsigned d = 0; d < devices; ++d) {
          if (random() % 2 == 0) options.shards[s].push_back(static_cast<int>(d));
        }
        if (options.shards[s].empty()) options.shards.erase(s);
      }
      for (int from = 0; from < s; ++from) {
        if (from == s - 1 || random() % 3 == 0) options.edges.emplace_back(from, s);
      }
    }
    Placement p = graph(options);
    if (options.shards.empty() && random() % 2 == 0) {
      std::vector<int> lanes;
      for (int s = 0; s < stages; ++s)
        if (random() % 3 == 0) lanes.push_back(s);
      p = testing::on_lanes(p, lanes);
    }
    for (Block& block : p.blocks)
      if (random() % 3 == 0) block.time = 0;
    std::vector<double> weight(p.blocks.size() * 4);
    for (double& w : weight) w = static_cast<double>(random() % 1000);
    const Plan plan = testing::list_schedule(p, 4, [&](int b, int m) { return weight[b * 4 + m]; });
    EXPECT_NO_THROW(lower(plan, p)) << "round " << round;
  }
}

TEST(Lower, SameInputSameBytes) {
  const Placement p = chain({0, 1, 2, 0, 1, 2});
  EXPECT_EQ(transfers(p, 5), transfers(p, 5));
}

TEST(Lower, KeepsOrder) {
  const Placement p = chain({0, 1});
  EXPECT_TRUE(keeps_order(lower(backward_first(p, 3, 2), p)));
  const Plan last_first = testing::list_schedule(
      p, 2, [&](int b, int m) { return p.blocks[b].kind == Kind::forward ? m : 100 - m; });
  EXPECT_FALSE(keeps_order(lower(last_first, p)));
}

TEST(Lower, KeepsOrderLooksAtTheWeightHalf) {
  const Placement p = chain({0}, true);
  const Plan plan = testing::list_schedule(
      p, 2, [&](int b, int m) { return p.blocks[b].kind == Kind::backward_weight ? 100 - m : m; });
  EXPECT_FALSE(keeps_order(lower(plan, p)));
}

TEST(Lower, KeepsOrderLooksAtTheLosses) {
  const Placement p = chain({0});
  const Plan plan = testing::list_schedule(
      p, 2, [&](int b, int m) { return p.blocks[b].kind == Kind::forward ? 1 - m : 10 + m; });
  EXPECT_FALSE(keeps_order(lower(plan, p)));
}

/// The message with which `placement` is refused.
std::string refusal(const Placement& placement) {
  Plan plan;
  plan.micro_batches = 1;
  for (int b = 0; b < static_cast<int>(placement.blocks.size()); ++b)
    plan.schedule.push_back({b, 0, 100 * b});
  return test::refusal_by([&] { lower(plan, placement); });
}

TEST(LowerRefuses, OtherKind) {
  Placement p = chain({0, 1});
  p.blocks[0].kind = Kind::other;
  EXPECT_NE(refusal(p).find("kind \"other\""), std::string::npos) << refusal(p);
}

TEST(LowerRefuses, StageOnTwoDevices) {
  Placement p = chain({0, 1});
  p.blocks[p.find_block("1.B")].devices = {0};
  EXPECT_NE(refusal(p).find("stage '1' runs on device 1 and on device 0; all its blocks must be"),
            std::string::npos)
      << refusal(p);
}

TEST(LowerRefuses, TwoForwardsOfOneStage) {
  Placement p = chain({0, 0});
  p.blocks[1].stage = "0";
  EXPECT_NE(refusal(p).find("'0.F' and '1.F' are both the forward"), std::string::npos) << refusal(p);
}

TEST(LowerRefuses, GradientThatNobodyWaitsFor) {
  Placement p = chain({0, 1});
  p.blocks[p.find_block("0.B")].after.pop_back();
  EXPECT_NE(refusal(p).find("'0.B' must have '1.B' in `after`"), std::string::npos) << refusal(p);
}

TEST(LowerRefuses, WaitAcrossDevicesThatCarriesNothing) {
  Placement p = chain({0, 1});
  p.blocks[p.find_block("0.B")].after.push_back({1, 0});
  EXPECT_NE(refusal(p).find("'0.B' on device 0 waits for '1.F' on device 1"), std::string::npos)
      << refusal(p);
}

TEST(LowerRefuses, WeightHalfAlone) {
  Placement p = chain({0, 0}, true);
  p.blocks[p.find_block("1.I")].kind = Kind::backward;
  EXPECT_NE(refusal(p).find("backward_weight block without"), std::string::npos) << refusal(p);
}

TEST(LowerRefuses, PlanThatLeavesAStepOut) {
  const Placement p = chain({0, 1});
  Plan plan = backward_first(p, 2);
  plan.schedule.pop_back();
  EXPECT_THROW(lower(plan, p), InputError);
}

TEST(LowerRefuses, PlanAgainstTheDependencies) {
  const Placement p = chain({0, 0});
  Plan plan = backward_first(p, 1);
  std::swap(plan.schedule[0].start, plan.schedule[1].start);
  EXPECT_THROW(lower(plan, p), InputError);
}

}  // namespace
}  // namespace ostinato
