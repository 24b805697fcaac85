#pragma once
// Lower bounds that the checker computes on its own, from the placement alone. docs/bounds.md states and
// proves each; the names there (M1, P2, ...) are the names here.
//
//   Bounds bounds(placement);
//   Bound b = bounds.makespan(32, plan.lower_bound.makespan);   // stops as soon as the claim is reached
//   b.value >= claim ? pass(b.why) : fail(...)
//
// All sums are in 128 bits. Blocks on a device are few (tens), so sets of them are enumerated: O(k^2) of k
// blocks on a device.

#include <string>
#include <vector>

#include "search/checker_schedule.h"

namespace ostinato::checker {

struct Bound {
  Wide value = 0;
  std::string why;  ///< which statement, on which device or block; empty while value is 0
};

class Bounds {
 public:
  /// The placement must have no cycle; it must outlive this.
  explicit Bounds(const Placement& placement);

  /// M1 to M4: no schedule of n micro-batches ends earlier. Stops at the first bound that reaches `enough`.
  Bound makespan(int n, Wide enough) const;
  /// P1, P2: nothing that repeats `unroll` micro-batches for ever has a smaller period.
  Bound period(int unroll) const;
  /// S1 to S3.
  Bound span(int n) const;
  /// L1.
  Bound latency() const;

  static constexpr Wide kUnbounded = static_cast<Wide>(1) << 126;

 private:
  struct Edge {
    int block;
    Wide transfer;
  };
  /// Memory-time that one micro-batch needs on a device (M4), and what surely lies before and after it.
  struct Area {
    bool usable = false;
    Wide area = 0;
    Wide before = 0;
    Wide after = 0;
  };
  /// A set of blocks of one device with a time before its first and after its last.
  struct Member {
    int block;
    Wide before;
    Wide after;
  };

  int blocks() const { return static_cast<int>(placement_.blocks.size()); }
  const Block& block(int b) const { return placement_.blocks[static_cast<std::size_t>(b)]; }

  void one_micro_batch(Bound& best) const;                      // M1
  void one_device(int n, Bound& best) const;                    // M2
  void several_devices(int n, Wide enough, Bound& best) const;  // M3
  void memory(int n, bool borders, Bound& best) const;          // M4, S3

  void several_devices_on(int device, int n, Bound& best) const;
  Wide idle_before(const std::vector<int>& set, const std::vector<int>& first, bool backwards) const;
  std::vector<char> blocking(const std::vector<int>& set, const std::vector<int>& first) const;
  Area area_of(int device) const;

  std::vector<Wide> distances_from(int block) const;
  std::vector<Wide> from_device(int device, bool backwards) const;
  Wide largest_set(std::vector<Member> members, int n) const;

  const Placement& placement_;
  std::vector<int> order_;  ///< every block after its inputs
  std::vector<std::vector<Edge>> inputs_;
  std::vector<std::vector<Edge>> outputs_;
  std::vector<std::vector<int>> on_device_;
  std::vector<Wide> head_;                   ///< longest path before the start of each block
  std::vector<Wide> tail_;                   ///< longest path after the end of each block
  std::vector<int> device_set_;              ///< class of each block: same class, same devices
  std::vector<std::vector<char>> conflict_;  ///< of two classes: they share a device
};

}  // namespace ostinato::checker
