// SPDX-License-Identifier: Apache-2.0
// The walk over autograd's graph that the profiler and the executor share, on graphs small enough to see
// through.

#include "profiler/autograd/backward_halves.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

namespace ostinato {
namespace {

using torch::autograd::edge_list;

edge_list edges_of(const std::vector<at::Tensor>& tensors) {
  edge_list edges;
  for (const at::Tensor& tensor : tensors) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  return edges;
}

at::Tensor leaf(double value) { return at::full({2}, value).requires_grad_(true); }

bool equals(const at::Tensor& tensor, double value) { return at::equal(tensor, at::full({2}, value)); }

TEST(BackwardHalves, InputsFirstAndWeightsLater) {
  const at::Tensor x = leaf(2), v = leaf(3), w = leaf(5);
  BackwardHalves halves(edges_of({x * v * w.exp().log()}), edges_of({x}));
  EXPECT_TRUE(halves.can_split());
  const auto found = halves.run_inputs({at::ones({2})});
  ASSERT_EQ(found.size(), 1);
  EXPECT_TRUE(at::allclose(found[0], at::full({2}, 15.0)));
  EXPECT_FALSE(x.grad().defined());  // handed out, not added up
  EXPECT_FALSE(v.grad().defined() || w.grad().defined());
  halves.cut();
  halves.run_weights();
  EXPECT_TRUE(at::allclose(v.grad(), at::full({2}, 10.0)));
  EXPECT_TRUE(at::allclose(w.grad(), at::full({2}, 6.0)));
}

TEST(BackwardHalves, ARootWithoutInputsWaitsWithItsGradient) {
  const at::Tensor x = leaf(2), unused = leaf(7), w = leaf(5);
  BackwardHalves halves(edges_of({x * 2, w * 3}), edges_of({x, unused}));
  const auto found = halves.run_inputs({at::ones({2}), at::full({2}, 4.0)});
  EXPECT_TRUE(equals(found[0], 2));
  EXPECT_FALSE(found[1].defined());
  halves.cut();
  EXPECT_FALSE(w.grad().defined());
  halves.run_weights();
  EXPECT_TRUE(equals(w.grad(), 12));
}

/// The product with the mask saved it for the input's gradient; that with the weight saved what the weight's
/// needs.
TEST(BackwardHalves, CutReleasesWhatTheSecondHalfDoesNotNeed) {
  const at::Tensor x = leaf(2), w = leaf(5);
  at::Tensor mask = at::full({2}, 3.0);
  const c10::weak_intrusive_ptr<c10::TensorImpl> of_mask(mask.getIntrusivePtr());
  BackwardHalves halves(edges_of({x.exp() * w * mask}), edges_of({x}));
  mask.reset();
  halves.run_inputs({at::ones({2})});
  EXPECT_FALSE(of_mask.expired());
  halves.cut();
  EXPECT_TRUE(of_mask.expired());
  halves.run_weights();
  EXPECT_TRUE(at::allclose(w.grad(), at::full({2}, 3.0).mul(at::full({2}, 2.0).exp())));
}

/// torch's own backward of it writes to address 0 where the input's gradient is not asked for.
TEST(BackwardHalves, AGroupNormInChannelsLastIsSplit) {
  const at::Tensor x =
      at::randn({2, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true);
  const at::Tensor weight = at::ones({4}).requires_grad_(true), bias = at::zeros({4}).requires_grad_(true);
  const at::Tensor given = at::randn_like(x);
  const at::Tensor y = at::group_norm(x, 2, weight, bias);
  const auto whole = torch::autograd::grad({y}, {x, weight, bias}, {given}, /*retain_graph=*/true);
  BackwardHalves halves(edges_of({y}), edges_of({x}));
  EXPECT_TRUE(at::equal(halves.run_inputs({given})[0], whole[0]));
  halves.cut();
  halves.run_weights();
  EXPECT_TRUE(at::equal(weight.grad(), whole[1]));
  EXPECT_TRUE(at::equal(bias.grad(), whole[2]));
}

/// a * b, which scales what it saved in place and counts how often.
struct Spent : torch::autograd::Function<Spent> {
  static inline int backwards = 0;

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& a,
                            const at::Tensor& b) {
    context->save_for_backward({a.clone(), b.clone()});
    return a * b;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    ++backwards;
    const auto saved = context->get_saved_variables();
    return {saved[1].mul_(given[0]), saved[0].mul_(given[0])};
  }
};

/// The weight is behind a computation of its own, and also that of an operator of torch's.
TEST(BackwardHalves, AFunctionOnBothWaysRunsOnceInTheFirstHalf) {
  const at::Tensor x = leaf(2), w = leaf(3);
  Spent::backwards = 0;
  BackwardHalves halves(edges_of({Spent::apply(x * 2, w * w) * w}), edges_of({x}));
  EXPECT_TRUE(halves.has_weight_half());
  EXPECT_TRUE(equals(halves.run_inputs({at::full({2}, 5.0)})[0], 270));  // 5 * w * w^2 * 2
  halves.cut();
  EXPECT_FALSE(w.grad().defined());
  halves.run_weights();
  EXPECT_TRUE(equals(w.grad(), 540));  // 5 * 2x * 3w^2
  EXPECT_EQ(Spent::backwards, 1);
}

TEST(BackwardHalves, AFunctionOnBothWaysLetsGoOfWhatItSaved) {
  const at::Tensor x = leaf(2), w = leaf(3);
  BackwardHalves halves(edges_of({Spent::apply(x, w)}), edges_of({x}));
  EXPECT_TRUE(equals(halves.run_inputs({at::full({2}, 5.0)})[0], 15));
  halves.cut();
  halves.run_weights();
  EXPECT_TRUE(equals(w.grad(), 10));
}

/// Of a weight root, which would run in both halves, and of the operator that ran first.
TEST(BackwardHalves, HooksAreCalledOnce) {
  const at::Tensor x = leaf(2), w = leaf(3), table = leaf(5);
  for (const bool has_inputs : {true, false}) {
    int calls = 0;
    const at::Tensor rows = has_inputs ? x * w : table * w;
    rows.register_hook([&](const at::Tensor& gradient) { return ++calls, gradient * 0.5; });
    rows.retain_grad();
    w.mutable_grad().reset();
    BackwardHalves halves(edges_of({rows.exp().log()}),
                          has_inputs ? edges_of({x}) : torch::autograd::edge_list());
    const auto found = halves.run_inputs({at::full({2}, 4.0)});
    halves.cut();
    halves.run_weights();
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(at::allclose(rows.grad(), at::full({2}, 2.0)));
    EXPECT_TRUE(at::allclose(w.grad(), at::full({2}, has_inputs ? 4.0 : 10.0)));
    if (has_inputs) {
      EXPECT_TRUE(at::allclose(found.at(0), at::full({2}, 6.0)));
    }
  }
  EXPECT_TRUE(at::allclose(table.grad(), at::full({2}, 6.0)));
}

TEST(BackwardHalves, WithoutInputsAllBehindTheFirstOperatorIsInTheFirstHalf) {
  const at::Tensor v = leaf(3), w = leaf(5);
  at::Tensor mask = at::full({2}, 2.0);
  const c10::weak_intrusive_ptr<c10::TensorImpl> of_mask(mask.getIntrusivePtr());
  BackwardHalves halves(edges_of({v * 2 * w * mask}), {});
  mask.reset();
  EXPECT_TRUE(halves.run_inputs({at::ones({2})}).empty());
  halves.cut();
  EXPECT_TRUE(of_mask.expired());
  EXPECT_FALSE(v.grad().defined() || w.grad().defined());
  halves.run_weights();
  EXPECT_TRUE(equals(v.grad(), 20));
  EXPECT_TRUE(equals(w.grad(), 12));
}

/// What micro-batches share, made before all of them, is whole until a second half has run it.
TEST(BackwardHalves, AGraphFromBeforeIsNotTakenApart) {
  const at::Tensor v = leaf(3), w = leaf(2);
  const at::Tensor shared = v.exp().view({1, 2});  // a view, which saves nothing that would say it is gone
  const std::uint64_t first = at::sequence_number::peek();
  BackwardHalves halves(edges_of({(shared.view({2}).log() * w).exp().log()}), {}, first);
  halves.run_inputs({at::ones({2})});
  halves.cut();
  EXPECT_TRUE(shared.grad_fn()->next_edge(0).is_valid());
  halves.run_weights();
  EXPECT_TRUE(at::allclose(v.grad(), at::full({2}, 2.0)));
  EXPECT_TRUE(at::allclose(w.grad(), at::full({2}, 3.0)));
}

}  // namespace
}  // namespace ostinato
