// SPDX-License-Identifier: Apache-2.0
#include "bindings/aside.h"

namespace py = pybind11;

namespace ostinato {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);

}  // namespace

void Aside::note(const Progress& now) {
  const std::lock_guard lock(mutex_);
  latest_ = now;
}

void Aside::watch() {
  for (bool done = false; !done;) {
    std::optional<Progress> now;
    {
      const py::gil_scoped_release release;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kLook, [&] { return done_; });
      done = done_;
      now = std::exchange(latest_, std::nullopt);
    }
    if (!raised_) look(now);
  }
}

/// With the GIL.
void Aside::look(const std::optional<Progress>& now) {
  try {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (now && !progress_.is_none()) progress_(now->best, now->bound, now->seconds, now->phase);
  } catch (py::error_already_set& error) {
    interrupted_ = error.matches(PyExc_KeyboardInterrupt);
    raised_ = std::current_exception();
    stop_.store(true);
  }
}

}  // namespace ostinato
