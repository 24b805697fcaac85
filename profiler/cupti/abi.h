// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of CUPTI's binary interface that the collector uses, declared here so that nothing needs the CUDA
// toolkit.
//
// Only what is stable is declared: result codes, kinds, and the head of each record up to the last field we
// read. Records grow at their end with CUDA releases (a kernel's has 144 bytes in CUDA 9, 200 in 11.8, 216
// in 13.0), so `sizeof` of a struct below is never the size of a record, and buffers are walked by
// cuptiActivityGetNextRecord, which knows the sizes of the library that wrote them. abi_check.cpp compares
// every offset, size and constant with NVIDIA's headers wherever the build finds them.
//
// Source: CUPTI API reference, "Activity API" and "Callback API"; layouts hold from CUDA 11.8 (version 18)
// to 13.0.

#include <cstddef>
#include <cstdint>

namespace ostinato::cupti::abi {

/// CUptiResult.
using Result = std::int32_t;
inline constexpr Result kSuccess = 0;
inline constexpr Result kMaxLimitReached = 12;      ///< no further record in the buffer
inline constexpr Result kQueueEmpty = 18;           ///< pop without a push on this thread
inline constexpr Result kMultipleSubscribers = 39;  ///< another tool holds CUPTI

/// The CUpti_ActivityKinds that the collector turns on.
enum class RecordKind : std::uint32_t {
  memcpy = 1,
  memset = 2,
  driver = 4,        ///< driver API call
  runtime = 5,       ///< runtime API call; an external correlation is only written for a recorded API call
  kernel = 10,       ///< CONCURRENT_KERNEL: kernels keep their concurrency (KERNEL, 3, would serialise them)
  memcpy_peer = 22,  ///< MEMCPY2: between two devices
  external_correlation = 39,
};

/// CUpti_ExternalCorrelationKind. torch's own profiler (Kineto) uses CUSTOM0 and CUSTOM1, we use CUSTOM2.
inline constexpr std::uint32_t kCustom2 = 5;

/// CUpti_ActivityFlag: cuptiActivityFlushAll also hands over buffers with unfinished records.
inline constexpr std::uint32_t kFlushForced = 1;

/// Heads of records. Times are nanoseconds on CUPTI's clock; 0 means that the device had no room to take
/// them.
struct KernelHead {
  std::uint32_t kind;
  std::uint8_t not_read_a[12];
  std::uint64_t start;
  std::uint64_t end;
  std::uint64_t completed;
  std::uint32_t device;
  std::uint32_t context;
  std::uint32_t stream;
  std::uint32_t not_read_b[10];
  std::uint32_t correlation;
};

/// Also the head of a memset, where `not_read` holds the value that is set.
struct MemcpyHead {
  std::uint32_t kind;
  std::uint32_t not_read;
  std::uint64_t bytes;
  std::uint64_t start;
  std::uint64_t end;
  std::uint32_t device;
  std::uint32_t context;
  std::uint32_t stream;
  std::uint32_t correlation;
};

struct MemcpyPeerHead {
  std::uint32_t kind;
  std::uint32_t not_read;
  std::uint64_t bytes;
  std::uint64_t start;
  std::uint64_t end;
  std::uint32_t device;
  std::uint32_t context;
  std::uint32_t stream;
  std::uint32_t source_device;
  std::uint32_t source_context;
  std::uint32_t target_device;
  std::uint32_t target_context;
  std::uint32_t correlation;
};

struct ApiHead {
  std::uint32_t kind;
  std::uint32_t function;  ///< CUpti_runtime_api_trace_cbid or CUpti_driver_api_trace_cbid
  std::uint64_t start;
  std::uint64_t end;
  std::uint32_t process;
  std::uint32_t thread;
  std::uint32_t correlation;
  std::uint32_t return_value;  ///< cudaError_t or CUresult; 0 is success
};

struct ExternalCorrelationHead {
  std::uint32_t kind;
  std::uint32_t external_kind;
  std::uint64_t external_id;
  std::uint32_t correlation;
};

/// CUpti_SubscriberParams as of CUDA 13.0. `size` tells the library which fields the caller knows.
struct SubscriberParams {
  std::size_t size;
  const char* name;  ///< at most 53 bytes
  char* holder;      ///< out: who holds CUPTI, where the call is refused for that
  std::size_t holder_size;
};
inline constexpr std::size_t kHolderBytes = 64;

using CallbackFunction = void (*)(void* user, std::uint32_t domain, std::uint32_t callback, const void* data);
using BufferRequested = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records);
using BufferCompleted = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size,
                                 std::size_t valid_size);

}  // namespace ostinato::cupti::abi
