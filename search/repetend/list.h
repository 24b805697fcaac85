// SPDX-License-Identifier: Apache-2.0
#pragma once
// A repetend by list scheduling into one period: quick, at any number of devices, and proves nothing.
//
// Blocks are placed in the order in which they can start. Each takes the earliest start whose phase (start
// modulo period) is free on its devices and leaves gaps that still hold all blocks that are to come there.
// With blocks on one device only, no recurrence stands in the way: any packing of the phases becomes a
// repetend, because a block can always wait for another repetition. Blocks on several devices come first,
// side by side, so that they part no device into gaps that nothing fits into; several of their orders are
// tried, each forwards and backwards in time. Source: Rau (1994), iterative modulo scheduling, without its
// evictions.
//
//   if (auto r = list_repetend(in, 1, bounds.period(1))) use(r->start);

#include <optional>

#include "search/placement/instance.h"
#include "search/repetend/repetend.h"

namespace ostinato {

/// From 0 to by - 1.
inline Nanoseconds modulo(Nanoseconds value, Nanoseconds by) { return (value % by + by) % by; }

/// Numbers the micro-batches so that every block runs them in order: of the infinite sequence of starts of a
/// block, sorted, those with the same sum (instance.h has the argument). The first start becomes 0.
void number_in_order(const Instance& instance, Repetend& repetend);

/// What one list schedule costs: the cube of the items of a device, summed over the devices. O(devices).
double list_work(const Instance& instance, int unroll);
/// Whether list_repetend() takes no longer than a second: of a device with thousands of blocks there are too
/// many ways to leave gaps. O(devices).
bool listable(const Instance& instance, int unroll);

/// The one that holds least (with_least_memory) of those found that fit the memory; nullopt if none does.
/// O(orders * (items * k^2 + devices)), k items a device; at most kListedItems items in all orders, and
/// as many again of several micro-batches.
/// With a seed above 0 some items wait, and blocks on several devices take one order: other ones are found.
std::optional<Repetend> list_repetend(const Instance& instance, int unroll, Nanoseconds period,
                                      std::uint64_t seed = 0);

inline constexpr std::int64_t kListedItems = 100'000;

}  // namespace ostinato
