// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors on the fake device, computed with on the host at once; and who may use their memory when, as a
// caching allocator and several streams have it on a real one.
//
//   const at::Tensor x = at::ones({4}).to(at::Device(kFakeDevice, 0));
//   fake_task("2:1F0", 1000, {memory_of(x)}, {memory_of(y)});   // what the device did, on the current stream
//   EXPECT_THAT(fake_races(), IsEmpty());
//
// A race is an access that is not ordered behind a write, or a write behind an access, of the same memory. A
// block comes from the stream that was current at its allocation, and its first use counts as a write of that
// one. It is given back to it: its accesses must have ended for what is issued there next, or on a stream
// that the allocator was told of (recordDataPtrOnStream), for what was issued on that one by then.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tests/support/fake_device.h"

namespace ostinato {

/// Where a tensor's block begins, views included; null for an undefined one.
const void* memory_of(const at::Tensor& tensor);

/// Work on the current stream that reads and writes such blocks. Others (the CPU's, null) are ignored.
void fake_task(const std::string& name, Nanoseconds time, const std::vector<const void*>& reads,
               const std::vector<const void*>& writes);

/// The last one of that name. Throws std::out_of_range.
FakeTask find_fake_task(const std::string& name);

/// All races since the last call, in words.
std::vector<std::string> fake_races();

void fake_memory_is_used_on(const void* memory, const FakeStream& stream);

}  // namespace ostinato
