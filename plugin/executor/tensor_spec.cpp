// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/tensor_spec.h"

#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "plugin/executor/error.h"

namespace ostinato {
namespace {

constexpr std::int64_t kPresent = 1;
constexpr std::int64_t kRequiresGrad = 2;
constexpr std::int64_t kOrdered = 4;

bool orders(const at::Tensor& tensor, const Order& order) {
  return !order.empty() && static_cast<std::int64_t>(order.size()) == tensor.dim();
}

}  // namespace

std::int64_t TensorSpec::bytes() const {
  if (!present) return 0;
  std::int64_t count = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

MessageSpec describe(const std::vector<at::Tensor>& tensors) {
  MessageSpec spec;
  for (const at::Tensor& t : tensors) {
    TensorSpec& s = spec.emplace_back();
    if (!t.defined()) continue;
    s = {.present = true,
         .requires_grad = t.requires_grad(),
         .dtype = t.scalar_type(),
         .sizes = t.sizes().vec(),
         .order = order_of(t)};
  }
  return spec;
}

bool matches(const MessageSpec& spec, const std::vector<at::Tensor>& tensors) {
  if (spec.size() != tensors.size()) return false;
  for (std::size_t i = 0; i < spec.size(); ++i) {
    const TensorSpec& s = spec[i];
    const at::Tensor& t = tensors[i];
    if (s.present != t.defined()) return false;
    if (s.present && ((t.requires_grad() && !s.requires_grad) || s.dtype != t.scalar_type() ||
                      t.sizes() != at::IntArrayRef(s.sizes))) {
      return false;
    }
  }
  return true;
}

Order order_of(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return {};
  Order order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  // By sizes, too: kernels look at the strides of dimensions of size 1 (channels last, of one pixel).
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::int64_t dimension) {
    return std::pair(tensor.stride(dimension), tensor.size(dimension));
  });
  return std::ranges::is_sorted(order) ? Order{} : order;
}

at::Tensor laid_out(const at::Tensor& tensor, const Order& order) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  if (!orders(plain, order)) return plain.contiguous();
  return plain.permute(order).contiguous().view(plain.sizes());
}

at::Tensor as_sent(const at::Tensor& memory, const Order& order) {
  if (!orders(memory, order)) return memory;
  std::vector<std::int64_t> sizes, back(order.size());
  for (std::size_t d = 0; d < order.size(); ++d) {
    sizes.push_back(memory.size(order[d]));
    back[order[d]] = static_cast<std::int64_t>(d);
  }
  return memory.view(sizes).permute(back);
}

MessageSpec gradient_of(const MessageSpec& spec) {
  MessageSpec gradients = spec;
  for (TensorSpec& s : gradients) {
    if (!s.requires_grad) s = {};
    s.requires_grad = false;
    s.order.clear();
  }
  return gradients;
}

std::string to_string(const MessageSpec& spec) {
  std::string text = "(";
  for (const TensorSpec& s : spec) {
    if (text.size() > 1) text += ", ";
    if (!s.present) {
      text += "None";
      continue;
    }
    text += std::string(c10::toString(s.dtype)) + "[";
    for (std::size_t d = 0; d < s.sizes.size(); ++d) text += (d ? ", " : "") + std::to_string(s.sizes[d]);
    text += s.requires_grad ? "] with gradient" : "]";
  }
  return text + ")";
}

at::Tensor encode(const MessageSpec& spec) {
  std::vector<std::int64_t> words{static_cast<std::int64_t>(spec.size())};
  for (const TensorSpec& s : spec) {
    words.push_back((s.present ? kPresent : 0) | (s.requires_grad ? kRequiresGrad : 0) |
                    (s.order.empty() ? 0 : kOrdered));
    words.push_back(static_cast<std::int64_t>(s.dtype));
    words.push_back(static_cast<std::int64_t>(s.sizes.size()));
    words.insert(words.end(), s.sizes.begin(), s.sizes.end());
    words.insert(words.end(), s.order.begin(), s.order.end());
  }
  if (words.size() > kHeaderLength) {
    throw ExecutionError("a stage has " + std::to_string(spec.size()) +
                         " outputs, more than one announcement holds: return fewer or flatter tensors");
  }
  at::Tensor header = at::zeros({kHeaderLength}, at::kLong);
  std::copy(words.begin(), words.end(), header.mutable_data_ptr<std::int64_t>());
  return header;
}

MessageSpec decode(const at::Tensor& header) {
  const std::int64_t* word = header.const_data_ptr<std::int64_t>();
  MessageSpec spec(*word++);
  for (TensorSpec& s : spec) {
    const std::int64_t flags = *word++;
    s.present = (flags & kPresent) != 0;
    s.requires_grad = (flags & kRequiresGrad) != 0;
    s.dtype = static_cast<at::ScalarType>(*word++);
    const std::int64_t dimensions = *word++;
    s.sizes.assign(word, word + dimensions);
    word += dimensions;
    if ((flags & kOrdered) == 0) continue;
    s.order.assign(word, word + dimensions);
    word += dimensions;
  }
  return spec;
}

}  // namespace ostinato
