// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far a sender of a plan without backwards may be ahead: what the executor holds to, and partitions
// count.
//
//   Bytes waiting = messages_ahead(stage_input, stage_output);

#include "search/placement/placement.h"

namespace ostinato {

/// Messages from one rank to another that may be on their way at once where no message comes back that would
/// say which of them have arrived: one that waits at its receiver, and one more so that neither side stands
/// still where times vary.
inline constexpr int kSendsAhead = 2;

/// What waits at both ends of a stage that reads and hands on this many bytes.
constexpr Bytes messages_ahead(Bytes input, Bytes output) { return input + kSendsAhead * output; }

}  // namespace ostinato
