// SPDX-License-Identifier: Apache-2.0
#pragma once
// When can a vertex start on a device, behind its inputs? Private to bound.h.
//
// Some inputs run on the same device in turn, the rest arrive over links: the split that is ready first
// (docs/bounds.md, G1; Colin and Chretienne, Operations Research 39, 1991, for one rate).
//
//   GraphJoin join;
//   join.clear();
//   join.add({.remote = 7, .release = 2, .duration = 1});
//   Ticks start = join.earliest();                                // 3: it is here

#include <vector>

#include "search/graph/links.h"

namespace ostinato::graph {

class GraphJoin {
 public:
  struct Input {
    Ticks remote;   ///< over a link, from the device that suits best
    Ticks release;  ///< on the same device, before its own execution
    Ticks duration;
  };

  void clear() { inputs_.clear(); }
  void add(const Input& input) { inputs_.push_back(input); }

  /// 0 without inputs, kGraphNever or more where there is no way. O(inputs^2 log inputs).
  Ticks earliest();

 private:
  Ticks in_sequence(std::size_t count);

  std::vector<Input> inputs_, sequence_;
};

}  // namespace ostinato::graph
