// SPDX-License-Identifier: Apache-2.0
#include "profiler/memory/counting_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "profiler/memory/memory_log.h"

namespace ostinato {
namespace {

constexpr std::size_t kHeader = c10::gAlignment;  // torch aligns to it, and so does what follows it
static_assert(kHeader >= sizeof(Bytes));

std::atomic<Bytes> live{0};
std::atomic<Bytes> peak{0};
thread_local Bytes allocated_here = 0;

void count_allocation(const void* data, Bytes bytes) {
  allocated_here += bytes;
  logged(data, bytes, [bytes] {
    const Bytes now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    Bytes highest = peak.load(std::memory_order_relaxed);
    while (now > highest && !peak.compare_exchange_weak(highest, now, std::memory_order_relaxed)) {
    }
    return now;
  });
}

void count_free(const void* data, Bytes bytes) {
  logged(data, -bytes, [bytes] { return live.fetch_sub(bytes, std::memory_order_relaxed) - bytes; });
}

/// The context of a block is its data pointer, as c10::Allocator::raw_allocate() asks.
void release(void* data) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - kHeader;
  Bytes bytes = 0;
  std::memcpy(&bytes, block, sizeof bytes);
  count_free(data, bytes);  // first: once it is free, another thread may be given the same address
  c10::free_cpu(block);
}

class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (size == 0) return {nullptr, nullptr, &release, cpu};
    char* block = static_cast<char*>(c10::alloc_cpu(size + kHeader));
    const Bytes bytes = static_cast<Bytes>(size);
    std::memcpy(block, &bytes, sizeof bytes);
    void* data = block + kHeader;
    count_allocation(data, bytes);
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

std::mutex mutex;
c10::Allocator* previous = nullptr;  ///< null: not installed

/// Never destroyed: blocks may outlive everything.
Counting& counting() {
  static auto* const allocator = new Counting;
  return *allocator;
}

// SetCPUAllocator() ignores an allocator of a lower one than the last.
constexpr std::uint8_t kPriority = 255;

}  // namespace

void CountingAllocator::install() {
  const std::lock_guard lock(mutex);
  if (previous != nullptr) return;
  previous = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&counting(), kPriority);
}

void CountingAllocator::remove() {
  const std::lock_guard lock(mutex);
  if (previous == nullptr) return;
  c10::SetCPUAllocator(previous, kPriority);
  previous = nullptr;
}

bool CountingAllocator::installed() {
  const std::lock_guard lock(mutex);
  return previous != nullptr;
}

Bytes live_bytes() { return live.load(std::memory_order_relaxed); }
Bytes peak_bytes() { return peak.load(std::memory_order_relaxed); }
void reset_peak() { peak.store(live.load(std::memory_order_relaxed), std::memory_order_relaxed); }
Bytes thread_allocated_bytes() { return allocated_here; }

}  // namespace ostinato
