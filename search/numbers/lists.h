// SPDX-License-Identifier: Apache-2.0
#pragma once
// Many short lists in one array: what a search walks millions of times lies together.
//
//   const Lists<int> lists({{4, 5}, {}, {6}});
//   for (const int value : lists[0]) ...                        // 4, 5
//   const auto of = Lists<int>::from_pairs(3, {{{2, 7}}});      // {}, {}, {7}

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace ostinato {

template <typename T>
class Lists {
 public:
  Lists() = default;
  explicit Lists(const std::vector<std::vector<T>>& lists) {
    for (const auto& list : lists) {
      values_.insert(values_.end(), list.begin(), list.end());
      begin_.push_back(values_.size());
    }
  }

  /// `rows` lists, from pairs (row, value); each in the order of its pairs. O(rows + pairs).
  static Lists from_pairs(int rows, const std::vector<std::pair<int, T>>& pairs) {
    Lists lists;
    lists.begin_.assign(rows + 1, 0);
    for (const auto& [row, value] : pairs) ++lists.begin_[row + 1];
    for (int row = 0; row < rows; ++row) lists.begin_[row + 1] += lists.begin_[row];
    lists.values_.resize(pairs.size());
    std::vector<std::size_t> next(lists.begin_.begin(), lists.begin_.end() - 1);
    for (const auto& [row, value] : pairs) lists.values_[next[row]++] = value;
    return lists;
  }

  int rows() const { return static_cast<int>(begin_.size()) - 1; }
  std::span<const T> operator[](int row) const {
    return {values_.data() + begin_[row], values_.data() + begin_[row + 1]};
  }
  const std::vector<T>& values() const { return values_; }  ///< of all rows, one after the other
  /// Position in values() of a row's first value; begin(rows()) is the end of the last row.
  std::size_t begin(int row) const { return begin_[row]; }

 private:
  std::vector<T> values_;
  std::vector<std::size_t> begin_ = {0};
};

}  // namespace ostinato
