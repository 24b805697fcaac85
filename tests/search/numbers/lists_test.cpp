// SPDX-License-Identifier: Apache-2.0
#include "search/numbers/lists.h"

#include <gtest/gtest.h>

#include "search/numbers/random.h"

namespace ostinato {
namespace {

TEST(ListsTest, PairsAndListsGiveTheSame) {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<int>> rows(random.below(6));
    std::vector<std::pair<int, int>> pairs;
    for (int i = rows.empty() ? 0 : random.below(20); i > 0; --i) {
      const int row = random.below(static_cast<int>(rows.size()));
      pairs.emplace_back(row, i);
      rows[row].push_back(i);
    }
    for (const auto& lists :
         {Lists<int>(rows), Lists<int>::from_pairs(static_cast<int>(rows.size()), pairs)}) {
      ASSERT_EQ(lists.rows(), static_cast<int>(rows.size()));
      ASSERT_EQ(lists.values().size(), pairs.size());
      std::size_t begin = 0;
      for (int row = 0; row < lists.rows(); ++row) {
        ASSERT_EQ(std::vector<int>(lists[row].begin(), lists[row].end()), rows[row]);
        ASSERT_EQ(lists.begin(row), begin);
        begin += rows[row].size();
      }
      ASSERT_EQ(lists.begin(lists.rows()), begin);
    }
  }
}

}  // namespace
}  // namespace ostinato
