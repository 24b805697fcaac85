// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a message between two stages looks like, so that its receiver can have buffers ready.
//
//   MessageSpec spec = describe(outputs);      // on the sender; announced once, encoded in one small tensor
//   MessageSpec back = gradient_of(spec);      // both sides know it without a word
//
// A tensor arrives laid out as it was sent where its bytes lie side by side, whatever the order of its
// dimensions in memory: kernels may add in another order over other strides. One with gaps, or expanded,
// arrives contiguous. The bytes of a message lie in that order; a buffer for it is contiguous all the same.
//
// Wire format of an announcement: kHeaderLength int64: count, then for each tensor: flags, dtype, dimensions,
// sizes..., and its order where it has one.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ostinato {

/// Dimensions from the outermost in memory to the innermost; empty: 0, 1, 2, ..., as in a contiguous tensor.
using Order = std::vector<std::int64_t>;

struct TensorSpec {
  bool present = false;        ///< false: None, or a gradient that does not exist; nothing travels
  bool requires_grad = false;  ///< of the sender's tensor: a gradient comes back
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes{};
  Order order{};  ///< not of gradients: they have their own

  std::int64_t bytes() const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

using MessageSpec = std::vector<TensorSpec>;

MessageSpec describe(const std::vector<at::Tensor>& tensors);

/// Does `tensors` look like that, in whatever order? Without building a second spec: it is asked for every
/// message.
bool matches(const MessageSpec& spec, const std::vector<at::Tensor>& tensors);

/// How a tensor lies in memory; empty where it has gaps or repeats itself, too.
Order order_of(const at::Tensor& tensor);

/// A contiguous tensor of the same sizes, with the bytes of `tensor` as they lie in `order`: on the same
/// bytes, where they lie so already. An order of another number of dimensions counts as none, here and in
/// as_sent().
at::Tensor laid_out(const at::Tensor& tensor, const Order& order);

/// The opposite: what laid_out() was given, on the bytes of `memory`.
at::Tensor as_sent(const at::Tensor& memory, const Order& order);

/// The gradients of a message: only of tensors that require one.
MessageSpec gradient_of(const MessageSpec& spec);

/// "(float32[2, 16], int64[2], None)"
std::string to_string(const MessageSpec& spec);

inline constexpr std::int64_t kHeaderLength = 1024;

/// An announcement of kHeaderLength int64 on the CPU. Throws ExecutionError where the message does not fit in
/// it.
at::Tensor encode(const MessageSpec& spec);
MessageSpec decode(const at::Tensor& header);

}  // namespace ostinato
