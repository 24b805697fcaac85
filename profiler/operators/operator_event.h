// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the recorder writes down of one operator call.

#include <array>
#include <cstdint>

#include "search/placement/placement.h"

namespace ostinato {

/// Plain data: it is written on the hot path.
struct OperatorEvent {
  static constexpr int kName = 64;
  static constexpr std::int64_t kNoSequence = -1;
  static constexpr std::int64_t kUnknown = -1;

  Nanoseconds start = 0;     ///< steady clock
  Nanoseconds end = -1;      ///< -1: it has not ended
  Nanoseconds children = 0;  ///< time of the operators that it called itself
  Bytes allocated = 0;       ///< by this thread while it ran, with the operators that it called
  Bytes children_allocated = 0;
  std::int64_t sequence = kNoSequence;  ///< a backward node carries its forward operator's
  std::uint64_t thread = 0;             ///< torch's logical thread
  std::uint64_t forward_thread = 0;     ///< of a backward node: where its forward ran; else 0
  /// Of this call, with what it calls; kUnknown also where its caller's has them.
  std::int64_t flops = kUnknown;
  std::int32_t pass = -1;                ///< index of the pass it belongs to; -1: outside all
  std::int32_t number = -1;              ///< among the recorder's events: its range's operator_id on a device
  bool counted = false;                  ///< it or one of its callers has flops
  bool backward = false;                 ///< a node of the autograd graph
  std::array<char, kName> short_name{};  ///< copied (names of nodes do not live on), cut to fit, ends with 0
  const char* long_name = nullptr;       ///< of a longer one, in the recorder's memory until it is cleared

  const char* name() const { return long_name != nullptr ? long_name : short_name.data(); }

  Nanoseconds self_time() const { return end - start - children; }
  Bytes self_allocated() const { return allocated - children_allocated; }
};

}  // namespace ostinato
