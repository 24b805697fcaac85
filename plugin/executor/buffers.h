// SPDX-License-Identifier: Apache-2.0
#pragma once
// Buffers that messages are received into, keyed by shape and dtype, and reused.
//
//   Buffer b = pool.take(spec, order);   // b.tensor() is contiguous, its contents undefined
//   b.as_sent()                          // once it is filled: the same bytes as the sender had them
//   ...                                  // giving it back is the destructor's work
//
// A buffer that somebody still refers to when it is given back (a hook that kept the tensor, a view in user
// code) is dropped instead of being reused: no holder ever sees its tensor change.
//
// On an accelerator a buffer is given back when the work that reads it has been issued, not ended. So it
// comes with an event, and whatever fills it must wait for that: is_free(). One that the last compute gave
// back is not taken before the next one: a transfer into it could not run beside the compute. So there are as
// many buffers as on the CPU, where receives are posted one compute ahead.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plugin/executor/tensor_spec.h"

namespace ostinato {

/// Bytes that the executor itself holds, and the most it ever held. Safe to use from several threads.
class Meter {
 public:
  void add(std::int64_t bytes) {
    const std::int64_t now = now_ += bytes;
    for (std::int64_t peak = peak_; peak < now && !peak_.compare_exchange_weak(peak, now);) {
    }
  }
  std::int64_t now() const { return now_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::atomic<std::int64_t> now_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
};

class BufferPool;

/// A tensor on loan from a pool, which must outlive it. Moves, does not copy. An empty one holds no tensor.
class Buffer {
 public:
  Buffer() = default;
  Buffer(BufferPool* pool, at::Tensor tensor, bool wants_gradient, Order order = {},
         std::unique_ptr<c10::Event> is_free = nullptr)
      : pool_(pool),
        tensor_(std::move(tensor)),
        order_(std::move(order)),
        is_free_(std::move(is_free)),
        wants_gradient_(wants_gradient) {}
  Buffer(Buffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        tensor_(std::move(other.tensor_)),
        order_(std::move(other.order_)),
        is_free_(std::move(other.is_free_)),
        wants_gradient_(other.wants_gradient_) {}
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { give_back(); }

  const at::Tensor& tensor() const { return tensor_; }
  at::Tensor as_sent() const { return ostinato::as_sent(tensor_, order_); }

  /// Of TensorSpec::requires_grad: whoever sent it takes a gradient for it.
  bool wants_gradient() const { return wants_gradient_; }

  /// Comes when nothing that was issued before the loan uses the bytes any more. Null on the CPU.
  const c10::Event* is_free() const { return is_free_.get(); }

  /// Does anybody else refer to its bytes?
  bool is_shared() const {
    return tensor_.defined() && (tensor_.storage().use_count() > 1 || tensor_.use_count() > 1);
  }

 private:
  void give_back();

  BufferPool* pool_ = nullptr;
  at::Tensor tensor_;
  Order order_;
  std::unique_ptr<c10::Event> is_free_;
  bool wants_gradient_ = false;
};

/// Everything that is done with its buffers but filling them must be issued on the stream that is current
/// when they are taken and given back.
class BufferPool {
 public:
  BufferPool(at::Device device, Meter& meter) : device_(device), meter_(meter) {}

  /// O(log shapes); allocates only where no buffer of that shape and dtype is free.
  Buffer take(const TensorSpec& spec, const Order& order = {});

  /// While message shapes vary (micro-batches of unequal size), a shape rarely recurs: if none of its buffers
  /// is free, all free buffers go first, so that no more is held than is in use. Fitting one shape into
  /// another's buffer would gain nothing: an allocation is 0.1 % of a transfer.
  void shapes_change(bool yes) { shapes_change_ = yes; }

  /// Before each compute.
  void next_compute() { ++computes_; }

  /// Lets go of every buffer that is not on loan.
  void clear();

 private:
  friend class Buffer;
  struct Free {
    at::Tensor tensor;
    std::unique_ptr<c10::Event> event;
    std::int64_t since = 0;  ///< the compute that gave it back
  };
  void put(Free buffer);
  void note(std::unique_ptr<c10::Event>& event) const;
  bool can_note(std::unique_ptr<c10::Event>& event) const;

  using Key = std::pair<at::ScalarType, std::vector<std::int64_t>>;
  at::Device device_;
  Meter& meter_;
  std::int64_t computes_ = 0;
  bool shapes_change_ = false;
  std::map<Key, std::deque<Free>> free_;  ///< each in the order in which they were given back
};

}  // namespace ostinato
