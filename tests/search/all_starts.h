// SPDX-License-Identifier: Apache-2.0
#pragma once
// The least makespan or latency of a tiny placement over all starts on whole units of time. Blocks of no time
// may take and give back at one instant, whatever their order: what fits follows from the starts alone.
//
//   std::optional<Nanoseconds> least = AllStarts(p, 1, Objective::makespan).least();   // nullopt: none fits

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato::test {

class AllStarts {
 public:
  AllStarts(const Placement& p, int micro_batches, Objective objective)
      : p_(p), n_(micro_batches), objective_(objective), topological_(topological_order(p)) {
    for (std::size_t b = 0; b < p.blocks.size(); ++b) {
      add_time(p.blocks[b].time);
      for (const Dependency& input : p.blocks[b].after) add_time(p.transfer(input, static_cast<int>(b)));
    }
    unit_ = std::max<Nanoseconds>(1, unit_);
    start_.assign(p.blocks.size() * n_, -1);
  }

  /// Work that least() needs at most.
  double size() const {
    double size = 1;
    const auto places = longest_ / unit_ + 1;
    for (std::size_t s = 0; s < start_.size(); ++s) size *= static_cast<double>(places);
    return size;
  }

  std::optional<Nanoseconds> least() {
    place(0);
    return best_;
  }

 private:
  void add_time(Nanoseconds time) {
    unit_ = std::gcd(unit_, time);
    longest_ += n_ * time;
  }
  std::size_t at(int b, int i) const { return static_cast<std::size_t>(i) * p_.blocks.size() + b; }
  Nanoseconds end(int b, int i) const { return start_[at(b, i)] + p_.blocks[b].time; }

  void place(std::size_t k) {
    if (k == start_.size()) return judge();
    const int i = static_cast<int>(k / p_.blocks.size()), b = topological_[k % p_.blocks.size()];
    Nanoseconds first = i > 0 ? start_[at(b, i - 1)] : 0;  // identical jobs: in index order
    for (const Dependency& input : p_.blocks[b].after)
      first = std::max(first, end(input.block, i) + p_.transfer(input, b));
    first = (first + unit_ - 1) / unit_ * unit_;
    for (Nanoseconds t = first; t + p_.blocks[b].time <= longest_; t += unit_) {
      if (objective_ == Objective::makespan && best_ && t + p_.blocks[b].time >= *best_) break;
      start_[at(b, i)] = t;
      if (free(b, i)) place(k + 1);
    }
    start_[at(b, i)] = -1;
  }

  /// Open intervals do not meet, and nothing of no time stands inside of another.
  bool free(int b, int i) const {
    for (int j = 0; j < n_; ++j) {
      for (int c = 0; c < static_cast<int>(p_.blocks.size()); ++c) {
        if (start_[at(c, j)] < 0 || (c == b && j == i)) continue;
        const auto& of_c = p_.blocks[c].devices;
        const bool share = std::any_of(p_.blocks[b].devices.begin(), p_.blocks[b].devices.end(), [&](int d) {
          return std::find(of_c.begin(), of_c.end(), d) != of_c.end();
        });
        if (!share) continue;
        const bool no_time = p_.blocks[b].time == 0 || p_.blocks[c].time == 0;
        const Nanoseconds from = std::max(start_[at(b, i)], start_[at(c, j)]);
        const Nanoseconds to = std::min(end(b, i), end(c, j));
        const bool inside = from == to && from > std::min(start_[at(b, i)], start_[at(c, j)]) &&
                            from < std::max(end(b, i), end(c, j));
        if (from < to || (no_time && inside)) return false;
      }
    }
    return true;
  }

  /// On device d after all changes of instant t.
  __int128 used(int d, Nanoseconds t) const {
    __int128 bytes = p_.devices[d].static_memory;
    for (int i = 0; i < n_; ++i) {
      for (int b = 0; b < static_cast<int>(p_.blocks.size()); ++b) {
        const Block& block = p_.blocks[b];
        if (std::find(block.devices.begin(), block.devices.end(), d) == block.devices.end()) continue;
        if (block.memory > 0 && start_[at(b, i)] <= t) bytes += block.memory;
        if (block.memory < 0 && end(b, i) <= t) bytes += block.memory;
        if (start_[at(b, i)] <= t && t < end(b, i)) bytes += block.workspace;
      }
    }
    return bytes;
  }

  void judge() {
    Nanoseconds value = 0;
    for (int i = 0; i < n_; ++i) {
      Nanoseconds first = longest_, last = 0;
      for (int b = 0; b < static_cast<int>(p_.blocks.size()); ++b) {
        first = std::min(first, start_[at(b, i)]);
        last = std::max(last, end(b, i));
      }
      value = std::max(value, objective_ == Objective::latency ? last - first : last);
    }
    if (best_ && value >= *best_) return;
    for (int d = 0; d < static_cast<int>(p_.devices.size()); ++d) {
      if (p_.devices[d].static_memory > p_.devices[d].memory) return;
      if (p_.devices[d].memory == kUnlimited) continue;
      for (const Nanoseconds t : start_) {
        if (used(d, t) > p_.devices[d].memory) return;
      }
    }
    best_ = value;
  }

  const Placement& p_;
  int n_;
  Objective objective_;
  std::vector<int> topological_;
  Nanoseconds unit_ = 0, longest_ = 0;
  std::vector<Nanoseconds> start_;
  std::optional<Nanoseconds> best_;
};

}  // namespace ostinato::test
