// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/deadlock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plugin/lowering/lower.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using testing::backward_first;
using testing::chain;
using testing::graph;

Program program_of(const Placement& placement, int micro_batches, int in_flight = 0) {
  return lower(backward_first(placement, micro_batches, in_flight), placement);
}

std::size_t find(const Program& program, int rank, const std::string& text) {
  const auto& list = program.ranks[rank];
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (to_string(list[i]) == text) return i;
  }
  ADD_FAILURE() << text << " is not on rank " << rank;
  return 0;
}

void move(Program& program, int rank, const std::string& what, const std::string& before) {
  auto& list = program.ranks[rank];
  const Instruction moved = list[find(program, rank, what)];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(program, rank, what)));
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(find(program, rank, before)), moved);
}

/// Each case: one change to a program that passes, and words that the failure must have.
TEST(Deadlock, CrossedSendsBlockEachOther) {
  // Naive 1F1B: both ranks send before they receive, and neither arrives.
  Program program = program_of(chain({0, 1}), 3, 2);
  move(program, 0, "0SEND_F2", "0RECV_B0");
  std::swap(program.ranks[0][find(program, 0, "0F2")], program.ranks[0][find(program, 0, "0B0")]);
  const std::string failure = prove_deadlock_free(program).failure;
  EXPECT_NE(failure, "");
}

TEST(Deadlock, SendBeforeTheReceiveThatThePeerIsAt) {
  Program program = program_of(chain({0, 1}), 2, 2);
  // Rank 1 wants to send the gradient of micro-batch 0 before it takes micro-batch 1; rank 0 waits the other
  // way round.
  move(program, 1, "1B0", "1RECV_F1");
  move(program, 1, "1SEND_B0", "1RECV_F1");
  EXPECT_EQ(
      prove_deadlock_free(program).failure,
      "deadlock without buffering: rank 0, instruction 3 (0SEND_F1) to rank 1 waits for rank 1, instruction "
      "3 "
      "(1SEND_B0) to rank 0; rank 1, instruction 3 (1SEND_B0) to rank 0 waits for rank 0, instruction 3 "
      "(0SEND_F1) to rank 1");
}

TEST(Deadlock, MessagesOfAPairInAnotherOrder) {
  Program program = program_of(chain({0, 1}), 2, 2);
  move(program, 1, "1RECV_F1", "1RECV_F0");
  EXPECT_NE(prove_deadlock_free(program).failure.find(
                "(0SEND_F0) to rank 1 meets rank 1, instruction 0 (1RECV_F1)"),
            std::string::npos);
}

TEST(Deadlock, ComputeBeforeItsInput) {
  Program program = program_of(chain({0, 1}), 1);
  move(program, 1, "1F0", "1RECV_F0");
  EXPECT_EQ(prove_deadlock_free(program).failure,
            "rank 1, instruction 0 (1F0) runs before its inputs are there");
}

TEST(Deadlock, BackwardBeforeForwardOnOneRank) {
  Program program = program_of(chain({0}), 1);
  std::swap(program.ranks[0][0], program.ranks[0][1]);
  EXPECT_NE(prove_deadlock_free(program).failure.find("(0B0) runs before its forward"), std::string::npos);
}

TEST(Deadlock, SendBeforeItsProducer) {
  Program program = program_of(chain({0, 1}), 1);
  move(program, 0, "0SEND_F0", "0F0");
  EXPECT_NE(
      prove_deadlock_free(program).failure.find("(0SEND_F0) to rank 1 comes before its tensor is computed"),
      std::string::npos);
}

TEST(Deadlock, StepLeftOutOrTwice) {
  Program program = program_of(chain({0, 1}), 2);
  Program twice = program;
  twice.ranks[1].push_back(twice.ranks[1][find(twice, 1, "1F0")]);
  EXPECT_NE(prove_deadlock_free(twice).failure.find("occurs twice"), std::string::npos);
  program.ranks[0].pop_back();
  EXPECT_NE(prove_deadlock_free(program).failure.find("does not run micro-batch 1 exactly once"),
            std::string::npos);
}

TEST(Deadlock, StageOrPeerThatIsNotThere) {
  Program program = program_of(chain({0, 1}), 1);
  program.ranks[0][1].peer = 5;
  EXPECT_NE(prove_deadlock_free(program).failure.find("names a stage that is not on that rank"),
            std::string::npos);
  program = program_of(chain({0, 1}), 1);
  program.ranks[0][0].stage = 1;
  EXPECT_NE(prove_deadlock_free(program).failure.find("runs a stage that is not on this rank"),
            std::string::npos);
}

/// Stages 0 and 3 on both devices, 1 and 2 on one each: an embedding and a head around a chain.
Program sharded(int micro_batches) {
  return program_of(graph({.device_of = {0, 0, 1, 0},
                           .edges = {{0, 1}, {1, 2}, {2, 3}},
                           .shards = {{0, {0, 1}}, {3, {0, 1}}}}),
                    micro_batches);
}

