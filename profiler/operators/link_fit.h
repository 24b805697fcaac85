// SPDX-License-Identifier: Apache-2.0
#pragma once
// latency + bytes / bandwidth, fitted to measured transfers.

#include <vector>

#include "search/profile/profile.h"

namespace ostinato {

struct TransferSample {
  Bytes bytes = 0;
  Nanoseconds time = 0;  ///< one way, > 0
};

/// The link with the least sum of squared relative errors (weights 1 / time^2: else the largest size alone
/// would decide), rounded to whole nanoseconds and bytes per second, never negative, and its largest relative
/// error over the samples. Bandwidth 0 ("the bytes cost nothing") where larger transfers do not take longer.
/// Needs at least one sample.
TransferCost fit_link(int from, int to, const std::vector<TransferSample>& samples);

}  // namespace ostinato
