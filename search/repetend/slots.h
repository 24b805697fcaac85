// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which phases of a period the devices are still free at (a modulo reservation table).
//
//   Slots slots(in, 1, period);
//   if (auto start = slots.earliest(b, ready)) slots.take(b, *start % period);

#include <optional>
#include <vector>

#include "search/placement/instance.h"

namespace ostinato {

class Slots {
 public:
  /// All devices free, with `unroll` copies of every block to come.
  Slots(const Instance& instance, int unroll, Nanoseconds period);

  /// The earliest start of b from `ready` on at which its devices are free and the blocks to come still find
  /// room in the gaps (first fit, longest first); nullopt if there is none. O(k^3 * devices of b) for k
  /// blocks a device.
  std::optional<Nanoseconds> earliest(int b, Nanoseconds ready) const;
  void take(int b, Nanoseconds phase);

 private:
  struct Interval {
    Nanoseconds start;  ///< in [0, period)
    Nanoseconds length;
  };
  struct Device {
    std::vector<Interval> busy;        ///< by start
    std::vector<Nanoseconds> to_come;  ///< times, longest first
  };
  std::vector<Interval> gaps(const Device& device) const;
  bool fits(const Device& device, Nanoseconds phase, Nanoseconds time) const;
  Nanoseconds later(Nanoseconds from, Nanoseconds phase) const;

  const Instance& in_;
  Nanoseconds period_;
  std::vector<Device> devices_;
};

}  // namespace ostinato
