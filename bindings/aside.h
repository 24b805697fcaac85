// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs the core's long work for Python on a separate thread, without the GIL; the caller's thread handles
// Ctrl-C and reports progress.
//
//   Aside aside(progress);                                      // a callable, or None
//   const Plan plan = aside.run([&](const std::atomic<bool>* stop, auto report) { ... });
//   if (aside.interrupted()) ...                                // the plan is the best until then

#include <pybind11/pybind11.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "search/search.h"

namespace ostinato {

class Aside {
 public:
  using Report = std::function<void(const Progress&)>;

  /// `progress`: called with (best, bound, seconds, phase) at most ten times a second, on the caller's
  /// thread.
  explicit Aside(pybind11::object progress) : progress_(std::move(progress)) {}

  /// With the GIL. What `work(stop, report)` returns. Throws what it throws, and what `progress` raises.
  /// After a Ctrl-C, `work` is asked to stop: where it still returns, so does this, and where it throws,
  /// KeyboardInterrupt is raised.
  template <typename Work>
  auto run(Work work) {
    std::optional<decltype(work(&stop_, Report()))> result;
    std::exception_ptr failure;
    std::thread worker([&] {
      try {
        result = work(&stop_, [this](const Progress& now) { note(now); });
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      done_ = true;
      changed_.notify_all();
    });
    watch();
    {
      const pybind11::gil_scoped_release release;
      worker.join();
    }
    if (raised_ && !(interrupted() && result)) std::rethrow_exception(raised_);
    if (failure) std::rethrow_exception(failure);
    return std::move(*result);
  }

  bool interrupted() const { return interrupted_; }

 private:
  void note(const Progress& now);
  void watch();
  void look(const std::optional<Progress>& now);

  pybind11::object progress_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false, interrupted_ = false;
  std::optional<Progress> latest_;
  std::exception_ptr raised_;
};

}  // namespace ostinato
