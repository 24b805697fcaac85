// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a tensor takes over the links between devices, the fastest links first. Private to bound.h and
// sequence.h.
//
//   GraphLinks links(costs);
//   links.tensor_of(v);
//   Ticks t = links.class_times()[links.classes_from(d)[e]];        // of v's tensor, from d to e
//   Ticks a = links.least(d, GraphLinks::Way::to, by_time, times);  // at d at the earliest

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "search/graph/graph.h"

namespace ostinato::graph {

inline constexpr Ticks kGraphNever = std::numeric_limits<Ticks>::max() / 2;

class GraphLinks {
 public:
  enum class Way { to, from };

  /// O(devices^2 log devices).
  explicit GraphLinks(const GraphCosts& costs);

  /// Sets the tensor of class_times() and least(). O(distinct rates).
  void tensor_of(int vertex);

  /// A number for each pair of devices, and the transfer for each number.
  const int* classes_from(int device) const { return &rate_class_[index(device, 0)]; }  ///< [to]
  const int* classes_to(int device) const { return &class_to_[index(device, 0)]; }      ///< [from]
  const std::vector<Ticks>& class_times() const { return class_time_; }

  /// The least times[e] + (transfer from e to `device`, or from `device` to e) over the devices e other than
  /// it. `by_time` has the devices where times[e] is finite, the least first. From both ends at once, until
  /// what is behind either can only be longer (Fagin, Lotem, Naor, JCSS 2003): O(devices), mostly less.
  Ticks least(int device, Way way, std::span<const int> by_time, const Ticks* times) const;

 private:
  std::size_t index(int a, int b) const { return static_cast<std::size_t>(a) * devices_ + b; }
  void sort_links();

  const GraphCosts& costs_;
  const int devices_;
  std::vector<int> rate_class_, class_to_;  ///< [from][to], [to][from]
  std::vector<std::pair<int, int>> example_;
  std::vector<Ticks> class_time_;
  std::vector<int> links_from_, links_to_;  ///< [device]: other devices, the fastest link first
};

}  // namespace ostinato::graph
