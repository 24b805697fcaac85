#pragma once
// Buffers that messages are received into, keyed by shape and dtype, and reused.
//
//   Buffer b = pool.take(spec);          // b.tensor() is contiguous, its contents undefined
//   ...                                  // giving it back is the destructor's work
//
// A buffer that somebody still refers to when it is given back (a hook that kept the tensor, a view in user
// code) is let go instead of being reused: nobody ever sees a tensor change under their hands.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "plugin/executor/tensor_spec.h"

namespace ostinato {

/// Bytes that the executor itself holds, and the most it ever held.
class Meter {
 public:
  void add(std::int64_t bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  std::int64_t now() const { return now_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t peak_ = 0;
};

class BufferPool;

/// A tensor on loan from a pool, which must outlive it. Moves, does not copy. An empty one holds no tensor.
class Buffer {
 public:
  Buffer() = default;
  Buffer(BufferPool* pool, at::Tensor tensor) : pool_(pool), tensor_(std::move(tensor)) {}
  Buffer(Buffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), tensor_(std::move(other.tensor_)) {}
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { give_back(); }

  const at::Tensor& tensor() const { return tensor_; }

  /// Does anybody else refer to its bytes?
  bool is_shared() const {
    return tensor_.defined() && (tensor_.storage().use_count() > 1 || tensor_.use_count() > 1);
  }

 private:
  void give_back();

  BufferPool* pool_ = nullptr;
  at::Tensor tensor_;
};

class BufferPool {
 public:
  BufferPool(at::Device device, Meter& meter) : device_(device), meter_(meter) {}

  /// O(log shapes); allocates only where no buffer of that shape and dtype is free.
  Buffer take(const TensorSpec& spec);

  /// Lets go of every buffer that is not on loan.
  void clear();

 private:
  friend class Buffer;
  void put(at::Tensor tensor);

  using Key = std::pair<at::ScalarType, std::vector<std::int64_t>>;
  at::Device device_;
  Meter& meter_;
  std::map<Key, std::vector<at::Tensor>> free_;
};

}  // namespace ostinato
