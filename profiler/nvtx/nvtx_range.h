// SPDX-License-Identifier: Apache-2.0
#pragma once
// A named range on the caller's thread that Nsight Systems (or any NVTX tool) shows. Header only; costs a few
// nanoseconds where no tool listens. The names of plans are "<stage> <kind> <micro-batch>", "s1 F 3" say.
//
//   { NvtxRange range(name.c_str());  run(); }     // the name is copied by the tool, if there is one
//
// Source: NVTX v3 (third_party/nvtx3). A tool is named by NVTX_INJECTION64_PATH, or linked into the process.

#include <nvtx3/nvToolsExt.h>

namespace ostinato {

class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace ostinato
