// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/backward.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "plugin/executor/split_backward.h"

namespace ostinato {
namespace {

/// Two outputs of one product, and how often a gradient has come through it.
struct Two {
  at::Tensor weight = at::full({1}, 0.1).requires_grad_(true);
  at::Tensor shared = weight * 1.1F;
  std::vector<at::Tensor> outputs = {shared * 0.3F, shared * 0.7F};
  int passed = 0;

  Two() {
    shared.register_hook([this](const at::Tensor&) { ++passed; });
  }
};

std::vector<at::Tensor> ones() { return {at::ones({1}), at::ones({1})}; }

TEST(BackwardRoots, RunAllAtOnce) {
  Two two;
  BackwardRoots(two.outputs).run(ones());
  EXPECT_EQ(two.passed, 1);
  EXPECT_TRUE(two.weight.grad().defined());
}

TEST(BackwardRoots, RunOneByOneAsTensorBackwardDoes) {
  Two expected, two;
  expected.outputs[0].backward(ones()[0], /*retain_graph=*/true);
  expected.outputs[1].backward(ones()[1]);
  BackwardRoots(two.outputs, /*one_by_one=*/true).run(ones());
  EXPECT_EQ(two.passed, 2);
  EXPECT_TRUE(at::equal(two.weight.grad(), expected.weight.grad()));
}

TEST(BackwardRoots, RunOneByOneWhereASplitOneHasToRunWhole) {
  Two two;
  SplitBackward halves(BackwardRoots(two.outputs, /*one_by_one=*/true), {}, /*may_split=*/false);
  halves.run_inputs(ones());
  EXPECT_EQ(two.passed, 2);
}

}  // namespace
}  // namespace ostinato
