// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/collector.h"

#include <algorithm>
#include <array>

namespace ostinato::cupti {
namespace {

/// Never destroyed: CUPTI returns buffers after a session, and while the process ends.
BufferPool& pool() {
  static auto* const pool = new BufferPool;
  return *pool;
}

/// CUPTI's callbacks carry no user data, so a process has one session at a time.
std::atomic<bool> in_use{false};

void buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) noexcept {
  BufferPool::Buffer& empty = pool().take();
  *buffer = empty.data.get();
  *size = empty.size;
  *max_records = 0;  // as many as fit
}

void buffer_completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) noexcept {
  pool().give(buffer, valid);
}

/// Subscribing needs a callback; no callback domain is ever turned on.
void no_callback(void*, std::uint32_t, std::uint32_t, const void*) {}

const Library& this_machines_library() {
  std::string problem;
  const Library* library = find_library(&problem);
  if (library) problem = driver_problem();
  if (!problem.empty()) throw Unavailable("CUPTI: " + problem);
  return *library;
}

/// The device's records, and records that tie them to ranges: an external correlation is written for API
/// records only.
constexpr std::array kNeeded = {abi::RecordKind::external_correlation,
                                abi::RecordKind::runtime,
                                abi::RecordKind::driver,
                                abi::RecordKind::kernel,
                                abi::RecordKind::memcpy,
                                abi::RecordKind::memcpy_peer,
                                abi::RecordKind::memset};

}  // namespace

Collector::Collector(const CollectorOptions& options) : Collector(this_machines_library(), options) {}

Collector::Collector(const Library& library, const CollectorOptions& options)
    : library_(library), reader_(library.call, options.max_records) {
  if (const std::string why = library.unusable(); !why.empty()) throw Unavailable(library.path + ": " + why);
  if (!options.profiler_running.empty()) {
    throw Unavailable("CUPTI is used by " + options.profiler_running + ", which runs now: stop it first");
  }
  if (in_use.exchange(true)) throw Unavailable("CUPTI is used by another ostinato profile of this process");
  try {
    subscribe();
    pool().begin(options.buffer_bytes / 8 * 8, std::max<std::size_t>(options.max_buffers, 1));
    enable();
  } catch (...) {
    shut_down();
    throw;
  }
}

Collector::~Collector() {
  if (running_) shut_down();
}

void Collector::subscribe() {
  const Functions& call = library_.call;
  std::array<char, abi::kHolderBytes> holder{};
  abi::SubscriberParams params{sizeof params, "ostinato", holder.data(), holder.size()};
  const abi::Result result = call.subscribe_v2
                                 ? call.subscribe_v2(&subscriber_, no_callback, nullptr, &params)
                                 : call.subscribe(&subscriber_, no_callback, nullptr);
  if (result == abi::kSuccess) return;
  subscriber_ = nullptr;
  holder.back() = '\0';
  if (result != abi::kMultipleSubscribers)
    throw Unavailable("CUPTI cannot be subscribed to: " + call.text(result));
  const std::string name = holder.data();
  throw Unavailable("CUPTI is held by " +
                    (name.empty() ? "another tool (Nsight Systems, for instance)" : name) +
                    ", and has one subscriber at a time");
}

void Collector::enable() {
  const Functions& call = library_.call;
  if (const abi::Result result = call.register_callbacks(buffer_requested, buffer_completed);
      result != abi::kSuccess) {
    throw Unavailable("CUPTI takes no buffers: " + call.text(result));
  }
  auto turn_on = [&](abi::RecordKind kind) {
    const abi::Result result = call.enable(static_cast<std::uint32_t>(kind));
    if (result == abi::kSuccess) enabled_.push_back(static_cast<std::uint32_t>(kind));
    return result;
  };
  for (const abi::RecordKind kind : kNeeded) {
    if (const abi::Result result = turn_on(kind); result != abi::kSuccess) {
      throw Unavailable("CUPTI does not record kind " + std::to_string(static_cast<std::uint32_t>(kind)) +
                        ": " + call.text(result));
    }
  }
}

void Collector::flush(std::uint32_t flag) {
  const Functions& call = library_.call;
  check(call.flush_all(flag));
  for (auto& buffer : pool().filled()) {
    reader_.read(buffer->data.get(), buffer->valid);
    pool().recycle(std::move(buffer));
  }
  std::size_t dropped = 0;
  check(call.get_dropped(nullptr, 0, &dropped));  // since the last time it was asked
  dropped_ += static_cast<std::int64_t>(dropped);
}

void Collector::shut_down() {
  const Functions& call = library_.call;
  for (const std::uint32_t kind : enabled_) check(call.disable(kind));
  if (!enabled_.empty()) flush(abi::kFlushForced);
  if (subscriber_) check(call.unsubscribe(subscriber_));
  buffers_ = pool().end();
  running_ = false;
  in_use = false;
}

DeviceTimes Collector::stop() {
  if (running_) shut_down();
  DeviceTimes times = attribute(reader_.records());
  times.losses.ranges = pushes_;
  times.losses.dropped = dropped_;
  times.losses.call_errors = call_errors_;
  times.losses.buffers = buffers_;
  return times;
}

}  // namespace ostinato::cupti
