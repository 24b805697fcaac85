// SPDX-License-Identifier: Apache-2.0
#pragma once
// Enough of the CUDA driver to launch work without the toolkit: its functions by name, a kernel as PTX.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace ostinato::cupti {

/// This machine has no GPU; what() says what is missing.
class NoGpu : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Gpu {
 public:
  /// Throws NoGpu, and std::runtime_error where a call into the driver fails.
  Gpu() {
    driver_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver_) throw NoGpu("no NVIDIA driver on this machine");
    if (call_result<unsigned>("cuInit", 0) != 0) throw NoGpu("the driver finds no GPU (cuInit fails)");
    int count = 0;
    call<int*>("cuDeviceGetCount", &count);
    if (count == 0) throw NoGpu("the driver sees no GPU");
    call<int*, int>("cuDeviceGet", &device_, 0);
    void* context = nullptr;
    call<void**, int>("cuDevicePrimaryCtxRetain", &context, device_);
    call<void*>("cuCtxSetCurrent", context);
    call<std::uint64_t*, std::size_t>("cuMemAlloc_v2", &memory_, kBytes);
    void* module = nullptr;
    call<void**, const void*>("cuModuleLoadData", &module, kPtx);
    call<void**, void*, const char*>("cuModuleGetFunction", &kernel_, module, "increment");
  }

  /// Adds 1 to the first word.
  void launch() {
    void* arguments[] = {&memory_};
    call<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**>(
        "cuLaunchKernel", kernel_, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  }
  void set() {
    call<std::uint64_t, unsigned, std::size_t, void*>("cuMemsetD32Async", memory_, 0, kBytes / 4, nullptr);
  }
  void copy() {
    call<std::uint64_t, std::uint64_t, std::size_t, void*>("cuMemcpyDtoDAsync_v2", memory_ + kBytes / 2,
                                                           memory_, kBytes / 2, nullptr);
  }
  void synchronize() { call<>("cuCtxSynchronize"); }
  std::uint32_t first_word() {
    std::uint32_t word = 0;
    call<void*, std::uint64_t, std::size_t>("cuMemcpyDtoH_v2", &word, memory_, sizeof word);
    return word;
  }

 private:
  static constexpr std::size_t kBytes = 1 << 20;
  static constexpr const char* kPtx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry increment(.param .u64 word) {
  .reg .u64 %rd<3>;
  .reg .u32 %r<3>;
  ld.param.u64 %rd1, [word];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.u32 %r1, [%rd2];
  add.u32 %r2, %r1, 1;
  st.global.u32 [%rd2], %r2;
  ret;
}
)";

  template <typename... Arguments>
  int call_result(const char* name, Arguments... arguments) {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver_, name));
    if (!function) throw std::runtime_error(std::string("the driver has no ") + name);
    return function(arguments...);
  }

  template <typename... Arguments>
  void call(const char* name, Arguments... arguments) {
    if (const int result = call_result<Arguments...>(name, arguments...); result != 0) {
      throw std::runtime_error(std::string(name) + " fails with " + std::to_string(result));
    }
  }

  void* driver_ = nullptr;
  void* kernel_ = nullptr;
  int device_ = 0;
  std::uint64_t memory_ = 0;
};

}  // namespace ostinato::cupti
