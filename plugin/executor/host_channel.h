// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks of one host pass small messages through its memory; all else goes by another channel.
//
//   auto channel = make_host_channel(make_c10d_channel(group, ranks, at::kCPU));
//
// open() finds out which peers are on this host: each side offers a mailbox (mailbox.h) for what it sends,
// over the other channel, and the peer says whether it could open it. A pair that cannot, for whatever reason
// (another host, a separate container, an old kernel), goes on as if this channel were not there. So do
// tensors that do not live on the CPU, and messages above the size of a slot, which take as long as their
// copy: both sides know the size, so they agree on the way.
//
// A small message costs two copies and, where its receiver sleeps, one system call; no thread stands between,
// as in gloo. A send is over when it was received, as in gloo. Memory: kMailboxBytes for each peer and
// direction. If a peer's process ends, that is an error within 0.1 s.

#include <memory>

#include "plugin/executor/channel.h"

namespace ostinato {

inline constexpr std::int64_t kMailboxBytes = std::int64_t{1} << 20;

/// Where programs change from step to step: there is a slot for every message of a step, whatever its order.
inline constexpr std::int64_t kLargeMailboxBytes = std::int64_t{16} << 20;

/// The largest message that goes through a mailbox where this many are on their way at once.
std::int64_t slot_bytes(int messages, std::int64_t bytes = kMailboxBytes);

/// `bytes`: of each mailbox.
std::unique_ptr<Channel> make_host_channel(std::unique_ptr<Channel> other,
                                           std::int64_t bytes = kMailboxBytes);

}  // namespace ostinato
