// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/split_backward.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace ostinato {
namespace {

/// Two linear layers with a weight that is itself computed, a bias that is used twice, and a second output.
struct Model {
  at::Tensor w1, w2, scale, bias;

  Model() {
    at::manual_seed(5);
    for (at::Tensor* t : {&w1, &w2}) *t = at::randn({6, 6}).requires_grad_(true);
    for (at::Tensor* t : {&scale, &bias}) *t = at::randn({6}).requires_grad_(true);
  }

  std::vector<at::Tensor> run(const at::Tensor& x) const {
    const at::Tensor y = at::tanh(at::linear(x, w1, bias));
    return {at::linear(y, w2 * scale.exp(), bias), y.sum()};
  }

  std::vector<at::Tensor> gradients() const { return {w1.grad(), w2.grad(), scale.grad(), bias.grad()}; }
};

at::Tensor input() {
  at::manual_seed(9);
  return at::randn({3, 6}).requires_grad_(true);
}

std::vector<at::Tensor> output_gradients() {
  at::manual_seed(11);
  return {at::randn({3, 6}), at::randn({})};
}

/// What the graph saved for itself, watched from outside.
struct Watched {
  c10::weak_intrusive_ptr<c10::TensorImpl> impl;
  explicit Watched(const at::Tensor& t) : impl(t.getIntrusivePtr()) {}
  bool alive() const { return !impl.expired(); }
};

TEST(SplitBackward, HalvesAddUpToTheWhole) {
  const Model whole, split;
  const at::Tensor x = input(), z = input();
  BackwardRoots(whole.run(x)).run(output_gradients());

  SplitBackward halves(BackwardRoots(split.run(z)), {z});
  EXPECT_FALSE(halves.whole());
  halves.run_inputs(output_gradients());
  EXPECT_TRUE(at::equal(z.grad(), x.grad()));
  for (const at::Tensor& gradient : split.gradients()) EXPECT_FALSE(gradient.defined());
  halves.run_weights();
  const auto expected = whole.gradients(), got = split.gradients();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(got[i], expected[i])) << i;
  // Only the bias is a sum of two, in an order of the engine's own.
  EXPECT_TRUE(at::equal(got[0], expected[0]));
}

TEST(SplitBackward, SecondRunAddsUp) {
  const Model model;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor z = input();
    SplitBackward halves(BackwardRoots(model.run(z)), {z});
    halves.run_inputs(output_gradients());
    halves.run_weights();
  }
  const Model once;
  const at::Tensor z = input();
  BackwardRoots(once.run(z)).run(output_gradients());
  EXPECT_TRUE(at::allclose(model.w1.grad(), once.w1.grad() * 2));
}

/// A first stage takes no gradient back, and frees in its first half all the same what its weights do not
/// need.
TEST(SplitBackward, WithoutInputsTheFirstOperatorTakesTheirPlace) {
  const Model model, whole;
  const at::Tensor x = input().detach();
  at::Tensor mask = at::rand({3, 6});  // saved by a product behind the first operator
  const Watched of_mask(mask);
  auto outputs = model.run(x);
  outputs[0] = outputs[0] * mask;
  SplitBackward halves(BackwardRoots(outputs), {x, at::Tensor()});
  auto expected = whole.run(x);
  expected[0] = expected[0] * mask;
  outputs.clear();
  mask.reset();
  halves.run_inputs(output_gradients());
  for (const at::Tensor& gradient : model.gradients()) EXPECT_FALSE(gradient.defined());
  BackwardRoots(expected).run(output_gradients());
  expected.clear();
  EXPECT_FALSE(of_mask.alive());
  halves.run_weights();
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(at::allclose(model.gradients()[i], whole.gradients()[i])) << i;
  EXPECT_TRUE(at::equal(model.w1.grad(), whole.w1.grad()));
}

TEST(SplitBackward, OneOperatorWithoutInputsRunsInTheSecondHalf) {
  const at::Tensor w = at::ones({2}).requires_grad_(true);
  SplitBackward halves(BackwardRoots({w * 3}), {});
  halves.run_inputs({at::ones({2})});
  EXPECT_FALSE(w.grad().defined());
  halves.run_weights();
  EXPECT_TRUE(at::equal(w.grad(), at::full({2}, 3.0)));
}

TEST(SplitBackward, RunsWholeInTheFirstHalfWhereItMayNotSplit) {
  const Model model, whole;
  const at::Tensor x = input(), z = input();
  SplitBackward halves(BackwardRoots(model.run(z)), {z}, /*may_split=*/false);
  EXPECT_TRUE(halves.whole());
  halves.run_inputs(output_gradients());
  BackwardRoots(whole.run(x)).run(output_gradients());
  EXPECT_TRUE(at::equal(z.grad(), x.grad()));
  EXPECT_TRUE(at::equal(model.w1.grad(), whole.w1.grad()));
  halves.run_weights();
  EXPECT_TRUE(at::equal(model.w1.grad(), whole.w1.grad()));
}

TEST(SplitBackward, OutputsThatLeadToNoInputRunInTheSecondHalf) {
  const at::Tensor w = at::ones({2}).requires_grad_(true), x = at::ones({2}).requires_grad_(true);
  SplitBackward halves(BackwardRoots({x * 2, w * 3}), {x});
  halves.run_inputs({at::ones({2}), at::ones({2})});
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 2.0)));
  EXPECT_FALSE(w.grad().defined());
  halves.run_weights();
  EXPECT_TRUE(at::equal(w.grad(), at::full({2}, 3.0)));
}

TEST(SplitBackward, UnusedInputHasNoGradient) {
  const Model model;
  const at::Tensor z = input(), unused = input();
  SplitBackward halves(BackwardRoots(model.run(z)), {z, unused});
  halves.run_inputs(output_gradients());
  EXPECT_TRUE(z.grad().defined());
  EXPECT_FALSE(unused.grad().defined());
  halves.run_weights();
}

TEST(SplitBackward, FreesWhatTheWeightsDoNotNeedBetweenTheHalves) {
  const at::Tensor w = at::randn({6, 6}).requires_grad_(true);
  const at::Tensor z = input();
  at::Tensor mask = at::randn({3, 6});        // saved by the product, needed for the input's gradient only
  at::Tensor operand = at::relu(z.detach());  // a stand-in of what stays: saved by the linear for its weight
  operand.requires_grad_(true);
  const Watched of_mask(mask), of_operand(operand);
  std::vector<at::Tensor> out{at::linear(operand, w) * mask};
  SplitBackward halves(BackwardRoots(out), {operand});
  out.clear();
  mask.reset();
  EXPECT_TRUE(of_mask.alive());
  halves.run_inputs({at::ones({3, 6})});
  operand.reset();
  EXPECT_FALSE(of_mask.alive());
  EXPECT_TRUE(of_operand.alive());
  halves.run_weights();
  EXPECT_FALSE(of_operand.alive());
}

}  // namespace
}  // namespace ostinato
