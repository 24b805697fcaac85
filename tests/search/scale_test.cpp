// SPDX-License-Identifier: Apache-2.0
// Placements of very many blocks: the search ends by itself, whatever the time, with a plan that the checker
// accepts. Nothing here is timed; what is quadratic in the blocks of a device does not end.

#include <gtest/gtest.h>

#include <random>

#include "search/bounds/one_machine.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::on_devices;
using test::searched;

/// Forwards through all stages, stage s on device s mod `devices`, and the backwards the way back.
Placement long_chain(int devices, int stages, Bytes capacity = kUnlimited) {
  Placement p = on_devices(devices, capacity);
  std::vector<int> forward;
  for (int s = 0; s < stages; ++s) {
    std::vector<int> after;
    if (s > 0) after.push_back(forward.back());
    forward.push_back(add(p, fmt::format("F{}", s), {s % devices}, 1 + s % 3, {.memory = 1, .after = after}));
  }
  int last = -1;
  for (int s = stages - 1; s >= 0; --s) {
    std::vector<int> after = {forward[s]};
    if (last >= 0) after.push_back(last);
    last = add(p, fmt::format("B{}", s), {s % devices}, 2, {.memory = -1, .after = after});
  }
  return p;
}

TEST(LargePlacements, AChainOfAHundredThousandBlocks) {
  const Plan plan = searched(long_chain(4, 50'000), 1);
  EXPECT_TRUE(plan.optimal.makespan);
}

TEST(LargePlacements, AChainWhoseMemoryHoldsOneMicroBatch) {
  const Plan plan = searched(long_chain(4, 20'000, 5'000), 1);
  EXPECT_TRUE(plan.optimal.makespan);
}

TEST(LargePlacements, AChainInWhichMicroBatchesFollowEachOther) {
  const Plan plan = searched(long_chain(4, 2'000), 8);
  EXPECT_LE(plan.makespan, plan.lower_bound.makespan + plan.lower_bound.makespan / 100);
}

TEST(LargePlacements, ManyChainsThatAreAllReadyAtOnce) {
  Placement p = on_devices(4);
  for (int chain = 0; chain < 10'000; ++chain) {
    int last = -1;
    for (int s = 0; s < 5; ++s) {
      const std::vector<int> after = last < 0 ? std::vector<int>{} : std::vector<int>{last};
      last = add(p, fmt::format("{}.{}", chain, s), {(chain + s) % 4}, 1 + (chain + s) % 5, {.after = after});
    }
  }
  EXPECT_TRUE(searched(p, 1).optimal.makespan);
}

/// The largest min head + sum of times + min tail, set by set.
Nanoseconds over_all_sets(const std::vector<Task>& tasks) {
  Nanoseconds largest = 0;
  for (unsigned set = 1; set < 1u << tasks.size(); ++set) {
    Task all{std::numeric_limits<Nanoseconds>::max(), 0, std::numeric_limits<Nanoseconds>::max()};
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      all.head = std::min(all.head, tasks[i].head);
      all.time += tasks[i].time;
      all.tail = std::min(all.tail, tasks[i].tail);
    }
    largest = std::max(largest, all.head + all.time + all.tail);
  }
  return largest;
}

TEST(OneMachine, IsTheLargestOverAllSets) {
  std::mt19937 random(7);
  const auto up_to = [&](unsigned most) { return static_cast<Nanoseconds>(random() % (most + 1)); };
  for (int round = 0; round < 500; ++round) {
    std::vector<Task> tasks(1 + random() % 8);
    for (Task& task : tasks) task = {up_to(12), up_to(5), up_to(12)};
    EXPECT_EQ(least_end(tasks), over_all_sets(tasks)) << "round " << round;
  }
  EXPECT_EQ(least_end({}), 0);
}

}  // namespace
}  // namespace ostinato
