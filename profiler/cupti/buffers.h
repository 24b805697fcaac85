// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory that CUPTI writes records into: a bounded pool. CUPTI's thread takes empty buffers and gives
// back filled ones; a thread of ours moves the filled ones out, reads them without the pool's lock, and
// recycles them.
//
// A request is never refused: before CUDA 12.9 (version 27) a refused buffer can crash the process. So where
// `limit` buffers exist and none is empty, the filled buffer that has waited longest is overwritten and
// counted, since its records are lost; and where none is filled either (CUPTI holds them all) the pool grows
// beyond its limit.
//
// Locks: one mutex, held for list operations only. No call into CUPTI is made under it, because CUPTI calls
// take() and give() while it holds its own locks. take() allocates only while the pool grows.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace ostinato::cupti {

struct BufferCounts {
  std::int64_t not_returned = 0;  ///< CUPTI has them, since this session began, with records in them
  std::int64_t untouched = 0;     ///< CUPTI has them and has written nothing into them: no loss
  std::int64_t overwritten = 0;   ///< filled, and taken again before they were read
  std::int64_t foreign = 0;       ///< came back without having been handed out: another profiler's
  std::int64_t allocated = 0;     ///< buffers that exist now
};

class BufferPool {
 public:
  struct Buffer {
    std::unique_ptr<std::uint8_t[]> data;
    std::size_t size = 0;
    std::size_t valid = 0;     ///< bytes that CUPTI filled
    std::int64_t session = 0;  ///< which session handed it out
  };

  /// Starts a session: counts from 0, and what CUPTI still holds from earlier ones is no longer read or
  /// counted. `bytes` a buffer (a multiple of 8), at most `limit` buffers where CUPTI lets us.
  void begin(std::size_t bytes, std::size_t limit);

  /// Ends it: what was not read is lost, memory that CUPTI does not hold is freed.
  BufferCounts end();

  /// An empty buffer for CUPTI, which holds it until give().
  Buffer& take();

  /// CUPTI has filled `valid` bytes of the buffer at `data`.
  void give(const std::uint8_t* data, std::size_t valid);

  /// The filled buffers, oldest first. The caller owns them until recycle().
  std::vector<std::unique_ptr<Buffer>> filled();

  void recycle(std::unique_ptr<Buffer> buffer);

  BufferCounts counts() const;

 private:
  std::unique_ptr<Buffer> empty_buffer();
  BufferCounts counts_locked() const;

  mutable std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::size_t limit_ = 0;
  std::int64_t session_ = 0;
  std::vector<std::unique_ptr<Buffer>> empty_;
  std::deque<std::unique_ptr<Buffer>> filled_;
  std::vector<std::unique_ptr<Buffer>> held_;  ///< by CUPTI
  std::int64_t reading_ = 0;                   ///< moved out by filled(), not yet recycled
  std::int64_t overwritten_ = 0;
  std::int64_t foreign_ = 0;
};

}  // namespace ostinato::cupti
