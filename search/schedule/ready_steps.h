// SPDX-License-Identifier: Apache-2.0
#pragma once
// What each device could start now as far as inputs go, in the order in which a rule wants it. A dispatcher
// that looks only at these takes the same time whether a device has four blocks or a million.
//
//   ReadySteps<Nanoseconds> ready(clock, devices);
//   ready.add(d, key, b, clock.count(b));
//   int b = ready.first(d, [&](int b, Key key) { return clock.fits(b); });    // -1: none may start

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "search/schedule/dispatch_clock.h"

namespace ostinato {

/// `Key` orders the steps of a device, the least first; equal keys by block. It is the same for as long as a
/// step is ready.
template <typename Key>
class ReadySteps {
 public:
  ReadySteps(const DispatchClock& clock, int devices) : clock_(clock), heaps_(devices) {}

  /// Step `micro_batch` of the block is ready on d. It leaves by itself once it has started. O(log ready).
  void add(int d, const Key& key, int block, int micro_batch) {
    heaps_[d].push_back({key, block, micro_batch});
    std::push_heap(heaps_[d].begin(), heaps_[d].end(), std::greater<>());
  }

  /// The first block with may(block, key) for its next step; else -1. O(log ready) for each looked at.
  template <typename May>
  int first(int d, May may) {
    auto& heap = heaps_[d];
    int found = -1;
    passed_.clear();
    while (!heap.empty() && found < 0) {
      const Entry entry = heap.front();
      ++looked_at_;
      if (clock_.count(entry.block) == entry.micro_batch) {
        if (may(entry.block, entry.key)) {
          found = entry.block;
          break;
        }
        passed_.push_back(entry);
      }
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      heap.pop_back();
    }
    for (const Entry& entry : passed_) {
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    return found;
  }

  std::int64_t looked_at() const { return looked_at_; }  ///< steps, by first(): what it cost

 private:
  struct Entry {
    Key key;
    int block;
    int micro_batch;
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };

  const DispatchClock& clock_;
  std::vector<std::vector<Entry>> heaps_;  ///< per device, the least on top
  std::vector<Entry> passed_;              ///< scratch
  std::int64_t looked_at_ = 0;
};

}  // namespace ostinato
