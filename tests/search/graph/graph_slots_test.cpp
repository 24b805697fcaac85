// SPDX-License-Identifier: Apache-2.0
// The gaps of a device against a list that is walked from the front.

#include "search/graph/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "search/numbers/random.h"

namespace ostinato::graph {
namespace {

class WalkedList {
 public:
  Ticks earliest(Ticks ready, Ticks length) const {
    for (const auto& [start, end] : slots_) {
      if (end <= ready && start < ready) continue;
      if (start > ready && start - ready >= length) return ready;
      ready = std::max(ready, end);
    }
    return ready;
  }
  void add(Ticks start, Ticks length) {
    const std::pair slot(start, start + length);
    slots_.insert(std::upper_bound(slots_.begin(), slots_.end(), slot), slot);
  }

 private:
  std::vector<std::pair<Ticks, Ticks>> slots_;
};

/// Plans `count` intervals that are ready at random before `horizon`; the fuller it is, the more touch.
void compare(std::uint64_t seed, int count, int horizon, int longest) {
  Random random(seed);
  GraphSlots slots;
  WalkedList list;
  for (int i = 0; i < count; ++i) {
    const Ticks ready = random.below(horizon), length = 1 + random.below(longest);
    const Ticks start = slots.earliest(ready, length);
    ASSERT_EQ(start, list.earliest(ready, length)) << "seed " << seed << ", interval " << i;
    slots.add(start, length);
    list.add(start, length);
  }
}

TEST(GraphSlots, FindsTheGapThatAWalkFinds) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    compare(seed, 1000, 100'000, 20);  // many blocks, mostly gaps
    compare(seed, 1000, 10'000, 20);   // full: intervals touch, blocks are joined
    compare(seed, 1000, 100, 5);       // all at the end
  }
}

TEST(GraphSlots, BlocksAreJoinedWhereAGapIsFilled) {
  GraphSlots slots;
  const int count = 1000;
  for (int i = 0; i < count; ++i) slots.add(2 * i, 1);
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(slots.earliest(0, 1), 2 * i + 1);
    slots.add(2 * i + 1, 1);
  }
  EXPECT_EQ(slots.earliest(7, 1), 2 * count);
}

}  // namespace
}  // namespace ostinato::graph
