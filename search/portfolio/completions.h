// SPDX-License-Identifier: Apache-2.0
#pragma once
// A repetend as schedules of all micro-batches.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/portfolio/hunt.h"
#include "search/schedule/justify.h"

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

/// As it is, and both ends rescheduled, with a beam of this width and of half of it, of which the narrower
/// may lead to the shorter; each may spend this much work. Those of beams are justified, too.
Found completed(Hunt& hunt, const Repetend& repetend, int width, std::int64_t work);

/// What justification makes of a sequence in as many passes as usual, or this many; absent where that is
/// none.
std::optional<Justified> justified(Hunt& hunt, const std::vector<int>& sequence, bool patient,
                                   std::int64_t most_passes);

/// A beam does not see what it leaves free behind it: adds what justification makes of each sequence, in both
/// ways.
void add_justified(Hunt& hunt, Found& found);

}  // namespace ostinato
