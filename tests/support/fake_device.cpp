// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "tests/support/fake_memory.h"

namespace ostinato {
namespace {

std::atomic<int> refusals{0};
std::atomic<bool> hangs{false};

/// How far a stream has come with all that was issued on it.
struct Position {
  Nanoseconds at = 0;
  FakeProgress ended;

  void wait_for(const Position& other) {
    at = std::max(at, other.at);
    for (const auto& [stream, count] : other.ended) ended[stream] = std::max(ended[stream], count);
  }
};

struct FakeEvent {
  Position position;
  bool comes = true;
};

std::mutex mutex;  ///< of what follows, and of the events
std::map<FakeStream, Position> streams;
Position seen;  ///< by the host
c10::StreamId streams_made = 0;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kFakeDevices> current_stream{};

FakeStream key_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

bool has_ended(const FakeProgress& ended, const FakeTask& task) {
  const auto found = ended.find(task.stream);
  return found != ended.end() && found->second >= task.number;
}

struct FakeDevice final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFakeDevice; }
  c10::Device getDevice() const override { return {kFakeDevice, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }

  c10::Stream getStream(c10::Device device) const override {
    const c10::Device of = device.has_index() ? device : getDevice();
    return c10::Stream(c10::Stream::UNSAFE, of, current_stream[of.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const std::lock_guard lock(mutex);
    return c10::Stream(c10::Stream::UNSAFE, device, ++streams_made);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    TORCH_CHECK(refusals.fetch_sub(1) <= 0, "the device refuses an event");
    const std::lock_guard lock(mutex);
    if (*event == nullptr) *event = new FakeEvent;
    *static_cast<FakeEvent*>(*event) = {streams[key_of(stream)], !hangs};
  }
  void block(void* event, const c10::Stream& stream) const override {
    const std::lock_guard lock(mutex);
    streams[key_of(stream)].wait_for(static_cast<FakeEvent*>(event)->position);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  bool queryEvent(void* event) const override {
    const std::lock_guard lock(mutex);
    const FakeEvent& asked = *static_cast<FakeEvent*>(event);
    if (asked.comes) seen.wait_for(asked.position);
    return asked.comes;
  }
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    fake_memory_is_used_on(memory.get(), key_of(stream));
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    const auto at = [](void* event) { return static_cast<FakeEvent*>(event)->position.at; };
    return static_cast<double>(at(to) - at(from)) / 1e6;
  }
};

/// What autograd asks of an accelerator.
struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

}  // namespace

void register_fake_device() {
  static const FakeDevice device;
  static FakeHooks hooks;
  static const c10::impl::DeviceGuardImplRegistrar registrar(kFakeDevice, &device);
  static const bool named = [] {
    c10::register_privateuse1_backend("fake");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  static_cast<void>(named);
}

FakeStream fake_current_stream() { return {current_device, current_stream[current_device]}; }

FakeTask fake_device_works(Nanoseconds time) {
  const std::lock_guard lock(mutex);
  const FakeStream stream = fake_current_stream();
  Position& position = streams[stream];
  FakeTask task{stream, position.ended[stream] + 1, position.ended, position.at, position.at + time};
  position.at = task.end;
  position.ended[stream] = task.number;
  return task;
}

Nanoseconds fake_devices_meet() {
  const std::lock_guard lock(mutex);
  Nanoseconds farthest = 0;
  for (const auto& [stream, position] : streams) farthest = std::max(farthest, position.at);
  for (auto& [stream, position] : streams) position.at = farthest;
  return farthest;
}

bool comes_before(const FakeTask& task, const FakeStream& now) {
  const std::lock_guard lock(mutex);
  return has_ended(streams[now].ended, task);
}

bool host_has_seen(const FakeTask& task) {
  const std::lock_guard lock(mutex);
  return has_ended(seen.ended, task);
}

bool comes_before(const FakeTask& first, const FakeTask& second) { return has_ended(second.before, first); }

void fake_device_hangs(bool from_now_on) { hangs = from_now_on; }

void fake_device_refuses_events(int count) { refusals = count; }

}  // namespace ostinato
