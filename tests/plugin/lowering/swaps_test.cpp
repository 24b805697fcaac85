// SPDX-License-Identifier: Apache-2.0
// Every pair of instructions of small programs swapped, on one rank and between ranks: the proof refuses a
// swap exactly where the program no longer computes what it did, which running it on numbers shows.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "plugin/lowering/deadlock.h"
#include "plugin/lowering/lower.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using testing::backward_first;
using testing::chain;
using testing::graph;

using Value = std::uint64_t;

Value mixed(Value a, Value b) {
  a = a * 0x9E3779B97F4A7C15u + b;
  return a ^ (a >> 29);
}

/// Runs a program on numbers under rendezvous. Messages carry no name, as between real ranks: who receives
/// keeps what arrives under the name that it expects.
class Numbers {
 public:
  explicit Numbers(const Program& program)
      : program_(program), at_(program.ranks.size(), 0), held_(program.ranks.size()) {}

  /// Per rank and stage the sum of its weights' gradients and outputs; nothing where an input is missing, an
  /// instruction is on a rank that cannot run it, or the ranks wait for each other.
  std::optional<std::map<std::pair<int, int>, Value>> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < static_cast<int>(at_.size()); ++r) {
        const Instruction* i = current(r);
        if (i == nullptr) continue;
        if (!program_.stages[i->stage].on(r)) return std::nullopt;
        const bool ran = is_compute(i->action) ? meet(*i) : exchange(r, *i);
        if (failed_) return std::nullopt;
        moved = moved || ran;
      }
    }
    for (int r = 0; r < static_cast<int>(at_.size()); ++r) {
      if (current(r) != nullptr) return std::nullopt;
    }
    return sums_;
  }

 private:
  enum What { kActivation, kGradient, kOutput, kInputGradient };
  using Name = std::tuple<int, int, What, int>;  ///< stage, micro-batch, what, from which stage

  const Instruction* current(int rank) const {
    const auto& list = program_.ranks[rank];
    return at_[rank] < list.size() ? &list[at_[rank]] : nullptr;
  }

  Value take(int rank, const Name& name) {
    const auto found = held_[rank].find(name);
    failed_ = failed_ || found == held_[rank].end();
    return failed_ ? 0 : found->second;
  }

  /// A compute of all ranks of its stage at once.
  bool meet(const Instruction& i) {
    for (const int r : program_.stages[i.stage].devices) {
      const Instruction* other = current(r);
      if (other == nullptr || to_string(*other) != to_string(i)) return false;
    }
    for (const int r : program_.stages[i.stage].devices) {
      compute(r, i);
      ++at_[r];
    }
    return true;
  }

  void compute(int rank, const Instruction& i) {
    const ProgramStage& stage = program_.stages[i.stage];
    const int m = i.micro_batch;
    Value value = mixed(static_cast<Value>(i.stage) + 1, static_cast<Value>(m) + 1);
    if (i.action == Action::forward) {
      for (const int from : stage.inputs) value = mixed(value, take(rank, {i.stage, m, kActivation, from}));
      held_[rank][{i.stage, m, kOutput, -1}] = value;
      for (const int to : stage.outputs) hand_over(rank, {to, m, kActivation, i.stage}, value);
      sums_[{rank, i.stage}] += value;
      return;
    }
    if (i.action != Action::backward_weight) {
      value = mixed(value, take(rank, {i.stage, m, kOutput, -1}));
      for (const int from : stage.outputs) value = mixed(value, take(rank, {i.stage, m, kGradient, from}));
      held_[rank][{i.stage, m, kInputGradient, -1}] = value;
      for (const int to : stage.inputs) hand_over(rank, {to, m, kGradient, i.stage}, value);
    }
    if (i.action != Action::backward_input)
      sums_[{rank, i.stage}] += mixed(take(rank, {i.stage, m, kInputGradient, -1}), 7);
  }

  void hand_over(int rank, const Name& name, Value value) {
    if (program_.stages[std::get<0>(name)].on(rank)) held_[rank][name] = value;
  }

  /// A send of one rank and a receive of the other, whatever they are called.
  bool exchange(int rank, const Instruction& i) {
    const Instruction* other = i.peer == rank ? nullptr : current(i.peer);
    if (!is_send(i.action) || other == nullptr || !is_receive(other->action) || other->peer != rank)
      return false;
    const What sent = i.action == Action::send_forward ? kOutput : kInputGradient;
    const What kept = other->action == Action::receive_forward ? kActivation : kGradient;
    held_[i.peer][{other->stage, other->micro_batch, kept, other->peer_stage}] =
        take(rank, {i.stage, i.micro_batch, sent, -1});
    ++at_[rank];
    ++at_[i.peer];
    return true;
  }

  const Program& program_;
  std::vector<std::size_t> at_;
  std::vector<std::map<Name, Value>> held_;
  std::map<std::pair<int, int>, Value> sums_;
  bool failed_ = false;
};

