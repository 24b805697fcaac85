// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of torch's generator on a CPU, as torch.get_rng_state() has it: moved on without making numbers.
//
//   skip_words(state, 98'304);                            // as if this many 32-bit words had been drawn
//   words_between(before, state, 1 << 24);                // 98304
//
// Every number that a layer draws takes one or two words of a Mersenne Twister with blocks of 624. Drawing
// makes each word from the block's; skipping makes the blocks only, some thirty times as fast. Source:
// Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace ostinato {

/// Bytes of a state before the second of a pair of normal numbers, which is kept behind it: seed, words left
/// of the block, whether it was seeded, place of the next word, and the block as 624 numbers of 8 bytes.
inline constexpr std::size_t kMersenneBytes = 24 + 8 * 624;

/// `state`: at least kMersenneBytes. O(count).
void skip_words(std::span<std::byte> state, std::uint64_t count);

/// How many words lead from one state to the other; absent: not up to `most`. Both have at least
/// kMersenneBytes. O(most).
std::optional<std::uint64_t> words_between(std::span<const std::byte> before,
                                           std::span<const std::byte> after, std::uint64_t most);

}  // namespace ostinato
