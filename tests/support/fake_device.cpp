#include "tests/support/fake_device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>

namespace ostinato {
namespace {

std::atomic<Nanoseconds> clock_now{0};
std::atomic<int> refusals{0};
std::atomic<bool> hangs{false};

struct FakeEvent {
  Nanoseconds at;
  bool comes;
};

struct FakeDevice final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceIndex kIndex = 0;

  c10::DeviceType type() const override { return kFakeDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kFakeDevice, kIndex}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    TORCH_CHECK(refusals.fetch_sub(1) <= 0, "the device refuses an event");
    if (*event == nullptr) *event = new FakeEvent;
    *static_cast<FakeEvent*>(*event) = {clock_now, !hangs};
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  bool queryEvent(void* event) const override { return static_cast<FakeEvent*>(event)->comes; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return static_cast<double>(static_cast<FakeEvent*>(to)->at - static_cast<FakeEvent*>(from)->at) / 1e6;
  }
};

}  // namespace

void register_fake_device() {
  static const FakeDevice device;
  static const c10::impl::DeviceGuardImplRegistrar registrar(kFakeDevice, &device);
}

void fake_device_works(Nanoseconds time) { clock_now += time; }

void fake_device_hangs(bool from_now_on) { hangs = from_now_on; }

void fake_device_refuses_events(int count) { refusals = count; }

}  // namespace ostinato
