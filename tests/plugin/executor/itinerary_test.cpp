// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/itinerary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "plugin/lowering/deadlock.h"
#include "plugin/lowering/lower.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using testing::backward_first;
using testing::chain;
using testing::GraphOptions;

/// The program whose lists are what each rank issues with that posting.
Program as_issued(const Program& program, Posting posting) {
  Program issued = program;
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    const auto& list = program.ranks[rank];
    const Itinerary known = itinerary(program, rank, posting);
    auto& order = issued.ranks[rank];
    order.clear();
    int posted = 0;
    for (int i = 0; i < static_cast<int>(list.size()); ++i) {
      for (; posted < known.post_until[i]; ++posted) {
        if (is_receive(list[posted].action)) order.push_back(list[posted]);
      }
      if (!is_receive(list[i].action)) order.push_back(list[i]);
    }
  }
  return issued;
}

std::vector<Instruction> transfers(const std::vector<Instruction>& list) {
  std::vector<Instruction> result;
  std::ranges::copy_if(list, std::back_inserter(result), [](const auto& i) { return !is_compute(i.action); });
  return result;
}

Program program_of(const GraphOptions& options, int micro_batches, int in_flight) {
  const Placement placement = testing::graph(options);
  return lower(backward_first(placement, micro_batches, in_flight), placement);
}

std::vector<Program> programs() {
  std::vector<Program> all;
  for (const int in_flight : {0, 2, 4}) {
    for (const bool split : {false, true}) {
      for (const std::vector<int>& devices :
           {std::vector{0, 1, 2, 3}, {0, 1, 0, 1}, {0, 1, 2, 2, 1, 0}, {1, 0, 0, 1, 1, 0}}) {
        const Placement placement = chain(devices, split);
        all.push_back(lower(backward_first(placement, 6, in_flight), placement));
      }
      all.push_back(program_of({.device_of = {0, 1, 2}, .edges = {{0, 1}, {0, 2}, {1, 2}}, .split = split}, 5,
                               in_flight));
      all.push_back(program_of({.device_of = {0, 1, 0, 2},
                                .edges = {{0, 1}, {1, 2}, {2, 3}},
                                .split = split,
                                .shards = {{0, {0, 1, 2}}, {2, {0, 2}}}},
                               5, in_flight));
    }
  }
  return all;
}

TEST(Itinerary, EverySendIsOfTheComputeThatMadeItsTensors) {
  for (const Program& program : programs()) {
    for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
      const auto& list = program.ranks[rank];
      const Itinerary known = itinerary(program, rank, Posting::anywhere);
      std::map<int, int> sent;
      int with_compute = 0;
      for (std::size_t n = 0; n < list.size(); ++n) {
        if (is_send(list[n].action)) {
          EXPECT_EQ(known.sends_before[n], sent[list[n].peer]++);
        }
        for (const int send : known.sends[n]) {
          EXPECT_GT(send, static_cast<int>(n));
          EXPECT_EQ(list[send].stage, list[n].stage);
          EXPECT_EQ(list[send].micro_batch, list[n].micro_batch);
          EXPECT_EQ(list[send].action == Action::send_forward, list[n].action == Action::forward);
          ++with_compute;
        }
      }
      EXPECT_EQ(with_compute, std::ranges::count_if(list, [](const auto& i) { return is_send(i.action); }));
    }
  }
}

// What computes are passed by may block wherever it is issued: the lists as they are issued pass the proof,
// in which everything blocks.
TEST(Posting, InOrderIsAnOrderThatMayBlock) {
  int moved = 0;
  for (const Program& program : programs()) {
    const Program issued = as_issued(program, Posting::in_order);
    EXPECT_EQ(prove_deadlock_free(issued).failure, "");
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      EXPECT_EQ(transfers(issued.ranks[rank]), transfers(program.ranks[rank]));
      moved += issued.ranks[rank] != program.ranks[rank];
    }
    EXPECT_EQ(as_issued(program, Posting::in_place).ranks, program.ranks);
  }
  EXPECT_GT(moved, 0);
}

// ... which is not so where sends are passed, too.
TEST(Posting, AnywhereMustNotBlock) {
  const auto all = programs();
  EXPECT_TRUE(std::ranges::any_of(
      all, [](const Program& p) { return !prove_deadlock_free(as_issued(p, Posting::anywhere)).ok(); }));
}

TEST(Posting, InOrderPassesNoComputeInWhichRanksMeet) {
  for (const Program& program : programs()) {
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const auto meets = [&](const Instruction& i) {
        return !is_compute(i.action) || program.stages[i.stage].sharded();
      };
      const auto ordered = [&](const std::vector<Instruction>& list) {
        std::vector<Instruction> result;
        std::ranges::copy_if(list, std::back_inserter(result), meets);
        return result;
      };
      EXPECT_EQ(ordered(as_issued(program, Posting::in_order).ranks[rank]), ordered(program.ranks[rank]));
    }
  }
}

}  // namespace
}  // namespace ostinato
