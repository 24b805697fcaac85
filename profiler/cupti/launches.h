// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which CUDA API calls launch a kernel: each that succeeded must have a record of its kernel, which is how
// lost kernels are noticed without trusting the count of dropped records.
//
// Numbers: CUpti_runtime_api_trace_cbid and CUpti_driver_api_trace_cbid, which are only ever appended to.
// Graph launches are left out (a graph may hold no kernel), copies and memsets too (of zero bytes they leave
// no record).

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace ostinato::cupti {

inline constexpr std::uint32_t kRuntimeLaunches[] = {
    211,  // cudaLaunchKernel
    214,  // cudaLaunchKernel_ptsz (per-thread default stream)
    269,  // cudaLaunchCooperativeKernel
    270,  // cudaLaunchCooperativeKernel_ptsz
    430,  // cudaLaunchKernelExC
    431,  // cudaLaunchKernelExC_ptsz
    505,  // __cudaLaunchKernel, what nvcc's <<<>>> calls from CUDA 13 on
    506,  // __cudaLaunchKernel_ptsz
};

inline constexpr std::uint32_t kDriverLaunches[] = {
    307,  // cuLaunchKernel
    442,  // cuLaunchKernel_ptsz
    477,  // cuLaunchCooperativeKernel
    478,  // cuLaunchCooperativeKernel_ptsz
    652,  // cuLaunchKernelEx
    653,  // cuLaunchKernelEx_ptsz
};

constexpr bool is_launch(bool driver, std::uint32_t function) {
  return driver ? std::find(std::begin(kDriverLaunches), std::end(kDriverLaunches), function) !=
                      std::end(kDriverLaunches)
                : std::find(std::begin(kRuntimeLaunches), std::end(kRuntimeLaunches), function) !=
                      std::end(kRuntimeLaunches);
}

}  // namespace ostinato::cupti
