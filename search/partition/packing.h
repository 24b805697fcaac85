// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether items fit into bins, by trying all ways. Private to search/partition.
//
//   Packing packing({172, 172, 172, 311});
//   long work = 1000;
//   packing.fits({400, 400}, work);  // Fits::no: 311 leaves no room for one more, and three are too many
//
// Items of one size are alike, so what counts is how many of each size are left: a model has few distinct
// layers. Bins are filled one after the other, each so full that nothing that is left goes in as well (what
// goes in later could as well be there). What is left before a bin is tried once.

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace ostinato::partition {

enum class Fits { yes, no, unknown };

class Packing {
 public:
  /// Sizes >= 0, in any order.
  explicit Packing(std::vector<std::int64_t> items);

  /// `rooms` of the bins, falling. `work` steps are spent at most, and counted down; then Fits::unknown.
  Fits fits(std::vector<std::int64_t> rooms, long& work);

 private:
  /// With d bins and n items some bin has n / d of them, rounded up: the smallest of the n largest, at least.
  bool too_large_for_one() const;
  bool fill(std::size_t bin);
  bool choose(std::size_t bin, std::size_t kind, std::int64_t room);
  bool takes_no_more(std::int64_t room) const;

  std::vector<std::int64_t> sizes_;         ///< distinct, falling
  std::vector<int> counts_, left_;          ///< of each size
  std::vector<std::int64_t> rooms_, rest_;  ///< rest_[b]: of bins b, b + 1, ...
  std::int64_t items_left_ = 0;             ///< their sum
  std::set<std::pair<std::size_t, std::vector<int>>> failed_;
  long work_ = 0;
};

}  // namespace ostinato::partition
