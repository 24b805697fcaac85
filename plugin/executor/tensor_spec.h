// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a message between two stages looks like, so that its receiver can have buffers ready.
//
//   MessageSpec spec = describe(outputs);      // on the sender; announced once, encoded in one small tensor
//   MessageSpec back = gradient_of(spec);      // both sides know it without a word
//
// Wire format of an announcement: kHeaderLength int64: count, then for each tensor: flags, dtype, dimensions,
// sizes...

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ostinato {

struct TensorSpec {
  bool present = false;        ///< false: None, or a gradient that does not exist; nothing travels
  bool requires_grad = false;  ///< of the sender's tensor: a gradient comes back
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes{};

  std::int64_t bytes() const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

using MessageSpec = std::vector<TensorSpec>;

MessageSpec describe(const std::vector<at::Tensor>& tensors);

/// Does `tensors` look exactly like that? Without building a second spec: it is asked for every message.
bool matches(const MessageSpec& spec, const std::vector<at::Tensor>& tensors);

/// The gradients of a message: only of tensors that require one.
MessageSpec gradient_of(const MessageSpec& spec);

/// "(float32[2, 16], int64[2], None)"
std::string to_string(const MessageSpec& spec);

inline constexpr std::int64_t kHeaderLength = 512;

/// An announcement of kHeaderLength int64 on the CPU. Throws ExecutionError where the message does not fit in
/// it.
at::Tensor encode(const MessageSpec& spec);
MessageSpec decode(const at::Tensor& header);

}  // namespace ostinato
