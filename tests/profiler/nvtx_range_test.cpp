// SPDX-License-Identifier: Apache-2.0
// Ranges arrive at a tool: an injection library that is linked into this test counts them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/nvtx_tool.h"

namespace ostinato {
namespace {

TEST(NvtxRange, ArrivesAtATool) {
  testing::ranges.clear();
  {
    NvtxRange outer("s1 F 3");
    { NvtxRange inner("3:Block F 0"); }
    EXPECT_EQ(testing::open_ranges, std::vector<std::string>{"s1 F 3"});
  }
  EXPECT_EQ(testing::ranges.closed, (std::vector<std::string>{"3:Block F 0", "s1 F 3"}));
}

TEST(NvtxRange, EndsWithAnException) {
  try {
    NvtxRange range("raises");
    throw 1;
  } catch (int) {
  }
  EXPECT_TRUE(testing::open_ranges.empty());
}

}  // namespace
}  // namespace ostinato
