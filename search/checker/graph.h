// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of a placement as a graph, for the checker's bounds: edges with their transfers, longest paths.
// Names as in docs/bounds.md, "Notation".

#include <vector>

#include "search/checker/timetable.h"

namespace ostinato::checker {

class Graph {
 public:
  struct Edge {
    int block;  ///< at the other end
    Wide transfer;
  };

  /// A longest path where there is none.
  static constexpr Wide kNone = -1;

  /// The placement must have no cycle; it must outlive this. With `longest` no transfer from a block takes
  /// longer than it says. O(edges * pairs of their devices + blocks * log(blocks)).
  explicit Graph(const Placement& placement, const std::vector<Wide>& longest = {});

  const Placement& placement() const { return placement_; }
  int blocks() const { return static_cast<int>(placement_.blocks.size()); }
  int devices() const { return static_cast<int>(placement_.devices.size()); }
  Wide size() const { return size_; }  ///< blocks + edges
  const Block& block(int b) const { return placement_.blocks[b]; }
  const std::vector<int>& on_device(int d) const { return on_device_[d]; }

  /// Of a block that takes time; one that takes none runs at no instant, and its workspace is never in use.
  Bytes workspace(int b) const { return block(b).time == 0 ? 0 : block(b).workspace; }

  Wide head(int b) const { return head_[b]; }
  Wide tail(int b) const { return tail_[b]; }
  bool conflict(int a, int b) const { return conflict_[device_set(a)][device_set(b)] != 0; }
  /// Blocks with the same number run on the same devices.
  int device_set(int b) const { return device_set_[b]; }

  /// Calls visit(b, edges) for every block after all that `edges` lead to: its inputs, or backwards its
  /// followers.
  template <typename Visit>
  void walk(bool backwards, Visit visit) const {
    if (backwards) {
      for (auto b = order_.rbegin(); b != order_.rend(); ++b) visit(*b, outputs_[*b]);
    } else {
      for (const int b : order_) visit(b, inputs_[b]);
    }
  }

  /// dist: from the start of `block` to the end of every block. O(blocks + edges).
  std::vector<Wide> distances_from(int block) const;

  /// from(x), or backwards to(x), of section S for a device. O(blocks + edges).
  std::vector<Wide> from_device(int device, bool backwards) const;

 private:
  void connect(const std::vector<Wide>& longest);
  void order_blocks();
  void measure_paths();
  void compare_device_sets();

  const Placement& placement_;
  Wide size_ = 0;
  std::vector<int> order_;  ///< every block after its inputs; of several the smallest index first
  std::vector<std::vector<Edge>> inputs_;
  std::vector<std::vector<Edge>> outputs_;
  std::vector<std::vector<int>> on_device_;
  std::vector<Wide> head_;
  std::vector<Wide> tail_;
  std::vector<int> device_set_;
  std::vector<std::vector<char>> conflict_;  ///< of two device sets: they have a device in common
};

}  // namespace ostinato::checker
