// SPDX-License-Identifier: Apache-2.0
// Named schedules that overlap a forward with a backward, part by part, on lanes.
#include <gtest/gtest.h>

#include "tests/search/named/named_runs.h"

namespace ostinato {
namespace {

TEST(Combined1F1B, HidesExchangesBehindComputing) {
  for (const int d : {1, 2, 4, 8}) {
    for (const Nanoseconds exchange : {1, 2}) {
      const Placement placement = in_parts(shape("v", whole(d, 1, 4, 8)), exchange);
      const Nanoseconds more =
          makespan("combined-1f1b", placement, 40) - makespan("combined-1f1b", placement, 30);
      EXPECT_EQ(more, 10 * (4 + 8)) << d << ' ' << exchange;  // what a device computes
      EXPECT_GT(makespan("1f1b", placement, 40) - makespan("1f1b", placement, 30), more);
      std::vector<Bytes> expected(2 * d, 0);
      for (int r = 0; r < d; ++r) expected[r] = 2 * (d - r);
      EXPECT_EQ(peaks("combined-1f1b", placement, 40), expected);
    }
  }
}

TEST(Combined1F1B, RunsLoopedChunks) {
  const Placement placement = in_parts(shape("looped", whole(4, 2, 4, 8)), 2);
  EXPECT_EQ(makespan("combined-1f1b", placement, 40) - makespan("combined-1f1b", placement, 32),
            8 * 2 * (4 + 8));
  EXPECT_LT(makespan("combined-1f1b", placement, 32), makespan("interleaved-1f1b", placement, 32));
}

TEST(DualPipe, HidesExchangesBehindComputing) {
  const Placement placement = in_parts(shape("x", whole(4, 1, 4, 8)), 2);
  EXPECT_EQ(makespan("dualpipe", placement, 40) - makespan("dualpipe", placement, 30), 10 * 2 * (4 + 8));
}

TEST(Named, SaysWhyNotOfLanes) {
  const auto why = [](const char* name, const Placement& placement) {
    return named_schedule(name, placement, 4).why_not;
  };
  const Placement v = shape("v", whole(4, 1, 4, 8));
  EXPECT_EQ(why("combined-1f1b", v), "combined-1f1b needs devices with lanes");
  EXPECT_EQ(why("dualpipe-v", in_parts(v, 1)), "dualpipe-v is not for devices with lanes");
  EXPECT_EQ(why("zb-1p", in_parts(v, 1)), "zb-1p is not for devices with lanes");
}

}  // namespace
}  // namespace ostinato
