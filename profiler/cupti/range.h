// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a stretch of the program is: which operator, of which layer, forward or backward, of which
// micro-batch. CUPTI carries it as a 64-bit external id from the launch to the record, so nothing is looked
// up or allocated on the way.
//
//   std::uint64_t id = encode({.operator_id = 12, .layer = 3, .kind = Kind::forward, .micro_batch = 0});
//   decode(id)->layer;  // 3
//
// Layout, from the highest bit: 1 mark (always 1, so that no id is 0) | 24 operator + 1 | 16 layer + 1 | 3
// kind | 20 micro-batch + 1.

#include <cstdint>
#include <optional>

#include "search/placement/placement.h"

namespace ostinato::cupti {

struct Range {
  int operator_id = -1;  ///< the recorder's index of the operator; -1: none (the layer's own time)
  int layer = -1;        ///< index of the layer; -1: outside all
  Kind kind = Kind::other;
  int micro_batch = -1;  ///< -1: none

  friend auto operator<=>(const Range&, const Range&) = default;
};

inline constexpr int kMaxOperator = (1 << 24) - 2;
inline constexpr int kMaxLayer = (1 << 16) - 2;
inline constexpr int kMaxMicroBatch = (1 << 20) - 2;

/// 0 where a field is below -1 or above its maximum; CUPTI's records under it then count as out of range.
std::uint64_t encode(const Range& range);

/// Empty for an id that encode() does not make.
std::optional<Range> decode(std::uint64_t id);

}  // namespace ostinato::cupti