TEST(Deadlock, RanksThatRunTheirShardsInAnotherOrder) {
  Program program = sharded(2);
  move(program, 1, "0F1", "0F0");
  EXPECT_EQ(prove_deadlock_free(program).failure,
            "deadlock without buffering: rank 0, instruction 0 (0F0) waits for rank 1, instruction 0 (0F1); "
            "rank 1, "
            "instruction 0 (0F1) waits for rank 0, instruction 0 (0F0)");
}

TEST(Deadlock, ShardLeftOutOnOneRank) {
  Program program = sharded(1);
  auto& list = program.ranks[1];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(program, 1, "3F0")));
  EXPECT_NE(prove_deadlock_free(program).failure.find("stage '3' on rank 1 does not run micro-batch 0"),
            std::string::npos);
}

TEST(Deadlock, ShardBeforeItsInputOnOneRank) {
  Program program = program_of(graph({.device_of = {2, 0}, .edges = {{0, 1}}, .shards = {{1, {0, 1}}}}), 1);
  move(program, 1, "1F0", "1RECV_F0");
  EXPECT_EQ(prove_deadlock_free(program).failure,
            "rank 1, instruction 0 (1F0) runs before its inputs are there");
}

TEST(Deadlock, MessageThatIsThereAlready) {
  // Stage 0 is on both ranks, so stage 2 of rank 1 needs no message of it.
  Program program = program_of(
      graph({.device_of = {0, 1}, .edges = {{0, 1}}, .training = false, .shards = {{0, {0, 1}}}}), 1);
  program.ranks[0].push_back({.action = Action::send_forward, .stage = 0, .peer = 1, .peer_stage = 1});
  program.ranks[1].insert(program.ranks[1].begin() + 1,
                          {.action = Action::receive_forward, .stage = 1, .peer = 0, .peer_stage = 0});
  EXPECT_NE(prove_deadlock_free(program).failure.find(
                "(1RECV_F0) from rank 0 receives a tensor that is already there"),
            std::string::npos)
      << prove_deadlock_free(program).failure;
}

TEST(Deadlock, RanksOfAStageThatAreNotThere) {
  for (const std::vector<int>& ranks : {std::vector<int>{}, {0, 7}, {1, 0}, {0, 0}}) {
    Program program = sharded(1);
    program.stages[0].devices = ranks;
    EXPECT_NE(prove_deadlock_free(program).failure.find("stage '0' has no ranks, or ranks"),
              std::string::npos);
  }
}

/// An independent witness: runs ranks in random order under rendezvous, looking at nothing but who meets
/// whom.
bool finishes(const Program& program, std::mt19937& random) {
  std::vector<std::size_t> at(program.ranks.size(), 0);
  for (int idle = 0; idle < 200;) {
    const std::size_t r = random() % at.size();
    ++idle;
    if (at[r] == program.ranks[r].size()) continue;
    const Instruction& i = program.ranks[r][at[r]];
    if (i.peer >= 0) {
      if (at[i.peer] == program.ranks[i.peer].size()) continue;
      const Instruction& other = program.ranks[i.peer][at[i.peer]];
      if (other.peer != static_cast<int>(r) || is_send(other.action) == is_send(i.action)) continue;
      ++at[i.peer];
      ++at[r];
    } else {
      const auto& ranks = program.stages[i.stage].devices;
      const bool all = std::ranges::all_of(ranks, [&](int other) {
        return at[other] < program.ranks[other].size() &&
               to_string(program.ranks[other][at[other]]) == to_string(i);
      });
      if (!all) continue;
      for (const int other : ranks) ++at[other];
    }
    idle = 0;
  }
  for (std::size_t r = 0; r < at.size(); ++r) {
    if (at[r] != program.ranks[r].size()) return false;
  }
  return true;
}

/// How many swaps of two neighbours in a program that passes are refused.
int refused_swaps(const Program& good) {
  std::mt19937 random(3);
  int refused = 0;
  for (std::size_t r = 0; r < good.ranks.size(); ++r) {
    for (std::size_t k = 0; k + 1 < good.ranks[r].size(); ++k) {
      Program swapped = good;
      std::swap(swapped.ranks[r][k], swapped.ranks[r][k + 1]);
      const DeadlockProof proof = prove_deadlock_free(swapped);
      refused += !proof.ok();
      const bool blocks = proof.failure.starts_with("deadlock");
      if (proof.ok() || blocks) {
        EXPECT_NE(finishes(swapped, random), blocks) << r << " " << k << ": " << proof.failure;
      }
    }
  }
  return refused;
}

TEST(Deadlock, SwappedNeighboursAgreeWithARandomExecution) {
  EXPECT_GT(refused_swaps(program_of(chain({0, 1, 2, 2, 1, 0}), 4)), 20);
  EXPECT_GT(refused_swaps(sharded(4)), 20);
}

}  // namespace
}  // namespace ostinato
