// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bound of the checker beside the optimum of many tiny placements that dice draw: it must never be above
// it, and the counts say whether the draw was worth anything.
//
//   Dice random(11);
//   Beside found = beside_optimum<AllOrders>(
//       150, [&] { return Drawn{tiny(random), 3}; },
//       [](const checker::Bounds& bounds, int n) { return bounds.makespan(n, checker::kUnbounded); });
//   EXPECT_GE(found.tight, 40);

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "search/checker/bounds.h"
#include "search/placement/placement.h"

namespace ostinato::test {

struct Drawn {
  Placement placement;
  int micro_batches = 1;
};

struct Beside {
  int solved = 0;                 ///< rounds in which some order fits the memory
  int tight = 0;                  ///< of them, those whose bound is the optimum
  std::map<std::string, int> by;  ///< of them, by the statement that gave the bound: "M6"
};

/// `All` is AllOrders or AllSpans, `draw()` a Drawn, `bound(bounds, micro_batches)` a checker::Bound. Ends at
/// the first bound that is above the optimum, which fails the test.
template <typename All, typename Draw, typename Bound>
Beside beside_optimum(int rounds, Draw draw, Bound bound) {
  Beside found;
  for (int i = 0; i < rounds && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const Drawn drawn = draw();
    const std::optional<Nanoseconds> least = All(drawn.placement, drawn.micro_batches).least();
    if (!least) continue;
    const checker::Bound shown = bound(checker::Bounds(drawn.placement), drawn.micro_batches);
    EXPECT_LE(shown.value, *least) << shown.why;
    ++found.solved;
    found.tight += shown.value == *least ? 1 : 0;
    ++found.by[shown.why.substr(0, 2)];
  }
  return found;
}

}  // namespace ostinato::test