struct Swaps {
  int harmless = 0;
  int refused = 0;
};

/// Swaps every pair, and compares the proof with what the numbers say.
Swaps swap_all(const Program& good) {
  const auto expected = Numbers(good).run();
  EXPECT_TRUE(expected.has_value());
  Swaps swaps;
  const auto judge = [&](const Program& swapped, const Instruction& a, const Instruction& b) {
    const DeadlockProof proof = prove_deadlock_free(swapped);
    EXPECT_EQ(proof.ok(), Numbers(swapped).run() == expected)
        << to_string(a) << " and " << to_string(b) << ": " << proof.failure;
    ++(proof.ok() ? swaps.harmless : swaps.refused);
  };
  Program program = good;
  for (std::size_t r = 0; r < good.ranks.size(); ++r) {
    for (std::size_t other = r; other < good.ranks.size(); ++other) {
      for (std::size_t k = 0; k < good.ranks[r].size(); ++k) {
        for (std::size_t l = other == r ? k + 1 : 0; l < good.ranks[other].size(); ++l) {
          Instruction &a = program.ranks[r][k], &b = program.ranks[other][l];
          std::swap(a, b);
          judge(program, b, a);
          std::swap(a, b);
        }
      }
    }
  }
  return swaps;
}

Swaps swap_all(const Placement& placement, int micro_batches, int in_flight = 0) {
  return swap_all(lower(backward_first(placement, micro_batches, in_flight), placement));
}

TEST(Swaps, Chain) {
  const Swaps swaps = swap_all(chain({0, 1, 2}), 3, 3);
  EXPECT_GT(swaps.refused, 500);
  EXPECT_GT(swaps.harmless, 0);
}

TEST(Swaps, SplitWave) {
  const Swaps swaps = swap_all(chain({0, 1, 1, 0}, true), 3);
  EXPECT_GT(swaps.refused, 500);
  EXPECT_GT(swaps.harmless, 10);  // weight halves may come later
}

TEST(Swaps, Looped) { EXPECT_GT(swap_all(chain({0, 1, 0, 1}), 3).refused, 500); }

TEST(Swaps, BranchesThatMeet) {
  const Placement placement =
      graph({.device_of = {0, 1, 2, 0}, .edges = {{0, 2}, {1, 2}, {0, 3}, {2, 3}}, .split = true});
  EXPECT_GT(swap_all(placement, 2).refused, 500);
}

TEST(Swaps, StagesOnSeveralRanks) {
  const Placement placement = graph(
      {.device_of = {0, 0, 1, 0}, .edges = {{0, 1}, {1, 2}, {2, 3}}, .shards = {{0, {0, 1}}, {3, {0, 1}}}});
  EXPECT_GT(swap_all(placement, 3).refused, 300);
}

TEST(Swaps, TwoDirections) {
  EXPECT_GT(swap_all(graph({.device_of = {0, 1, 1, 0}, .edges = {{0, 1}, {2, 3}}}), 3).refused, 300);
}

TEST(Swaps, ForwardsAlone) {
  EXPECT_GT(
      swap_all(graph({.device_of = {0, 1, 0}, .edges = {{0, 1}, {1, 2}}, .training = false}), 4).refused,
      100);
}

}  // namespace
}  // namespace ostinato
