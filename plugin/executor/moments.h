// SPDX-License-Identifier: Apache-2.0
#pragma once
// When the instructions of a step begin and end, as the device sees it that works for them.
//
//   Moments moments(c10::DeviceType::CUDA);
//   moments.begin();                                    // of a step
//   const Moment start = moments.now();                 // ... work is issued ...
//   const Moment end = moments.now();
//   if (moments.has_come(end)) duration = moments.at(end) - moments.at(start);
//
// On the CPU a moment is the steady clock's. On an accelerator the host only issues work, so a moment is an
// event on the thread's current stream, through torch's own interface for devices: one source serves them
// all, and nothing of CUDA is needed to build. Events are kept for the next step; one costs about a
// microsecond.

#include <c10/core/Event.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

namespace ostinato {

/// The host looks at the device until it is so; false when the time is up. Looks without a pause for a
/// millisecond, then ten times in each.
bool comes_within(std::chrono::nanoseconds timeout, const std::function<bool()>& has_come);

/// Of the step in which it was made.
struct Moment {
  std::int64_t host_ns = 0;  ///< from the step's begin
  std::size_t event = 0;     ///< not on the CPU
};

class Moments {
 public:
  explicit Moments(c10::DeviceType device) : device_(device) {}

  /// The host tells them at once: there is nothing to wait for.
  bool are_of_host() const { return device_ == c10::DeviceType::CPU; }

  /// Throws c10::Error where the device has no events.
  void begin();
  Moment now();

  /// Whether the device has done all that was issued before. Does not wait.
  bool has_come(const Moment& moment) const;

  /// What other streams can wait for; null on the CPU. Until the next step begins.
  const c10::Event* event(const Moment& moment) const {
    return are_of_host() ? nullptr : &events_[moment.event];
  }

  /// Nanoseconds from the step's begin. On an accelerator the moment must have come.
  std::int64_t at(const Moment& moment) const;

 private:
  using Clock = std::chrono::steady_clock;
  std::size_t record();

  c10::DeviceType device_;
  Clock::time_point begin_{};
  std::deque<c10::Event> events_;  ///< the first is the step's begin
  std::size_t used_ = 0;           ///< of them, in this step
};

}  // namespace ostinato
