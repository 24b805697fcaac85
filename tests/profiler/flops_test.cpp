// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/flops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <map>

#include "profiler/operators/operator_rows.h"

namespace ostinato {
namespace {

/// By name, of the operators that have any, summed over forward and backward.
std::map<std::string, std::int64_t> counted(const std::function<at::Tensor()>& forward,
                                            bool backward = false) {
  OperatorRecorder recorder;
  recorder.start({.flops = true});
  recorder.begin_pass(0, "forward");
  const at::Tensor out = forward();
  recorder.begin_pass(0, "backward");
  if (backward) torch::autograd::backward({out}, {at::ones_like(out)});
  recorder.stop();
  std::map<std::string, std::int64_t> flops;
  for (const OperatorCost& row : operator_rows(recorder)) {
    if (row.flops) flops[row.name] += *row.flops;
  }
  return flops;
}

using Counts = std::map<std::string, std::int64_t>;

TEST(Flops, OfProductsOfMatrices) {
  const at::Tensor a = at::ones({2, 3}), b = at::ones({3, 5}), many = at::ones({4, 2, 3}),
                   bias = at::ones({5});
  EXPECT_EQ(counted([&] { return at::mm(a, b); }), (Counts{{"aten::mm", 2 * 2 * 3 * 5}}));
  EXPECT_EQ(counted([&] { return at::addmm(bias, a, b); }), (Counts{{"aten::addmm", 2 * 2 * 3 * 5}}));
  EXPECT_EQ(counted([&] {
              return at::bmm(many, at::ones({4, 3, 5}));
            }),
            (Counts{{"aten::bmm", 4 * 2 * 2 * 3 * 5}}));
  EXPECT_EQ(counted([&] { return at::mv(a, at::ones({3})); }), (Counts{{"aten::mv", 2 * 2 * 3}}));
}

TEST(Flops, OfWhatIsCalledAreCountedOnce) {
  const at::Tensor x = at::ones({2, 6, 3}), weight = at::ones({5, 3});
  const Counts counts = counted([&] { return at::linear(x, weight); });  // linear calls mm, through matmul
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(counts.begin()->second, 2 * 2 * 6 * 3 * 5);
}

TEST(Flops, OfAConvolutionAndItsGradients) {
  const at::Tensor x = torch::autograd::make_variable(at::ones({2, 3, 8, 8}), true);
  const at::Tensor weight = torch::autograd::make_variable(at::ones({4, 3, 3, 3}), true);
  const Counts counts = counted([&] { return at::conv2d(x, weight, {}, 2, 1); }, /*backward=*/true);
  const std::int64_t forward = 2 * 2 * 4 * (4 * 4) * (3 * 3 * 3);  // 4 by 4 positions are left
  EXPECT_EQ(counts, (Counts{{"aten::convolution", forward}, {"aten::convolution_backward", 2 * forward}}));
}

TEST(Flops, OfAttention) {
  const auto heads = [](std::int64_t tokens) {
    return torch::autograd::make_variable(at::ones({2, 4, tokens, 8}), true);
  };
  const at::Tensor query = heads(16), key = heads(32), value = heads(32);
  const Counts counts =
      counted([&] { return at::scaled_dot_product_attention(query, key, value); }, /*backward=*/true);
  std::int64_t all = 0;
  for (const auto& [name, flops] : counts) all += flops;
  const std::int64_t product = 2 * (2 * 4) * 16 * 32 * 8;
  EXPECT_EQ(all, (2 + 5) * product);
}

TEST(Flops, AreUnknownElsewhere) {
  EXPECT_EQ(counted([] { return at::tanh(at::ones({3})); }), Counts{});
  EXPECT_EQ(flops_of("aten::mm", {}), std::nullopt);
}

}  // namespace
}  // namespace ostinato
