// SPDX-License-Identifier: Apache-2.0
#include "profiler/memory/memory_log.h"

#include <chrono>
#include <stdexcept>

namespace ostinato {

std::atomic<MemoryLog*> MemoryLog::running_{nullptr};
std::mutex MemoryLog::mutex_;

MemoryLog::MemoryLog(const Options& options) : events_(options.events) {}

MemoryLog::~MemoryLog() { stop(); }

void MemoryLog::start() {
  const std::lock_guard lock(mutex_);
  if (running_.load() != nullptr) throw std::logic_error("a memory log is already running");
  used_ = 0;
  dropped_ = 0;
  running_.store(this);
}

void MemoryLog::stop() {
  const std::lock_guard lock(mutex_);
  if (running_.load() == this) running_.store(nullptr);
}

std::vector<MemoryEvent> MemoryLog::events() const {
  return {events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(used_)};
}

void MemoryLog::append(const void* address, Bytes change, Bytes live) {
  if (used_ == events_.size()) {
    ++dropped_;
    return;
  }
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  events_[used_++] = {.at = std::chrono::duration_cast<std::chrono::nanoseconds>(since).count(),
                      .address = reinterpret_cast<std::uintptr_t>(address),
                      .change = change,
                      .live = live};
}

}  // namespace ostinato
