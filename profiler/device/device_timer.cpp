// SPDX-License-Identifier: Apache-2.0
#include "profiler/device/device_timer.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

namespace ostinato {
namespace {

class CuptiTimer final : public DeviceTimer {
 public:
  explicit CuptiTimer(const cupti::CollectorOptions& options) : collector_(options) {}

  std::string name() const override { return "cupti"; }
  void open(const cupti::Range& range) noexcept override { collector_.push(range); }
  void close() noexcept override { collector_.pop(); }
  void flush() override { collector_.flush(); }
  cupti::DeviceTimes stop() override { return collector_.stop(); }

 private:
  cupti::Collector collector_;
};

}  // namespace

TimerChoice choose_timer(c10::DeviceType device, const cupti::CollectorOptions& options) {
  try {
    return {std::make_unique<CuptiTimer>(options), ""};
  } catch (const cupti::Unavailable& refused) {
    try {
      return {make_event_timer(device), refused.what()};
    } catch (const c10::Error&) {
      throw NoTimer(std::string(refused.what()) + "; and this device has no device events");
    }
  }
}

}  // namespace ostinato
