// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/buffers.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace ostinato::cupti {
namespace {

/// Where a buffer's first record has its kind, which is never 0. CUPTI's threads may be writing it.
std::atomic_ref<std::uint32_t> first_kind(const BufferPool::Buffer& buffer) {
  return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(buffer.data.get()));
}

}  // namespace

void BufferPool::begin(std::size_t bytes, std::size_t limit) {
  const std::scoped_lock lock(mutex_);
  bytes_ = bytes;
  limit_ = limit;
  ++session_;
  filled_.clear();
  std::erase_if(empty_, [&](const auto& buffer) { return buffer->size != bytes; });
  reading_ = overwritten_ = foreign_ = 0;
}

std::unique_ptr<BufferPool::Buffer> BufferPool::empty_buffer() {
  if (!empty_.empty()) {
    auto buffer = std::move(empty_.back());
    empty_.pop_back();
    return buffer;
  }
  const std::size_t existing = held_.size() + filled_.size() + reading_;
  if (existing >= limit_ && !filled_.empty()) {
    ++overwritten_;
    auto oldest = std::move(filled_.front());
    filled_.pop_front();
    return oldest;
  }
  auto buffer = std::make_unique<Buffer>();
  // operator new aligns to 16; CUPTI needs 8.
  buffer->data = std::make_unique_for_overwrite<std::uint8_t[]>(bytes_);
  buffer->size = bytes_;
  return buffer;
}

BufferPool::Buffer& BufferPool::take() {
  const std::scoped_lock lock(mutex_);
  auto buffer = empty_buffer();
  buffer->session = session_;
  buffer->valid = 0;
  first_kind(*buffer).store(0, std::memory_order_relaxed);
  held_.push_back(std::move(buffer));
  return *held_.back();
}

void BufferPool::give(const std::uint8_t* data, std::size_t valid) {
  const std::scoped_lock lock(mutex_);
  const auto held =
      std::find_if(held_.begin(), held_.end(), [&](const auto& b) { return b->data.get() == data; });
  if (held == held_.end()) {  // not ours: CUPTI took it from another profiler's callbacks
    ++foreign_;
    return;
  }
  auto buffer = std::move(*held);
  held_.erase(held);
  if (buffer->session != session_) {  // late, from a session that has counted it as not returned
    if (buffer->size == bytes_) empty_.push_back(std::move(buffer));
    return;
  }
  buffer->valid = std::min(valid, buffer->size);
  filled_.push_back(std::move(buffer));
}

std::vector<std::unique_ptr<BufferPool::Buffer>> BufferPool::filled() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::unique_ptr<Buffer>> buffers(std::make_move_iterator(filled_.begin()),
                                               std::make_move_iterator(filled_.end()));
  filled_.clear();
  reading_ += static_cast<std::int64_t>(buffers.size());
  return buffers;
}

void BufferPool::recycle(std::unique_ptr<Buffer> buffer) {
  const std::scoped_lock lock(mutex_);
  --reading_;
  const std::size_t others = held_.size() + filled_.size() + empty_.size() + reading_;
  if (buffer->size == bytes_ && others < limit_)
    empty_.push_back(std::move(buffer));  // else freed: above the limit
}

BufferCounts BufferPool::end() {
  const std::scoped_lock lock(mutex_);
  const BufferCounts counts = counts_locked();
  filled_.clear();
  empty_.clear();
  return counts;
}

BufferCounts BufferPool::counts() const {
  const std::scoped_lock lock(mutex_);
  return counts_locked();
}

BufferCounts BufferPool::counts_locked() const {
  BufferCounts counts;
  for (const auto& buffer : held_) {
    if (buffer->session != session_) continue;
    const bool written = first_kind(*buffer).load(std::memory_order_relaxed) != 0;
    ++(written ? counts.not_returned : counts.untouched);
  }
  counts.overwritten = overwritten_;
  counts.foreign = foreign_;
  counts.allocated = static_cast<std::int64_t>(held_.size() + filled_.size() + empty_.size()) + reading_;
  return counts;
}

}  // namespace ostinato::cupti
