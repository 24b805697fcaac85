// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/flops.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <numeric>
#include <unordered_map>

namespace ostinato {
namespace {

using Arguments = c10::ArrayRef<const c10::IValue>;
using Sizes = c10::IntArrayRef;
using Formula = std::optional<std::int64_t> (*)(Arguments);

/// Empty where the argument is not there or no tensor.
Sizes sizes(Arguments arguments, std::size_t at) {
  if (at >= arguments.size() || !arguments[at].isTensor()) return {};
  const at::Tensor& tensor = arguments[at].toTensor();
  return tensor.defined() ? tensor.sizes() : Sizes{};
}

std::int64_t product(Sizes sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// Of [..., m, k] or [k] with [..., k, n] or [k]: each element of the first is used once for each column.
template <std::size_t kFirst>
std::optional<std::int64_t> matrices(Arguments arguments) {
  const Sizes a = sizes(arguments, kFirst), b = sizes(arguments, kFirst + 1);
  if (a.empty() || b.empty()) return std::nullopt;
  return 2 * product(a) * (b.size() > 1 ? b.back() : 1);
}

/// Rows of the input with a weight of [outputs, inputs].
std::optional<std::int64_t> linear(Arguments arguments) {
  const Sizes input = sizes(arguments, 0), weight = sizes(arguments, 1);
  if (input.empty() || weight.empty()) return std::nullopt;
  return 2 * product(input) * weight.front();
}

/// Each output position of a convolution (each input position of a transposed one) meets the whole weight
/// once.
std::int64_t convolved(Sizes positions, Sizes weight) {
  return 2 * positions.front() * product(positions.slice(2)) * product(weight);
}

/// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
std::optional<std::int64_t> convolution(Arguments arguments) {
  const Sizes input = sizes(arguments, 0), weight = sizes(arguments, 1);
  if (arguments.size() < 9 || input.size() < 3 || input.size() != weight.size()) return std::nullopt;
  if (arguments[6].toBool()) return convolved(input, weight);
  const auto stride = arguments[3].toIntVector(), padding = arguments[4].toIntVector();
  const auto dilation = arguments[5].toIntVector();
  std::vector<std::int64_t> output = input.vec();
  for (std::size_t d = 2; d < output.size(); ++d) {
    const auto of = [d](const std::vector<std::int64_t>& each) { return each[each.size() == 1 ? 0 : d - 2]; };
    output[d] = (input[d] + 2 * of(padding) - of(dilation) * (weight[d] - 1) - 1) / of(stride) + 1;
  }
  return convolved(output, weight);
}

/// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
/// mask)
std::optional<std::int64_t> convolution_backward(Arguments arguments) {
  const Sizes output = sizes(arguments, 0), input = sizes(arguments, 1), weight = sizes(arguments, 2);
  if (arguments.size() < 11 || output.size() < 3 || input.size() < 3 || weight.empty()) return std::nullopt;
  const auto wanted = arguments[10].toBoolList();
  const std::int64_t gradients = (wanted.get(0) ? 1 : 0) + (wanted.get(1) ? 1 : 0);  // of input and weight
  return gradients * convolved(arguments[7].toBool() ? input : output, weight);
}

/// Scores and their product with the values: [..., queries, d] with [..., keys, d] and [..., keys, e].
template <std::size_t kQuery, int kScores, int kValues>
std::optional<std::int64_t> attention(Arguments arguments) {
  const Sizes query = sizes(arguments, kQuery), key = sizes(arguments, kQuery + 1);
  const Sizes value = sizes(arguments, kQuery + 2);
  if (query.size() < 3 || key.size() < 3 || value.size() < 3) return std::nullopt;
  const std::int64_t scores = product(query.slice(0, query.size() - 1)) * key[key.size() - 2];
  return 2 * scores * (kScores * query.back() + kValues * value.back());
}

constexpr Formula kForward = attention<0, 1, 1>;
/// Scores again, then gradients of queries and keys; of scores and values.
constexpr Formula kBackward = attention<1, 3, 2>;

/// Never destroyed: at the end of a process torch's threads may still run operators.
const std::unordered_map<std::string_view, Formula>& formulas() {
  static const auto& known = *new std::unordered_map<std::string_view, Formula>{
      {"aten::mm", matrices<0>},
      {"aten::bmm", matrices<0>},
      {"aten::mv", matrices<0>},
      {"aten::dot", matrices<0>},
      {"aten::addmm", matrices<1>},
      {"aten::addmv", matrices<1>},
      {"aten::_addmm_activation", matrices<1>},
      {"aten::baddbmm", matrices<1>},
      {"aten::mkldnn_linear", linear},
      {"mkldnn::_linear_pointwise", linear},
      {"aten::convolution", convolution},
      {"aten::convolution_overrideable", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", kForward},
      {"aten::_scaled_dot_product_flash_attention", kForward},
      {"aten::_scaled_dot_product_efficient_attention", kForward},
      {"aten::_scaled_dot_product_cudnn_attention", kForward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", kBackward},
      {"aten::_scaled_dot_product_flash_attention_backward", kBackward},
      {"aten::_scaled_dot_product_efficient_attention_backward", kBackward},
      {"aten::_scaled_dot_product_cudnn_attention_backward", kBackward},
  };
  return known;
}

}  // namespace

std::optional<std::int64_t> flops_of(std::string_view name, Arguments arguments) {
  const auto formula = formulas().find(name);
  return formula == formulas().end() ? std::nullopt : formula->second(arguments);
}

}  // namespace ostinato
