// SPDX-License-Identifier: Apache-2.0
#pragma once
// The least span or latency of a tiny placement over all orders of its steps. A device or micro-batch that
// starts later may have the shorter one, so earliest starts are not enough: for each set of orders the least
// S is sought for which starts exist.
//
//   std::optional<Nanoseconds> least = AllSpans(p, 2).least();     // nullopt: no order fits the memory
//   least = AllSpans(p, 2, Objective::latency).least();

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato::test {

class AllSpans {
 public:
  AllSpans(const Placement& p, int micro_batches, Objective objective = Objective::span)
      : p_(p),
        n_(micro_batches),
        objective_(objective),
        count_(p.blocks.size(), 0),
        orders_(p.devices.size()) {
    for (const Device& device : p.devices) used_.push_back(device.static_memory);
    for (std::size_t b = 0; b < p.blocks.size(); ++b) {
      longest_ += n_ * p.blocks[b].time;
      for (const Dependency& input : p.blocks[b].after)
        longest_ += n_ * p.transfer(input, static_cast<int>(b));
    }
  }

  std::optional<Nanoseconds> least() {
    append(static_cast<int>(p_.blocks.size()) * n_);
    return best_;
  }

 private:
  struct Wait {  ///< `step` starts at least `time` after `from`
    int from;
    int step;
    Nanoseconds time;
  };

  int step(int block, int i) const { return i * static_cast<int>(p_.blocks.size()) + block; }
  Nanoseconds time(int s) const { return p_.blocks[static_cast<std::size_t>(s) % p_.blocks.size()].time; }

  void append(int left) {
    if (left == 0) {
      if (seen_.insert(orders_).second) settle();
      return;
    }
    for (int b = 0; b < static_cast<int>(p_.blocks.size()); ++b) {
      if (count_[b] < n_ && ready(b)) try_block(b, left);
    }
  }

  bool ready(int b) const {
    const Block& block = p_.blocks[b];
    const auto arrived = [&](const Dependency& input) { return count_[input.block] > count_[b]; };
    const auto fits = [&](int d) {
      const Bytes workspace = block.time == 0 ? 0 : block.workspace;
      return used_[d] + std::max<Bytes>(0, block.memory) + workspace <= p_.devices[d].memory;
    };
    return std::all_of(block.after.begin(), block.after.end(), arrived) &&
           std::all_of(block.devices.begin(), block.devices.end(), fits);
  }

  void try_block(int b, int left) {
    for (const int d : p_.blocks[b].devices) {
      used_[d] += p_.blocks[b].memory;
      orders_[d].push_back(step(b, count_[b]));
    }
    ++count_[b];
    append(left - 1);
    --count_[b];
    for (const int d : p_.blocks[b].devices) {
      used_[d] -= p_.blocks[b].memory;
      orders_[d].pop_back();
    }
  }

  /// The least span of these orders.
  void settle() {
    std::vector<Wait> waits;
    for (int i = 0; i < n_; ++i) {
      for (int b = 0; b < static_cast<int>(p_.blocks.size()); ++b) {
        for (const Dependency& input : p_.blocks[b].after) {
          const int from = step(input.block, i);
          waits.push_back({from, step(b, i), time(from) + p_.transfer(input, b)});
        }
      }
    }
    for (const auto& order : orders_) {
      for (std::size_t k = 1; k < order.size(); ++k)
        waits.push_back({order[k - 1], order[k], time(order[k - 1])});
    }
    Nanoseconds low = 0, high = best_.value_or(longest_);
    while (low < high) {
      const Nanoseconds span = (low + high) / 2;
      possible(waits, span) ? high = span : low = span + 1;
    }
    best_ = low;
  }

  /// Whether starts exist with every device's (or micro-batch's) last end at most `span` after its first
  /// start.
  bool possible(std::vector<Wait> waits, Nanoseconds span) const {
    for (const auto& order : orders_) {
      if (objective_ == Objective::span && !order.empty())
        waits.push_back({order.back(), order.front(), time(order.back()) - span});
    }
    for (int s = 0; objective_ == Objective::latency && s < n_ * step(0, 1); ++s) {
      for (int b = 0; b < step(0, 1); ++b) waits.push_back({s, step(b, s / step(0, 1)), time(s) - span});
    }
    std::vector<Nanoseconds> start(p_.blocks.size() * n_, 0);
    for (std::size_t round = 0; round <= start.size(); ++round) {
      bool changed = false;
      for (const Wait& w : waits) {
        if (start[w.from] + w.time <= start[w.step]) continue;
        start[w.step] = start[w.from] + w.time;
        changed = true;
      }
      if (!changed) return true;
    }
    return false;  // they wait for each other in a circle
  }

  const Placement& p_;
  int n_;
  Objective objective_;
  Nanoseconds longest_ = 0;  ///< all steps one after another
  std::vector<int> count_;
  std::vector<Bytes> used_;
  std::vector<std::vector<int>> orders_;
  std::set<std::vector<std::vector<int>>> seen_;
  std::optional<Nanoseconds> best_;
};

}  // namespace ostinato::test
