// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lanes: what a device does beside its computing, at the same time, such as exchanging tokens over its
// network card or copying to its host.
//
//   add_lane(placement, 0, "network");          // devices[1], say: a lane of device 0
//   placement.blocks[b].devices = {1};          // the exchange, beside what device 0 computes
//   link_lanes(placement);                      // when all lanes and links are there
//
// Three things are known of a lane, which is a device: it runs its own blocks, one at a time; it is where its
// device is, so what goes from one to the other takes no time; and it has no memory. Its blocks take and give
// none, unless they hold the device, too, which then counts it: what an exchange holds is counted by blocks
// that compute, from the start of one before it to the end of one behind it. So the device has one account,
// which its own blocks alone change, and everything that is true of devices is true of lanes: schedules,
// bounds, proofs.
//
// Not modelled: that a collective slows down what computes beside it. Measured times of overlapped runs have
// it in them.

#include <string>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// In a list of lanes, the device itself.
inline constexpr const char* kComputing = "compute";

/// Adds a lane behind all devices; its index. O(1).
int add_lane(Placement& placement, int device, const std::string& lane);

/// The index of a device's lane, of the device itself for kComputing; -1: it has none of that name.
/// O(devices).
int find_lane(const Placement& placement, int device, const std::string& lane);

/// Links to and from lanes as their devices have them. O(links * lanes of a device + lanes).
void link_lanes(Placement& placement);

/// Devices without their lanes: ranks of a training.
int count_without_lanes(const Placement& placement);

/// The device that a device or lane belongs to.
int device_of(const Placement& placement, int lane);

/// Whether the block runs on a lane, and no device computes it.
bool runs_on_lane(const Placement& placement, const Block& block);

/// Why a block must not take or give memory, nor work in any: it is on a lane without the lane's device.
/// "" where it may.
std::string no_memory_for(const Placement& placement, const Block& block);

/// All devices, each followed by its lanes: the order in which people look for them.
std::vector<int> with_lanes_beside(const Placement& placement);

/// The place of each device and lane in that order.
std::vector<int> rows_of(const Placement& placement);

}  // namespace ostinato
