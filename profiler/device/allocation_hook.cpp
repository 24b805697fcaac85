// SPDX-License-Identifier: Apache-2.0
#include "profiler/device/allocation_hook.h"

#include <torch/csrc/profiler/orchestration/observer.h>

#include "profiler/memory/memory_log.h"

namespace ostinato {
namespace {

thread_local Bytes given_here = 0;

namespace observer = torch::profiler::impl;

/// A profiler's state that says it is off: torch takes whatever stands in that place for one.
class Hook final : public observer::ProfilerStateBase {
 public:
  Hook()
      : ProfilerStateBase(
            observer::ProfilerConfig(observer::ProfilerState::Disabled, false, /*profile_memory=*/true)) {}
  /// `bytes` < 0: given back. `total`: what the device's allocator has given, with this.
  void reportMemoryUsage(void* block, std::int64_t bytes, std::size_t total, std::size_t,
                         c10::Device device) override {
    if (device.type() == c10::DeviceType::CPU) return;
    if (bytes > 0) given_here += bytes;
    logged(block, bytes, [total] { return static_cast<Bytes>(total); });
  }
  observer::ActiveProfilerType profilerType() override { return observer::ActiveProfilerType::NONE; }
};

}  // namespace

AllocationHook::AllocationHook() : guard_(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Hook>()) {}

Bytes device_allocated_bytes() { return given_here; }

}  // namespace ostinato
