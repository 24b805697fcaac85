// SPDX-License-Identifier: Apache-2.0
// Layers as runs, beside a std::set of the same layers.

#include "search/placement/stage.h"

#include <gtest/gtest.h>

#include <set>

#include "search/numbers/random.h"

namespace ostinato {
namespace {

TEST(LayersTest, AreRuns) {
  Layers layers = Layers::run(0, 4);
  layers.push_back(6);
  layers.push_back(7);
  EXPECT_EQ(layers.runs(), (std::vector<LayerRun>{{0, 4}, {6, 8}}));
  EXPECT_EQ(layers, (Layers{0, 1, 2, 3, 6, 7}));
  EXPECT_EQ(layers.size(), 6u);
  EXPECT_EQ(layers.front(), 0);
  EXPECT_EQ(layers.back(), 7);
  EXPECT_TRUE(Layers::run(5, 5).empty());
}

TEST(LayersTest, OfAFileMayBeManyAndTakeNoMemory) {
  const Layers all = Layers::run(0, 2'000'000'000);
  EXPECT_EQ(all.size(), 2'000'000'000u);
  EXPECT_EQ(all[1'999'999'999], 1'999'999'999);
  EXPECT_TRUE(all.contains(1'999'999'999));
  EXPECT_FALSE(all.contains(2'000'000'000));
}

void expect_same(const Layers& layers, const std::set<int>& set, int most) {
  const std::vector<int> expected(set.begin(), set.end());
  ASSERT_EQ(std::vector<int>(layers.begin(), layers.end()), expected);
  ASSERT_EQ(layers.size(), expected.size());
  ASSERT_EQ(layers.empty(), expected.empty());
  ASSERT_EQ(layers, Layers(expected));  // runs that touch are one
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(layers[i], expected[i]);
  for (int l = -1; l <= most; ++l) ASSERT_EQ(layers.contains(l), set.contains(l)) << l;
}

TEST(LayersTest, AddAndSplitAsSetsDo) {
  Random random(41);
  for (int round = 0; round < 500; ++round) {
    constexpr int kMost = 12;
    std::set<int> one, other;
    for (int l = 0; l < kMost; ++l) {
      if (random.below(2)) one.insert(l);
      if (random.below(3) == 0) other.insert(l);
    }
    Layers layers(std::vector<int>(one.begin(), one.end()));
    layers.add(std::vector<int>(other.begin(), other.end()));
    one.merge(other);
    expect_same(layers, one, kMost);
    const int cut = random.below(static_cast<int>(one.size()) + 1);
    const Layers rest = layers.split(cut);
    const auto middle = std::next(one.begin(), cut);
    expect_same(layers, {one.begin(), middle}, kMost);
    expect_same(rest, {middle, one.end()}, kMost);
  }
}

}  // namespace
}  // namespace ostinato
