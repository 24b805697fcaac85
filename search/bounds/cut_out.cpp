// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/cut_out.h"

#include <algorithm>
#include <functional>
#include <set>

namespace ostinato {
namespace {

constexpr std::size_t kMostCuts = 4;

bool share_a_device(std::span<const int> a, std::span<const int> b) {
  if (a.size() > b.size()) std::swap(a, b);
  return std::any_of(a.begin(), a.end(), [&](int d) { return std::binary_search(b.begin(), b.end(), d); });
}

}  // namespace

std::vector<std::vector<int>> sets_to_cut(const Instance& in) {
  std::vector<std::vector<int>> sets;
  for (int d = 0; d < in.devices() && sets.size() < kMostCuts; ++d) {
    std::set<std::size_t, std::greater<>> widths;
    for (const int b : in.blocks_on(d)) widths.insert(in.devices_of(b).size());
    for (const std::size_t width : widths) {
      if (width < 2 || sets.size() == kMostCuts) break;
      std::vector<int> set;
      for (const int b : in.blocks_on(d)) {
        if (in.devices_of(b).size() >= width) set.push_back(b);
      }
      if (std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(std::move(set));
    }
  }
  return sets;
}

bool shares_with_all(const Instance& in, int block, const std::vector<int>& others) {
  return std::all_of(others.begin(), others.end(),
                     [&](int b) { return share_a_device(in.devices_of(block), in.devices_of(b)); });
}

}  // namespace ostinato
