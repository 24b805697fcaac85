// SPDX-License-Identifier: Apache-2.0
#pragma once
// Device events as a timer: where CUPTI cannot be had, and on devices that have none. Uses torch's own
// interface for devices, so that nothing of CUDA is needed to build.
//
// A mark (an event on the thread's current stream) is made whenever a range opens or closes; the time between
// two marks of a thread belongs to the range that was innermost between them. So a range's time holds the
// gaps in which the device waited for its next launch, where CUPTI tells the kernels' own time; and what a
// thread launches outside every range is not seen at all. Marks cost the device about a microsecond each.
//
// Bounded: a thread has room for this many marks, and what does not fit is counted in `beyond_limit`; an
// event that the device refuses is counted in `call_errors`. Either makes the profile incomplete
// (cupti/attribution.h).

#include <c10/core/Event.h>

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "profiler/device/device_timer.h"

namespace ostinato {

class EventTimer final : public DeviceTimer {
 public:
  struct Limits {
    int marks_per_thread = 1 << 17;  ///< four times the events that a recorder keeps of a thread: two each
    int threads = 8;
  };

  /// Throws c10::Error where the device has no events.
  EventTimer(c10::DeviceType device, const Limits& limits);

  std::string name() const override { return "device-events"; }
  void open(const cupti::Range& range) noexcept override;
  void close() noexcept override;
  cupti::DeviceTimes stop() override;

 private:
  static constexpr int kDepth = 256;  // ranges in each other

  /// An event, and the range that is innermost from then on; no range: the thread is outside all.
  struct Mark {
    c10::Event event;
    std::optional<cupti::Range> owner;
  };

  /// Written by one thread only.
  struct Log {
    std::vector<Mark> marks;
    std::array<cupti::Range, kDepth> open{};
    int depth = 0;  ///< may exceed kDepth: deeper ones have no range
  };

  Log* log_of_this_thread() noexcept;
  void mark(Log& log) noexcept;
  c10::Event event_now() const;
  void add_up(Log& log, std::vector<cupti::DeviceTime>* parts);

  c10::DeviceType device_;
  std::size_t marks_per_thread_;
  std::uint64_t session_;  ///< tells a thread that its log is another timer's
  c10::Event origin_;      ///< of the times; recorded by the constructor
  std::vector<Log> logs_;
  std::atomic<int> claimed_{0};
  std::atomic<std::int64_t> ranges_{0}, no_room_{0}, refused_{0};
};

}  // namespace ostinato
