// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether libcupti, which reads a GPU's own clock, can be had. It is never linked.

#include <cstdint>
#include <string>

namespace ostinato {

struct CuptiStatus {
  bool usable = false;
  /// CUPTI_API_VERSION of the library; 0: none, or one that says it cannot be used.
  std::uint32_t version = 0;
  std::string library;  ///< the file that was found
  std::string detail;   ///< for people: what was found, or what to install
};

/// Looks first at a libcupti that is already in the process (a CUDA build of torch brings one), then where
/// profiler/cupti/library.h says. Collects nothing and does not subscribe, so it disturbs no other profiler,
/// and cannot tell whether one holds CUPTI: cupti::Collector finds out.
CuptiStatus cupti_status();

}  // namespace ostinato
