// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank that trains holds of messages between stages, as the executor does (plugin/executor/traffic.h):
//
//   received        buffers of each size, which stay: one that the running compute reads, and one for what
//                   arrives meanwhile (RankCost::buffers)
//   activations     that were sent, until the gradient that comes back shows that they have arrived
//   gradients       that were sent, until the next message that shows it: one beside those whose
//                   micro-batches have given back more than that
//
// A message of kCopiedAtOnce bytes or less is not counted as sent: between ranks of one host it is copied
// into shared memory, and between hosts it is small.

#include "search/profile/profile.h"

namespace ostinato {

inline constexpr Bytes kCopiedAtOnce = Bytes{64} << 10;

constexpr Bytes held_when_sent(Bytes bytes) { return bytes > kCopiedAtOnce ? bytes : 0; }

/// Of one stage that receives `in` bytes and hands `out` bytes on; as much comes back as gradients.
inline Bytes messages_of(const RankCost& rank, Bytes in, Bytes out) {
  if (rank.buffers == 0) return 0;
  return rank.buffers * (in + (out == in ? 0 : out)) + held_when_sent(in);
}

}  // namespace ostinato
