// SPDX-License-Identifier: Apache-2.0
#pragma once
// When a search or a bound ends before it is done.
//
//   Limit limit(10, [] { return interrupted; });   // seconds; 0: no time limit
//   while (!limit.reached()) { ... }

#include <atomic>
#include <chrono>
#include <functional>
#include <utility>

namespace ostinato::graph {

/// Becomes true once and stays so. The time begins when it is made.
class Limit {
 public:
  Limit(double seconds, std::function<bool()> interrupted)
      : seconds_(seconds),
        interrupted_(std::move(interrupted)),
        end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  /// Asked by several threads.
  bool reached() {
    if (reached_) return true;
    if ((seconds_ > 0 && Clock::now() >= end_) || (interrupted_ && interrupted_())) reached_ = true;
    return reached_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const double seconds_;
  const std::function<bool()> interrupted_;
  const Clock::time_point end_;
  std::atomic<bool> reached_ = false;
};

}  // namespace ostinato::graph
