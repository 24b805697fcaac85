// SPDX-License-Identifier: Apache-2.0
#pragma once
// A placement as the search walks it: flat arrays, transfers computed once, heads and tails.
//
//   const Instance in(placement);
//   for (const Edge& e : in.followers(b)) earliest[e.block] = end + e.transfer;
//
// Micro-batches are identical jobs, so a search may let every block run its micro-batches in index order:
// sort the starts of each block of any schedule, give the i-th to micro-batch i. Every dependency holds (the
// i-th smallest end of an input is no later than the i-th smallest start of what waits for it), devices and
// memory see the same intervals, and no figure grows (for the latency: matching sorted sequences minimises
// the largest difference). So a schedule is one word over blocks per device, and a partial schedule is one
// count per block.

#include <span>
#include <vector>

#include "search/numbers/lists.h"
#include "search/placement/placement.h"

namespace ostinato {

/// The other end of a dependency, with the time from the end of the input to the earliest start of what
/// waits.
struct Edge {
  int block;
  Nanoseconds transfer;
};

class Instance {
 public:
  /// The placement must be acyclic and outlive the instance. With `longest` no transfer from a block takes
  /// longer than it says.
  explicit Instance(const Placement& placement, const std::vector<Nanoseconds>& longest = {});

  /// The same problem with time running backwards: edges turned round, taking and giving back exchanged. A
  /// schedule of one is a schedule of the other (start = makespan - end, micro-batch i = N - 1 - i), so a
  /// cool-down is a warm-up. Only where every micro-batch gives back what it takes does the memory mean the
  /// same.
  Instance reversed() const;

  const Placement& placement() const { return *placement_; }
  bool mirrored() const { return mirrored_; }  ///< time runs backwards: made by reversed()
  int blocks() const { return static_cast<int>(time_.size()); }
  std::int64_t size() const {
    return static_cast<std::int64_t>(time_.size() + inputs_.values().size());
  }  ///< blocks, edges
  int devices() const { return static_cast<int>(room_.size()); }
  Nanoseconds time(int b) const { return time_[b]; }
  const std::vector<Nanoseconds>& times() const { return time_; }  ///< [block]
  Bytes memory(int b) const { return memory_[b]; }
  /// 0 for a block that takes no time: it runs at no instant.
  Bytes workspace(int b) const { return workspace_[b]; }
  std::span<const int> devices_of(int b) const { return devices_of_[b]; }
  std::span<const int> blocks_on(int d) const { return blocks_on_[d]; }
  std::span<const Edge> inputs(int b) const { return inputs_[b]; }
  std::span<const Edge> followers(int b) const { return followers_[b]; }
  std::span<const int> topological() const { return topological_; }
  int rank(int b) const { return rank_[b]; }  ///< place of b in topological()

  /// Capacity beyond static memory; kUnlimited where the device is not limited.
  Bytes room(int d) const { return room_[d]; }
  bool limited(int d) const { return room_[d] != kUnlimited; }
  bool any_limited() const { return any_limited_; }

  Nanoseconds load(int d) const { return load_[d]; }       ///< work of one micro-batch on d
  Nanoseconds heaviest_load() const { return heaviest_; }  ///< of all devices
  Nanoseconds head(int b) const { return head_[b]; }       ///< longest path to the start of b
  Nanoseconds tail(int b) const { return tail_[b]; }       ///< longest path from the end of b

 private:
  void order_and_measure();

  const Placement* placement_;
  std::vector<Nanoseconds> time_, load_, head_, tail_;
  std::vector<Bytes> memory_, workspace_, room_;
  Lists<int> devices_of_, blocks_on_;
  Lists<Edge> inputs_, followers_;
  std::vector<int> topological_, rank_;
  Nanoseconds heaviest_ = 0;
  bool any_limited_ = false;
  bool mirrored_ = false;
};

}  // namespace ostinato
