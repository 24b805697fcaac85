// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/moments.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <thread>

namespace ostinato {
namespace {

/// How long the host looks at the device without a pause.
constexpr std::chrono::milliseconds kLooks{1};

}  // namespace

bool comes_within(std::chrono::nanoseconds timeout, const std::function<bool()>& has_come) {
  const auto begin = std::chrono::steady_clock::now();
  while (!has_come()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= timeout) return false;
    if (waited > kLooks) std::this_thread::sleep_for(kLooks / 10);
  }
  return true;
}

void Moments::begin() {
  begin_ = Clock::now();
  used_ = 0;
  if (!are_of_host()) record();
}

Moment Moments::now() {
  const std::int64_t host_ns = std::chrono::nanoseconds(Clock::now() - begin_).count();
  return {host_ns, are_of_host() ? 0 : record()};
}

bool Moments::has_come(const Moment& moment) const { return are_of_host() || events_[moment.event].query(); }

std::int64_t Moments::at(const Moment& moment) const {
  if (are_of_host()) return moment.host_ns;
  return std::llround(events_.front().elapsedTime(events_[moment.event]) * 1e6);
}

std::size_t Moments::record() {
  if (used_ == events_.size())
    events_.emplace_back(device_, c10::EventFlag::BACKEND_DEFAULT);  // with its time
  const c10::impl::VirtualGuardImpl device(device_);
  events_[used_].record(device.getStream(device.getDevice()));
  return used_++;
}

}  // namespace ostinato
