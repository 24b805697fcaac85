// SPDX-License-Identifier: Apache-2.0
// What a stage holds between its forward and its backward.

#include "plugin/executor/stage_run.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "plugin/executor/error.h"

namespace ostinato {
namespace {

class Module : public StageModule {
 public:
  explicit Module(std::function<at::Tensor(const at::Tensor&)> function) : function_(std::move(function)) {}

  std::vector<at::Tensor> forward(int /*micro_batch*/, const std::vector<at::Tensor>& inputs) override {
    return {function_(inputs[0])};
  }

 private:
  std::function<at::Tensor(const at::Tensor&)> function_;
};

ProgramStage middle() {
  ProgramStage stage;
  stage.name = "middle";
  stage.inputs = {0};
  stage.outputs = {2};
  stage.has_backward = true;
  return stage;
}

/// Buffers of one shape, each filled with its number.
class Peer {
 public:
  Message send() {
    std::vector<Buffer> buffers;
    buffers.push_back(pool_.take(kSpec));
    buffers[0].tensor().fill_(++sent_);
    return Message::from_peer(std::move(buffers));
  }

  std::int64_t buffers() const { return meter_.now() / kSpec.bytes(); }

 private:
  inline static const TensorSpec kSpec{
      .present = true, .requires_grad = true, .dtype = at::kFloat, .sizes = {3}};
  Meter meter_;
  BufferPool pool_{at::kCPU, meter_};
  int sent_ = 0;
};

std::vector<Message> one(Message message) {
  std::vector<Message> messages;
  messages.push_back(std::move(message));
  return messages;
}

std::vector<Message> ones() { return one(Message::from_here({at::ones({3})})); }

TEST(StageRun, AnInputThatNoOperatorNeedsGivesItsBufferToTheNextMessage) {
  const ProgramStage stage = middle();
  Module doubled([](const at::Tensor& x) { return x * 2; });
  Peer peer;
  StageRun run(stage, 2, doubled);
  EXPECT_TRUE(at::equal(run.forward(0, one(peer.send()))[0], at::full({3}, 2.0)));
  EXPECT_TRUE(at::equal(run.forward(1, one(peer.send()))[0], at::full({3}, 4.0)));
  EXPECT_EQ(peer.buffers(), 1);
  for (const int m : {0, 1}) EXPECT_TRUE(at::equal(run.backward(m, ones())[0][0], at::full({3}, 2.0)));
}

TEST(StageRun, AnInputThatIsNeededStaysUntilTheBackward) {
  const ProgramStage stage = middle();
  Module squared([](const at::Tensor& x) { return x * x; });
  Peer peer;
  StageRun run(stage, 3, squared);
  for (const int m : {0, 1}) run.forward(m, one(peer.send()));
  EXPECT_EQ(peer.buffers(), 2);
  EXPECT_TRUE(at::equal(run.backward(0, ones())[0][0], at::full({3}, 2.0)));
  run.forward(2, one(peer.send()));
  EXPECT_EQ(peer.buffers(), 2);
  EXPECT_TRUE(at::equal(run.backward_input(1, ones())[0][0], at::full({3}, 4.0)));
  run.backward_weight(1);
  EXPECT_TRUE(at::equal(run.backward(2, ones())[0][0], at::full({3}, 6.0)));
}

TEST(StageRun, AGradientLiesInMemoryAsTheGraphMakesIt) {
  const ProgramStage stage = middle();
  const auto strides_of_gradient = [&](const at::Tensor& input, bool split,
                                       const std::function<at::Tensor(const at::Tensor&)>& function) {
    Module module(function);
    StageRun run(stage, 1, module);
    const at::Tensor made = run.forward(0, one(Message::from_here({at::Tensor(input).requires_grad_()})))[0];
    const auto ones = [&] { return one(Message::from_here({at::ones(made.sizes())})); };
    const at::Tensor gradient = (split ? run.backward_input(0, ones()) : run.backward(0, ones()))[0][0];
    EXPECT_TRUE(at::equal(gradient, at::full({3, 2}, 2.0)));
    return gradient.strides().vec();
  };
  const auto rows = [](const at::Tensor& x) { return x.contiguous() * 2; };
  const auto columns = [](const at::Tensor& x) { return x.t().contiguous() * 2; };
  for (const bool split : {false, true}) {
    for (const at::Tensor& input : {at::rand({2, 3}).t(), at::rand({3, 2})}) {
      EXPECT_EQ(strides_of_gradient(input, split, rows), (std::vector<std::int64_t>{2, 1}));
      EXPECT_EQ(strides_of_gradient(input, split, columns), (std::vector<std::int64_t>{1, 3}));
    }
  }
}

TEST(StageRun, LaterGradientsOfAWeightAreNotAddedIntoThatOfAnInput) {
  const ProgramStage stage = middle();
  const auto by = [](const at::Tensor& weight, const at::Tensor& x) {
    return (x.unsqueeze(0) + weight.unsqueeze(0)).relu().squeeze(0);  // autograd takes views of one gradient
  };
  for (const bool split : {false, true}) {
    const at::Tensor weight = at::ones({3}).requires_grad_();
    Module sums([&](const at::Tensor& x) { return by(weight, x); });
    Module plain([&](const at::Tensor& x) { return x + weight.view({3}); });
    for (Module* module : {&sums, &plain}) {
      StageRun run(stage, 2, *module);
      for (const int m : {0, 1}) run.forward(m, one(Message::from_here({at::ones({3}).requires_grad_()})));
      std::vector<at::Tensor> made;
      for (const int m : {0, 1}) {
        made.push_back((split ? run.backward_input(m, ones()) : run.backward(m, ones()))[0][0]);
        if (split) run.backward_weight(m);
      }
      for (const at::Tensor& gradient : made) EXPECT_TRUE(at::equal(gradient, at::ones({3})));
    }
    EXPECT_TRUE(at::equal(weight.grad(), at::full({3}, 4.0)));
  }
}

TEST(StageRun, AnInputMayNotBeChangedInPlace) {
  const ProgramStage stage = middle();
  Module changes([](const at::Tensor& x) { return at::Tensor(x).mul_(2); });
  StageRun run(stage, 1, changes);
  EXPECT_THROW(run.forward(0, one(Message::from_here({at::ones({3}).requires_grad_()}))), c10::Error);
  StageRun frozen(stage, 1, changes);  // behind stages that learn nothing
  try {
    frozen.forward(0, ones());
    ADD_FAILURE();
  } catch (const ExecutionError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("stage 'middle' changes its input in place"));
  }
}

TEST(StageRun, TakesWhatAFrozenStageMadeInInferenceMode) {
  const ProgramStage stage = middle();
  const at::Tensor weight = at::full({3}, 2.0).requires_grad_();
  Module learns([&](const at::Tensor& x) { return x.clone() * weight; });
  const auto made = [] {
    const c10::InferenceMode mode;
    return at::ones({3});
  }();
  ASSERT_TRUE(made.is_inference());
  for (const bool split : {false, true}) {
    StageRun run(stage, 1, learns);
    EXPECT_TRUE(at::equal(run.forward(0, one(Message::from_here({made})))[0], at::full({3}, 2.0)));
    const auto gradients = split ? run.backward_input(0, ones()) : run.backward(0, ones());
    EXPECT_FALSE(gradients[0][0].defined());
    if (split) run.backward_weight(0);
  }
  EXPECT_TRUE(at::equal(weight.grad(), at::full({3}, 2.0)));
}

TEST(StageRun, NoBackwardGoesWhereNothingLearns) {
  const ProgramStage stage = middle();
  const at::Tensor weight = at::full({3}, 2.0).requires_grad_();
  int seen = 0;
  Module frozen([&](const at::Tensor& x) { return seen += x.requires_grad(), x * 2; });
  Module learns([&](const at::Tensor& x) { return seen += x.requires_grad(), x * weight; });
  for (Module* module : {&frozen, &learns}) {
    StageRun run(stage, 2, *module);
    for (const int m : {0, 1}) {
      const at::Tensor made = run.forward(m, ones())[0];
      EXPECT_EQ(made.requires_grad(), module == &learns);  // so what comes next knows
      const auto gradients = m == 0 ? run.backward(m, ones()) : run.backward_input(m, ones());
      EXPECT_FALSE(gradients[0][0].defined());
      if (m == 1) run.backward_weight(m);
    }
  }
  EXPECT_EQ(seen, 0);
  EXPECT_TRUE(at::equal(weight.grad(), at::full({3}, 2.0)));  // of both micro-batches
}

}  // namespace
}  // namespace ostinato
