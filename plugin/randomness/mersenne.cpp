// SPDX-License-Identifier: Apache-2.0
#include "plugin/randomness/mersenne.h"

#include <array>
#include <cassert>
#include <cstring>

namespace ostinato {
namespace {

constexpr int kBlock = 624, kFar = 397;

/// Where torch keeps them.
constexpr std::size_t kLeft = 8, kNext = 16, kWords = 24;

class Twister {
 public:
  explicit Twister(std::span<const std::byte> state) {
    assert(state.size() >= kMersenneBytes);
    std::int32_t left = 0;
    std::memcpy(&left, &state[kLeft], sizeof left);
    std::memcpy(&next_, &state[kNext], sizeof next_);
    left_ = static_cast<std::uint64_t>(left);
    for (int i = 0; i < kBlock; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, &state[kWords + 8 * i], sizeof word);
      words_[i] = static_cast<std::uint32_t>(word);
    }
  }

  void write(std::span<std::byte> state) const {
    const auto left = static_cast<std::int32_t>(left_);
    std::memcpy(&state[kLeft], &left, sizeof left);
    std::memcpy(&state[kNext], &next_, sizeof next_);
    for (int i = 0; i < kBlock; ++i) {
      const std::uint64_t word = words_[i];
      std::memcpy(&state[kWords + 8 * i], &word, sizeof word);
    }
  }

  /// torch makes the next block when the word after the last is drawn: `left_` is then 1.
  void skip(std::uint64_t count) {
    while (count >= left_) {
      count -= left_;
      make_block();
      left_ = kBlock;
      next_ = 1;
    }
    left_ -= count;
    next_ += count;
  }

  std::uint64_t left() const { return left_; }
  friend bool operator==(const Twister&, const Twister&) = default;

 private:
  static std::uint32_t twisted(std::uint32_t a, std::uint32_t b) {
    const std::uint32_t mixed = (a & 0x80000000U) | (b & 0x7fffffffU);
    return (mixed >> 1) ^ ((0U - (b & 1U)) & 0x9908b0dfU);
  }

  /// No turn of a loop needs what the last few have written, so each is vectorized.
  void make_block() {
    for (int i = 0; i < kBlock - kFar; ++i) words_[i] = words_[i + kFar] ^ twisted(words_[i], words_[i + 1]);
    for (int i = kBlock - kFar; i < kBlock - 1; ++i)
      words_[i] = words_[i + kFar - kBlock] ^ twisted(words_[i], words_[i + 1]);
    words_[kBlock - 1] = words_[kFar - 1] ^ twisted(words_[kBlock - 1], words_[0]);
  }

  std::uint64_t left_ = 1;  ///< 1 to kBlock: the words of the block that were not drawn, and one
  std::uint64_t next_ = 0;  ///< place of the next word
  std::array<std::uint32_t, kBlock> words_{};
};

}  // namespace

void skip_words(std::span<std::byte> state, std::uint64_t count) {
  Twister twister(state);
  twister.skip(count);
  twister.write(state);
}

std::optional<std::uint64_t> words_between(std::span<const std::byte> before,
                                           std::span<const std::byte> after, std::uint64_t most) {
  Twister now(before);
  const Twister then(after);
  if (now == then) return 0;
  std::uint64_t count = (now.left() + kBlock - then.left()) % kBlock;
  now.skip(count);
  while (now != then) {
    if (count >= most) return std::nullopt;
    count += kBlock;
    now.skip(kBlock);
  }
  return count;
}

}  // namespace ostinato
