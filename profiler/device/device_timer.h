// SPDX-License-Identifier: Apache-2.0
#pragma once
// What times operators on a device without waiting for it: CUPTI's activity records, or device events where
// those cannot be had. The operator recorder opens a range for each operator and pass on the thread that runs
// it, so the innermost range owns what is launched: a range's time is an operator's self time.
//
//   TimerChoice choice = choose_timer(c10::DeviceType::CUDA, {});
//   recorder.start({.timer = choice.timer.get()});
//   ...                                         // begin_pass(), operators, end_pass()
//   recorder.stop();
//   wait for the device;                        // neither kind of timer does
//   cupti::DeviceTimes times = choice.timer->stop();
//   profile.timer = choice.timer->name();
//
// Threads: open() and close() on any thread, paired on each; the rest on the thread that made the timer.

#include <c10/core/DeviceType.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "profiler/cupti/collector.h"

namespace ostinato {

class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;

  /// As a profile's `timer` says it: "cupti" | "device-events".
  virtual std::string name() const = 0;

  /// On the hot path: neither throws; what fails is counted in the losses.
  virtual void open(const cupti::Range& range) noexcept = 0;
  virtual void close() noexcept = 0;

  /// Reads what is finished, so that buffers need not grow. Between measurements.
  virtual void flush() {}

  /// Ends the session and adds everything up. The device must have been waited for.
  virtual cupti::DeviceTimes stop() = 0;
};

struct TimerChoice {
  std::unique_ptr<DeviceTimer> timer;
  std::string why_not_cupti;  ///< who holds it, or what is missing; "": CUPTI times
};

/// The device has no clock that can be read; what() says why CUPTI cannot time it, and that there are no
/// events.
class NoTimer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// CUPTI where it can be had, else device events of that type of device. Throws NoTimer where the device has
/// no events either (a CPU, say).
TimerChoice choose_timer(c10::DeviceType device, const cupti::CollectorOptions& options);

/// Device events, whether or not CUPTI can be had (event_timer.h).
std::unique_ptr<DeviceTimer> make_event_timer(c10::DeviceType device);

}  // namespace ostinato
