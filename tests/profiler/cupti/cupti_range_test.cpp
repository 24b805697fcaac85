// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/range.h"

#include <gtest/gtest.h>

#include <set>

namespace ostinato::cupti {
namespace {

TEST(CuptiRange, EveryFieldSurvivesTheWayThroughTheId) {
  std::set<std::uint64_t> ids;
  for (int operator_id : {-1, 0, 12, kMaxOperator}) {
    for (int layer : {-1, 0, 3, kMaxLayer}) {
      for (Kind kind :
           {Kind::forward, Kind::backward, Kind::backward_input, Kind::backward_weight, Kind::other}) {
        for (int micro_batch : {-1, 0, 7, kMaxMicroBatch}) {
          const Range range{operator_id, layer, kind, micro_batch};
          const std::uint64_t id = encode(range);
          ASSERT_TRUE(decode(id).has_value());
          EXPECT_EQ(*decode(id), range);
          ids.insert(id);
        }
      }
    }
  }
  EXPECT_EQ(ids.size(), 4u * 4u * 5u * 4u);
  EXPECT_FALSE(ids.contains(0));
}

TEST(CuptiRange, WhatDoesNotFitHasNoId) {
  EXPECT_EQ(encode({.operator_id = kMaxOperator + 1}), 0u);
  EXPECT_EQ(encode({.operator_id = -2}), 0u);
  EXPECT_EQ(encode({.layer = kMaxLayer + 1}), 0u);
  EXPECT_EQ(encode({.micro_batch = kMaxMicroBatch + 1}), 0u);
}

TEST(CuptiRange, IdsOfOthersAreRefused) {
  EXPECT_FALSE(decode(0).has_value());
  EXPECT_FALSE(decode(42).has_value());                                   // without our mark
  EXPECT_FALSE(decode(encode({}) | std::uint64_t{7} << 20).has_value());  // a kind that does not exist
}

}  // namespace
}  // namespace ostinato::cupti
