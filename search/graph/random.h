#pragma once
// Random numbers that are the same on every platform: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace ostinato {

class GraphRandom {
 public:
  explicit GraphRandom(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// In [0, bound), bound >= 1; the bias of the remainder is below bound / 2^32.
  int below(int bound) { return static_cast<int>((next() >> 32) * static_cast<std::uint64_t>(bound) >> 32); }

  void shuffle(std::vector<int>& values) {
    for (int i = static_cast<int>(values.size()) - 1; i > 0; --i) std::swap(values[i], values[below(i + 1)]);
  }

 private:
  std::uint64_t state_;
};

/// 0 .. count - 1, shuffled by `seed`; seed 0: as they are. For an order that a text leaves open.
inline std::vector<int> open_order(int count, std::uint64_t seed) {
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (seed != 0) GraphRandom(seed).shuffle(order);
  return order;
}

}  // namespace ostinato
