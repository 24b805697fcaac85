// SPDX-License-Identifier: Apache-2.0
#include "profiler/device/event_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace ostinato {
namespace {

std::atomic<std::uint64_t> sessions{0};

thread_local struct {
  std::uint64_t session = 0;
  int log = -1;
} mine;

/// Of two events on the same device, as it tells it: milliseconds.
Nanoseconds between(const c10::Event& from, const c10::Event& to) {
  return std::max<Nanoseconds>(0, std::llround(from.elapsedTime(to) * 1e6));
}

}  // namespace

EventTimer::EventTimer(c10::DeviceType device, const Limits& limits)
    : device_(device),
      marks_per_thread_(limits.marks_per_thread),
      session_(++sessions),
      origin_(event_now()),
      logs_(limits.threads) {
  for (Log& log : logs_) log.marks.reserve(marks_per_thread_);
}

c10::Event EventTimer::event_now() const {
  const c10::impl::VirtualGuardImpl device(device_);
  c10::Event event(device_, c10::EventFlag::BACKEND_DEFAULT);  // with its time
  event.record(device.getStream(device.getDevice()));
  return event;
}

EventTimer::Log* EventTimer::log_of_this_thread() noexcept {
  if (mine.session != session_) mine = {session_, claimed_.fetch_add(1, std::memory_order_relaxed)};
  const std::size_t index = mine.log;
  return index < logs_.size() ? &logs_[index] : nullptr;
}

void EventTimer::mark(Log& log) noexcept {
  if (log.marks.size() == marks_per_thread_) {
    no_room_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::optional<cupti::Range> owner;
  if (log.depth > 0) owner = log.open[std::min(log.depth, kDepth) - 1];
  try {
    log.marks.push_back({event_now(), owner});
  } catch (const c10::Error&) {
    refused_.fetch_add(1, std::memory_order_relaxed);
  }
}

void EventTimer::open(const cupti::Range& range) noexcept {
  ranges_.fetch_add(1, std::memory_order_relaxed);
  Log* log = log_of_this_thread();
  if (log == nullptr) {
    no_room_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (log->depth < kDepth) log->open[log->depth] = range;
  ++log->depth;
  mark(*log);
}

void EventTimer::close() noexcept {
  Log* log = log_of_this_thread();
  if (log == nullptr || log->depth == 0) return;
  --log->depth;
  mark(*log);
}

void EventTimer::add_up(Log& log, std::vector<cupti::DeviceTime>* parts) {
  if (log.marks.empty()) return;
  log.marks.back().event.synchronize();
  // Added up from mark to mark: a device tells long times with fewer digits.
  Nanoseconds at = between(origin_, log.marks.front().event);
  for (std::size_t i = 0; i + 1 < log.marks.size(); ++i) {
    const Nanoseconds time = between(log.marks[i].event, log.marks[i + 1].event);
    if (const auto& owner = log.marks[i].owner) {
      parts->push_back({.range = *owner, .kernel = time, .activities = 1, .start = at, .end = at + time});
    }
    at += time;
  }
}

cupti::DeviceTimes EventTimer::stop() {
  std::vector<cupti::DeviceTime> parts;
  for (Log& log : logs_) add_up(log, &parts);
  std::map<cupti::Range, cupti::DeviceTime> ranges;
  for (const cupti::DeviceTime& part : parts) {
    auto [place, is_new] = ranges.try_emplace(part.range, part);
    if (!is_new) place->second.add(part);
  }
  cupti::DeviceTimes times;
  for (const auto& [range, time] : ranges) times.ranges.push_back(time);
  times.losses.ranges = ranges_;
  times.losses.records = static_cast<std::int64_t>(parts.size());
  times.losses.beyond_limit = no_room_;
  times.losses.call_errors = refused_;
  return times;
}

std::unique_ptr<DeviceTimer> make_event_timer(c10::DeviceType device) {
  return std::make_unique<EventTimer>(device, EventTimer::Limits{});
}

}  // namespace ostinato
