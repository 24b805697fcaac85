// SPDX-License-Identifier: Apache-2.0
#include "search/partition/packing.h"

#include <algorithm>
#include <functional>

namespace ostinato::partition {

Packing::Packing(std::vector<std::int64_t> items) {
  std::sort(items.begin(), items.end(), std::greater<>());
  for (const std::int64_t item : items) {
    if (item == 0) continue;  // fits anywhere
    if (sizes_.empty() || sizes_.back() != item) {
      sizes_.push_back(item);
      counts_.push_back(0);
    }
    ++counts_.back();
  }
}

Fits Packing::fits(std::vector<std::int64_t> rooms, long& work) {
  for (std::int64_t& room : rooms) room = std::max<std::int64_t>(room, 0);
  rooms_ = std::move(rooms);
  rest_.assign(rooms_.size() + 1, 0);
  for (std::size_t b = rooms_.size(); b-- > 0;) rest_[b] = rest_[b + 1] + rooms_[b];
  left_ = counts_;
  items_left_ = 0;
  for (std::size_t k = 0; k < sizes_.size(); ++k) items_left_ += sizes_[k] * counts_[k];
  failed_.clear();
  if (too_large_for_one()) return Fits::no;
  work_ = work;
  const bool filled = fill(0);
  work = std::max(work_, 0L);
  return !filled ? Fits::no : work_ < 0 ? Fits::unknown : Fits::yes;
}

bool Packing::too_large_for_one() const {
  std::vector<std::int64_t> sums = {0};  // of the n largest
  for (std::size_t k = 0; k < sizes_.size(); ++k)
    for (int i = 0; i < counts_[k]; ++i) sums.push_back(sums.back() + sizes_[k]);
  if (rooms_.empty()) return sums.size() > 1;
  for (std::size_t n = 1; n < sums.size(); ++n) {
    const std::size_t together = (n + rooms_.size() - 1) / rooms_.size();
    if (sums[n] - sums[n - together] > rooms_.front()) return true;
  }
  return false;
}

/// True: it may be done, or the work is spent.
bool Packing::fill(std::size_t bin) {
  if (items_left_ == 0) return true;
  if (bin == rooms_.size() || items_left_ > rest_[bin]) return false;
  for (std::size_t k = 0; k < sizes_.size(); ++k) {
    if (left_[k] == 0) continue;
    if (sizes_[k] > rooms_[bin]) return false;  // and no later one is larger
    break;
  }
  if (failed_.contains({bin, left_})) return false;
  if (choose(bin, 0, rooms_[bin])) return true;
  failed_.insert({bin, left_});
  return false;
}

bool Packing::choose(std::size_t bin, std::size_t kind, std::int64_t room) {
  if (--work_ < 0) return true;
  if (kind == sizes_.size()) return takes_no_more(room) && fill(bin + 1);
  const std::int64_t size = sizes_[kind];
  const int before = left_[kind];
  const std::int64_t sum_before = items_left_;
  bool done = false;
  for (std::int64_t take = std::min<std::int64_t>(before, room / size); take >= 0 && !done; --take) {
    left_[kind] = before - static_cast<int>(take);
    items_left_ = sum_before - take * size;
    done = choose(bin, kind + 1, room - take * size);
  }
  left_[kind] = before;
  items_left_ = sum_before;
  return done;
}

bool Packing::takes_no_more(std::int64_t room) const {
  for (std::size_t k = 0; k < sizes_.size(); ++k)
    if (left_[k] > 0 && sizes_[k] <= room) return false;
  return true;
}

}  // namespace ostinato::partition
