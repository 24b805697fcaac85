// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ctrl-C as a request to stop: the search returns its best plan, which is then written.
//
//   InterruptGuard guard;
//   options.stop = guard.flag();
//   ...
//   if (guard.caught()) return 130;

#include <atomic>
#include <csignal>

namespace ostinato::cli {

/// Takes SIGINT and SIGTERM while it lives, and gives both back to who had them. Only the first signal is a
/// request: a second one ends the program. One guard at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  const std::atomic<bool>* flag() const;
  bool caught() const { return flag()->load(); }

 private:
  struct sigaction old_interrupt_ = {};
  struct sigaction old_terminate_ = {};
};

}  // namespace ostinato::cli
