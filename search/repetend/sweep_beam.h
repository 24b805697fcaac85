// SPDX-License-Identifier: Apache-2.0
#pragma once
// The beam of a sweep, for one period: phases for all items, at given prices of a byte. Private to sweep.cpp.
//
//   SweepBeam beam(in, trees, 1, period, effort);
//   if (auto start = beam.run(prices)) ...     // of every item; memory may be too little all the same

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "search/repetend/sweep.h"

namespace ostinato {

struct SweepTrees;

class SweepBeam {
 public:
  SweepBeam(const Instance& in, const SweepTrees& trees, int unroll, Nanoseconds period, SweepEffort& effort);
  ~SweepBeam();

  /// With these prices of a byte on each device. Each run breaks ties in another way.
  std::optional<std::vector<Nanoseconds>> run(const std::vector<std::int64_t>& price);

  /// The last run skipped phases, and one of these may cost less.
  bool cut_off() const;

 private:
  class Rounds;
  std::unique_ptr<Rounds> rounds_;
};

}  // namespace ostinato
