// SPDX-License-Identifier: Apache-2.0
#include "search/files/counted.h"

#include <gtest/gtest.h>

namespace ostinato::test {
namespace {

TEST(Counted, OneOfThemHasNoEnding) {
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
  EXPECT_EQ(counted(0, "device"), "0 devices");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(counted(3, "entry"), "3 entries");
  EXPECT_EQ(counted(4, "process"), "4 processes");
}

}  // namespace
}  // namespace ostinato::test
