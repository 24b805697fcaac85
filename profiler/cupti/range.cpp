// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/range.h"

namespace ostinato::cupti {
namespace {

constexpr int kMicroBatchBits = 20, kKindBits = 3, kLayerBits = 16, kOperatorBits = 24;
constexpr std::uint64_t kMark = std::uint64_t{1} << 63;
static_assert(1 + kOperatorBits + kLayerBits + kKindBits + kMicroBatchBits == 64);
static_assert(static_cast<int>(Kind::other) < (1 << kKindBits));

bool fits(int value, int max) { return value >= -1 && value <= max; }

std::uint64_t append(std::uint64_t id, int value, int bits) {
  return id << bits | static_cast<std::uint64_t>(value);
}

/// Takes the lowest bits off `id`.
int take(std::uint64_t* id, int bits) {
  const int value = static_cast<int>(*id & ((std::uint64_t{1} << bits) - 1));
  *id >>= bits;
  return value;
}

}  // namespace

std::uint64_t encode(const Range& range) {
  if (!fits(range.operator_id, kMaxOperator) || !fits(range.layer, kMaxLayer) ||
      !fits(range.micro_batch, kMaxMicroBatch)) {
    return 0;
  }
  std::uint64_t id = static_cast<std::uint64_t>(range.operator_id + 1);
  id = append(id, range.layer + 1, kLayerBits);
  id = append(id, static_cast<int>(range.kind), kKindBits);
  id = append(id, range.micro_batch + 1, kMicroBatchBits);
  return id | kMark;
}

std::optional<Range> decode(std::uint64_t id) {
  if ((id & kMark) == 0) return std::nullopt;
  Range range;
  range.micro_batch = take(&id, kMicroBatchBits) - 1;
  const int kind = take(&id, kKindBits);
  if (kind > static_cast<int>(Kind::other)) return std::nullopt;
  range.kind = static_cast<Kind>(kind);
  range.layer = take(&id, kLayerBits) - 1;
  range.operator_id = take(&id, kOperatorBits) - 1;
  return range;
}

}  // namespace ostinato::cupti
