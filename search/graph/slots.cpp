// SPDX-License-Identifier: Apache-2.0
#include "search/graph/slots.h"

#include <algorithm>

namespace ostinato::graph {

/// The last block that starts at or before `time`, or the first one.
std::size_t GraphSlots::block_of(Ticks time) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), time);
  return after == first_.begin() ? 0 : static_cast<std::size_t>(after - first_.begin()) - 1;
}

Ticks GraphSlots::earliest(Ticks ready, Ticks length) const {
  if (blocks_.empty()) return ready;
  std::size_t block = block_of(ready);
  const Block& slots = blocks_[block];
  auto next = std::upper_bound(slots.begin(), slots.end(), ready,
                               [](Ticks time, const Slot& slot) { return time < slot.start; });
  if (next != slots.begin()) ready = std::max(ready, std::prev(next)->end);
  for (; next != slots.end(); ++next) {
    if (next->start - ready >= length) return ready;
    ready = next->end;
  }
  for (++block; block < blocks_.size() && longest_[block] < length; ++block) {
  }
  if (block == blocks_.size()) return std::max(ready, blocks_.back().back().end);
  // Between the end of a block and the first interval of the next one `ready` may still be in front of it.
  for (ready = std::max(ready, end_before(block)); const Slot& slot : blocks_[block]) {
    if (slot.start - ready >= length) return ready;
    ready = slot.end;
  }
  return earliest(ready, length);  // the gap was in part before `ready`
}

void GraphSlots::measure(std::size_t block) {
  if (block >= blocks_.size()) return;
  first_[block] = blocks_[block].front().start;
  Ticks end = end_before(block), longest = 0;
  for (const Slot& slot : blocks_[block]) {
    longest = std::max(longest, slot.start - end);
    end = slot.end;
  }
  longest_[block] = longest;
}

/// In two halves.
void GraphSlots::cut(std::size_t block) {
  const auto half = static_cast<std::ptrdiff_t>(kMostInBlock / 2),
             at = static_cast<std::ptrdiff_t>(block) + 1;
  Block later(blocks_[block].begin() + half, blocks_[block].end());
  blocks_[block].erase(blocks_[block].begin() + half, blocks_[block].end());
  blocks_.insert(blocks_.begin() + at, std::move(later));
  first_.insert(first_.begin() + at, 0);
  longest_.insert(longest_.begin() + at, 0);
}

/// Makes one of an interval and the next one where they touch.
void GraphSlots::join_next(std::size_t block, std::size_t slot) {
  const std::size_t other = slot + 1 < blocks_[block].size() ? block : block + 1;
  if (other == blocks_.size()) return;
  const std::size_t next = other == block ? slot + 1 : 0;
  if (blocks_[other][next].start != blocks_[block][slot].end) return;
  blocks_[block][slot].end = blocks_[other][next].end;
  blocks_[other].erase(blocks_[other].begin() + static_cast<std::ptrdiff_t>(next));
  if (!blocks_[other].empty()) return;
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(other));
  first_.erase(first_.begin() + static_cast<std::ptrdiff_t>(other));
  longest_.erase(longest_.begin() + static_cast<std::ptrdiff_t>(other));
}

void GraphSlots::add(Ticks start, Ticks length) {
  if (length == 0) return;
  if (blocks_.empty()) {
    blocks_.push_back({{start, start + length}});
    first_.push_back(start);
    longest_.push_back(start);
    return;
  }
  const std::size_t block = block_of(start);
  Block& slots = blocks_[block];
  auto next = std::upper_bound(slots.begin(), slots.end(), start,
                               [](Ticks time, const Slot& slot) { return time < slot.start; });
  if (next != slots.begin() && std::prev(next)->end == start) {
    --next;
    next->end = start + length;
  } else {
    next = slots.insert(next, {start, start + length});
  }
  join_next(block, next - slots.begin());
  const bool full = blocks_[block].size() >= kMostInBlock;
  if (full) cut(block);
  for (std::size_t changed = block; changed <= block + (full ? 2 : 1); ++changed) measure(changed);
}

}  // namespace ostinato::graph
