// SPDX-License-Identifier: Apache-2.0
#pragma once
// A repetend as schedules of all micro-batches.

#include <cstdint>
#include <string>
#include <vector>

#include "search/portfolio/hunt.h"

namespace ostinato {

/// What a part of a round found: sequences of blocks (the i-th mention is micro-batch i).
struct Found {
  std::vector<std::vector<int>> sequences;
  std::int64_t work = 0;
  bool truncated = false;  ///< a wider search may find more
};

/// "repetend of 2 micro-batches".
std::string method_of(const Repetend& repetend);

/// The repetend from the first micro-batch to the last.
std::vector<int> repeated(const Hunt& hunt, const Repetend& repetend);

/// Both ends rescheduled, without a beam and with one of this width; each may spend this much work.
Found completed(Hunt& hunt, const Repetend& repetend, int width, std::int64_t work);

}  // namespace ostinato
