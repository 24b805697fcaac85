// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random numbers that are the same on every platform: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
//
//   Random random(seed);
//   random.below(6)          // a throw of a die, from 0
//   mixed(mixed(seed) + 3)   // the number of counter 3, wherever it is asked for

#include <cstdint>
#include <utility>
#include <vector>

namespace ostinato {

/// A well mixed number for each counter.
constexpr std::uint64_t mixed(std::uint64_t counter) {
  std::uint64_t z = counter + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return mixed(std::exchange(state_, state_ + 0x9e3779b97f4a7c15u)); }

  /// In [0, bound), bound >= 1; the bias of the remainder is below bound / 2^32.
  int below(int bound) { return static_cast<int>((next() >> 32) * static_cast<std::uint64_t>(bound) >> 32); }

  void shuffle(std::vector<int>& values) {
    for (int i = static_cast<int>(values.size()) - 1; i > 0; --i) std::swap(values[i], values[below(i + 1)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace ostinato
