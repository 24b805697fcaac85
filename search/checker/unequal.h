// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lower bounds of a step of unequal micro-batches that the checker computes on its own (docs/bounds.md, U).
//
//   const UnequalBounds bounds(placement, plan.sizes);
//   const Bound b = bounds.makespan();       // b.why: which statement, on which device

#include <vector>

#include "search/checker/bounds.h"

namespace ostinato::checker {

class UnequalBounds {
 public:
  /// `sizes` are checked (check_sizes). The placement must outlive this.
  UnequalBounds(const Placement& placement, const std::vector<MicroBatch>& sizes);

  /// U1 to U3: no schedule ends earlier. O(steps * (log steps + blocks of a device)).
  Bound makespan() const;

 private:
  struct Step {
    int micro_batch;
    int block;
  };
  const Graph& graph(int i) const { return graphs_[i]; }
  Nanoseconds time(const Step& s) const { return graph(s.micro_batch).block(s.block).time; }
  Wide before(const Step& s, bool mirrored) const {
    return mirrored ? graph(s.micro_batch).tail(s.block) : graph(s.micro_batch).head(s.block);
  }
  std::vector<Step> steps_on(int device) const;
  Wide longest_path() const;                        // U1
  Wide work(const std::vector<Step>& steps) const;  // U2
  struct Pairs;
  Pairs pairs_on(int device) const;
  Wide memory(int device, Wide room, const Pairs& pairs) const;  // U3

  std::vector<Placement> placements_;  ///< of each micro-batch alone
  std::vector<Graph> graphs_;
};

}  // namespace ostinato::checker
