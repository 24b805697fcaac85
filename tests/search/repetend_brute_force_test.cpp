// The repetend against all starts of tiny placements, tried one by one.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "search/repetend/repetend.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::Random;

/// Some blocks with random edges; some take memory that a later block on the same devices gives back.
Placement tiny(Random& random, int blocks) {
  Placement p = test::on_devices(static_cast<int>(random.between(1, 3)));
  const int devices = static_cast<int>(p.devices.size());
  p.link.latency = random.chance(30) ? random.between(1, 3) : 0;
  for (int b = 0; b < blocks; ++b) {
    const int first = static_cast<int>(random.between(0, devices - 1));
    std::vector<int> on = {first};
    if (first + 1 < devices && random.chance(30)) on.push_back(first + 1);
    std::vector<int> after;
    for (int a = 0; a < b; ++a) {
      if (random.chance(a == b - 1 ? 70 : 15)) after.push_back(a);
    }
    test::BlockOptions options{.workspace = random.chance(20) ? 1 : 0, .after = after};
    const int taker = static_cast<int>(random.between(0, std::max(0, b - 1)));
    if (b > 0 && p.blocks[taker].memory == 0 && random.chance(60)) {
      p.blocks[taker].memory = random.between(1, 2);
      options.memory = -p.blocks[taker].memory;
      on = p.blocks[taker].devices;
      if (std::find(after.begin(), after.end(), taker) == after.end()) options.after.push_back(taker);
    }
    test::add(p, fmt::format("b{}", b), on, random.between(1, 3), options);
  }
  for (Device& device : p.devices) {
    device.static_memory = random.between(0, 2);
    if (random.chance(60)) device.memory = device.static_memory + random.between(2, 4);
  }
  return p;
}

struct Peaks {
  Bytes largest;
  Bytes total;
  friend auto operator<=>(const Peaks&, const Peaks&) = default;
};

/// All starts of `unroll` micro-batches that can be repeated with one period.
class AllStarts {
 public:
  AllStarts(const Placement& p, int unroll, Nanoseconds period)
      : p_(p), unroll_(unroll), period_(period), slack_(2 * period) {
    for (const Block& b : p.blocks) slack_ += b.time + p.link.latency;
  }

  /// The least memory of any that fits; absent where none does.
  std::optional<Peaks> best() {
    place();
    return best_;
  }

 private:
  static constexpr int kBefore = 40;  ///< repetitions before the one that is looked at

  const Block& block(std::size_t item) const { return p_.blocks[item % p_.blocks.size()]; }

  /// Every phase, and as many periods more than it must as a longer path next to it may take.
  void place() {
    const std::size_t item = start_.size();
    if (item == p_.blocks.size() * static_cast<std::size_t>(unroll_)) return judge();
    const std::size_t first = item - item % p_.blocks.size();
    Nanoseconds ready = -slack_;
    for (const Dependency& input : block(item).after) {
      const auto from = first + static_cast<std::size_t>(input.block);
      ready = std::max(ready,
                       start_[from] + block(from).time + p_.transfer(input, static_cast<int>(item - first)));
    }
    if (item == 0) ready = 0;
    Nanoseconds most = item == 0 ? 1 : ready + (block(item).after.empty() ? 2 : 1) * slack_;
    if (first > 0) {
      ready = std::max(ready, start_[item - p_.blocks.size()] + block(item).time);
      most = std::max(most, start_[item - p_.blocks.size()] + period_);
    }
    for (Nanoseconds at = ready; at < most; ++at) {
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
      if (share && (later < block(x).time || later + block(y).time > period_)) return false;
    }
    return true;
  }

  Bytes held(std::size_t d, Nanoseconds now) const {
    Bytes bytes = 0;
    for (std::size_t y = 0; y < start_.size(); ++y) {
      if (std::find(block(y).devices.begin(), block(y).devices.end(), d) == block(y).devices.end()) continue;
      for (int repetition = -kBefore; repetition <= kBefore; ++repetition) {
        const Nanoseconds from = start_[y] + repetition * period_;
        const Nanoseconds end = from + block(y).time;
        if ((block(y).memory > 0 ? from : end) <= now) bytes += block(y).memory;
        if (from <= now && now < end) bytes += block(y).workspace;
      }
    }
    return bytes;
  }

  void judge() {
    Peaks peaks{0, 0};
    for (std::size_t d = 0; d < p_.devices.size(); ++d) {
      Bytes peak = 0;
      for (std::size_t x = 0; x < start_.size(); ++x) peak = std::max(peak, held(d, start_[x]));
      peak += p_.devices[d].static_memory;
      if (peak > p_.devices[d].memory) return;
      peaks.largest = std::max(peaks.largest, peak);
      peaks.total += peak;
    }
    if (!best_ || peaks < *best_) best_ = peaks;
  }

  const Placement& p_;
  int unroll_;
  Nanoseconds period_;
  Nanoseconds slack_;
  std::vector<Nanoseconds> start_;
  std::optional<Peaks> best_;
};

Peaks peaks_of(const Placement& p, const Repetend& r) {
  const Instance in(p);
  Peaks peaks{0, 0};
  const std::vector<Bytes> held = held_by(in, r);
  for (std::size_t d = 0; d < held.size(); ++d) {
    const Bytes peak = held[d] + p.devices[d].static_memory;
    peaks.largest = std::max(peaks.largest, peak);
    peaks.total += peak;
  }
  return peaks;
}

void expect_least(const Placement& p, int unroll) {
  const Instance in(p);
  const Bounds bounds(in);
  const Repetend found = find_repetend(in, bounds, unroll, {});
  if (found.period == 0) {  // so does one block after another
    EXPECT_FALSE(AllStarts(p, 1, 40).best());
    return;
  }
  const Repetend least = with_least_memory(in, found, {});
  EXPECT_TRUE(least.period_proved && least.memory_proved);
  EXPECT_EQ(least.period, found.period);
  for (Nanoseconds period = unroll * in.heaviest_load(); period < found.period; ++period) {
    EXPECT_FALSE(AllStarts(p, unroll, period).best()) << "a period of " << period;
  }
  const std::optional<Peaks> best = AllStarts(p, unroll, found.period).best();
  ASSERT_TRUE(best) << "no period of " << found.period;
  EXPECT_EQ(peaks_of(p, least).largest, best->largest);
  EXPECT_EQ(peaks_of(p, least).total, best->total);
}

TEST(RepetendBruteForce, LeastPeriodAndMemoryOfOneMicroBatch) {
  Random random(11);
  for (int i = 0; i < 240; ++i) {
    SCOPED_TRACE(i);
    expect_least(tiny(random, static_cast<int>(random.between(2, 4))), 1);
  }
}

TEST(RepetendBruteForce, LeastPeriodAndMemoryOfTwoMicroBatches) {
  Random random(12);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    expect_least(tiny(random, static_cast<int>(random.between(2, 3))), 2);
  }
}

}  // namespace
}  // namespace ostinato
