// SPDX-License-Identifier: Apache-2.0
#pragma once
// The least memory of a tiny repetend over all starts, tried one by one. Blocks of no time may take and give
// back at one instant, whatever their order.
//
//   std::optional<Peaks> least = AllRepetends(p, 1, 7).best();     // of period 7; nullopt: there is none
//   least = AllRepetends(p, 1, 7000, 1000).best();                 // starts on whole thousands only

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato::test {

struct Peaks {
  Bytes largest;
  Bytes total;
  friend auto operator<=>(const Peaks&, const Peaks&) = default;
};

/// All starts of `unroll` micro-batches that can be repeated with one period.
class AllRepetends {
 public:
  /// Starts on whole multiples of `unit`.
  AllRepetends(const Placement& p, int unroll, Nanoseconds period, Nanoseconds unit = 1)
      : p_(p), unroll_(unroll), period_(period), unit_(unit), slack_(2 * period) {
    for (const Block& b : p.blocks) slack_ += b.time + (b.after.empty() ? 0 : p.link.latency);
    before_ = 2 * slack_ * static_cast<Nanoseconds>(p.blocks.size()) * unroll / period + 1;
  }

  /// Work that best() needs at most.
  double size() const {
    double size = static_cast<double>(before_);
    for (std::size_t item = 1; item < p_.blocks.size() * unroll_; ++item) {
      const auto places = (block(item).after.empty() ? 2 : 1) * slack_ / unit_ + 1;
      size *= static_cast<double>(places);
    }
    return size;
  }

  /// Work that peaks_of() needs.
  double repetitions() const { return static_cast<double>(before_); }

  /// What these starts hold, by the items copy * blocks + block.
  Peaks peaks_of(const std::vector<Nanoseconds>& start) {
    start_ = start;
    return peaks();
  }

  /// The least memory of any that fits; absent where none does.
  std::optional<Peaks> best() {
    place();
    return best_;
  }

 private:
  const Block& block(std::size_t item) const { return p_.blocks[item % p_.blocks.size()]; }

  /// Every phase, and as many periods more than it must as a longer path next to it may take.
  void place() {
    const std::size_t item = start_.size();
    if (item == p_.blocks.size() * unroll_) return judge();
    const std::size_t first = item - item % p_.blocks.size();
    Nanoseconds ready = -slack_;
    for (const Dependency& input : block(item).after) {
      const auto from = first + input.block;
      ready = std::max(ready,
                       start_[from] + block(from).time + p_.transfer(input, static_cast<int>(item - first)));
    }
    if (item == 0) ready = 0;
    Nanoseconds most = item == 0 ? 1 : ready + (block(item).after.empty() ? 2 : 1) * slack_;
    if (first > 0) {
      ready = std::max(ready, start_[item - p_.blocks.size()] + block(item).time);
      most = std::max(most, start_[item - p_.blocks.size()] + period_);
    }
    ready += ((-ready) % unit_ + unit_) % unit_;
    for (Nanoseconds at = ready; at < most; at += unit_) {
      start_.push_back(at);
      if (meets_none()) place();
      start_.pop_back();
    }
  }

  bool meets_none() const {
    const std::size_t y = start_.size() - 1;
    const std::size_t earliest = y % p_.blocks.size();
    if (start_[y] + block(y).time > start_[earliest] + period_) return false;
    for (std::size_t x = 0; x < y; ++x) {
      const auto& on = block(x).devices;
      const bool share = std::any_of(on.begin(), on.end(), [&](int d) {
        return std::find(block(y).devices.begin(), block(y).devices.end(), d) != block(y).devices.end();
      });
      const Nanoseconds later = ((start_[y] - start_[x]) % period_ + period_) % period_;
      const bool inside = block(y).time > 0 || later > 0;  // nothing of no time stands inside of another
      if (share && ((later < block(x).time && inside) || later + block(y).time > period_)) return false;
    }
    return true;
  }

  __int128 held(std::size_t d, Nanoseconds now) const {
    __int128 bytes = 0;
    for (std::size_t y = 0; y < start_.size(); ++y) {
      if (std::find(block(y).devices.begin(), block(y).devices.end(), d) == block(y).devices.end()) continue;
      for (Nanoseconds repetition = -before_; repetition <= before_; ++repetition) {
        const Nanoseconds from = start_[y] + repetition * period_;
        const Nanoseconds end = from + block(y).time;
        if ((block(y).memory > 0 ? from : end) <= now) bytes += block(y).memory;
        if (from <= now && now < end) bytes += block(y).workspace;
      }
    }
    return bytes;
  }

  Peaks peaks() const {
    Peaks peaks{0, 0};
    for (std::size_t d = 0; d < p_.devices.size(); ++d) {
      const Bytes peak = of_device(d);
      peaks.largest = std::max(peaks.largest, peak);
      peaks.total += peak;
    }
    return peaks;
  }

  Bytes of_device(std::size_t d) const {
    __int128 peak = 0;
    for (const Nanoseconds start : start_) peak = std::max(peak, held(d, start));
    return static_cast<Bytes>(
        std::min<__int128>(peak + p_.devices[d].static_memory, std::numeric_limits<Bytes>::max()));
  }

  void judge() {
    for (std::size_t d = 0; d < p_.devices.size(); ++d) {
      if (of_device(d) > p_.devices[d].memory) return;
    }
    if (const Peaks own = peaks(); !best_ || own < *best_) best_ = own;
  }

  const Placement& p_;
  int unroll_;
  Nanoseconds period_;
  Nanoseconds unit_;
  Nanoseconds slack_;
  Nanoseconds before_;  ///< repetitions that are looked at on either side of one
  std::vector<Nanoseconds> start_;
  std::optional<Peaks> best_;
};

}  // namespace ostinato::test
