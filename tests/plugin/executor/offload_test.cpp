// SPDX-License-Identifier: Apache-2.0
// What stages keep goes to the host and comes back: in the plan's order, within the memory that it counts.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "plugin/executor/executor.h"
#include "plugin/lowering/lower.h"
#include "plugin/lowering/program_text.h"
#include "search/files/error.h"
#include "search/placement/shapes.h"
#include "search/shortest.h"
#include "tests/plugin/executor/support/accelerator_run.h"
#include "tests/plugin/executor/support/layers.h"
#include "tests/plugin/executor/support/thread_channel.h"
#include "tests/plugin/executor/support/told_layer.h"
#include "tests/support/fake_memory.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

[[maybe_unused]] const bool kRegistered = (register_fake_device(), true);

constexpr int kMicroBatches = 8;

/// Three stages, of which all but the last offload, with room for two micro-batches each.
Placement offloading(bool split = false) {
  return shape("looped", {.devices = 3,
                          .chunks = 1,
                          .backward = split ? 1000 : 2000,
                          .weight = split ? 1000 : 0,
                          .offload = std::vector<Nanoseconds>{600, 600, 0},
                          .capacity = 2});
}

Program lowered(const Placement& placement) {
  return lower(shortest_plan(placement, {.micro_batches = kMicroBatches}), placement);
}

/// Knows which micro-batches it holds, and fails where one is not there, or more than two are.
class Keeping : public testing::Layer {
 public:
  Keeping(const ProgramStage& stage, int index) : Layer(stage, index), here_(kMicroBatches, 0) {}

  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override {
    come(micro_batch);
    return Layer::forward(micro_batch, inputs);
  }
  void offload(int micro_batch) override {
    std::this_thread::sleep_for(2ms);  // so that what does not wait for it is seen
    go(micro_batch);
    ++copies;
  }
  void load(int micro_batch) override {
    come(micro_batch);
    std::this_thread::sleep_for(2ms);
    const std::lock_guard lock(mutex_);
    here_[micro_batch] = 2;
    ++copies;
  }
  void before_backward(int micro_batch, BackwardPart /*part*/) override {
    const std::lock_guard lock(mutex_);
    if (copies > 0 && here_[micro_batch] != 2)
      throw std::runtime_error("a backward before its load has ended");
  }
  void after_backward(int micro_batch, BackwardPart part) override {
    if (part != BackwardPart::inputs) go(micro_batch);
  }

  int most = 0, copies = 0;

 private:
  void come(int micro_batch) {
    const std::lock_guard lock(mutex_);
    if (here_[micro_batch] != 0) throw std::runtime_error("it is here already");
    here_[micro_batch] = 1;
    most = std::max(most, ++held_);
  }
  void go(int micro_batch) {
    const std::lock_guard lock(mutex_);
    if (here_[micro_batch] == 0) throw std::runtime_error("it is not here");
    here_[micro_batch] = 0;
    --held_;
  }

  std::mutex mutex_;
  std::vector<char> here_;
  int held_ = 0;
};

void expect_to_keep(const Program& program) {
  std::map<int, Keeping> layers;
  for (int s = 0; s < 3; ++s) layers.try_emplace(s, program.stages[s], s);
  testing::Exchange exchange;
  std::vector<std::string> failures(3);
  const auto run = [&](int rank) {
    testing::ThreadChannel channel(exchange, rank, testing::Blocking::no);
    try {
      Executor executor(program, rank, channel, {.timeout = 60s});
      executor.set_stage(rank, layers.at(rank));
      for (int step = 0; step < 2; ++step) executor.run();
    } catch (const std::exception& error) {
      failures[rank] = error.what();
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) threads.emplace_back(run, r);
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(failures, ::testing::Each(""));
  auto reference = testing::make_layers(program);
  for (int step = 0; step < 2; ++step) testing::run_reference(program, reference);
  for (auto& [s, layer] : layers) {
    EXPECT_TRUE(at::equal(layer.weight.grad(), reference.at(s).weight.grad())) << "stage " << s;
    EXPECT_EQ(layer.copies, s < 2 ? 2 * 2 * kMicroBatches : 0) << "stage " << s;
    EXPECT_LE(layer.most, 2) << "stage " << s;
  }
}

TEST(Offload, HoldsNoMoreThanThePlanCounts) {
  expect_to_keep(lowered(offloading()));
  expect_to_keep(lowered(offloading(true)));
}

TEST(Offload, StandsInTheListWhereItBegins) {
  const Program program = lowered(offloading());
  EXPECT_EQ(program.stages[0].offload, "copy");
  EXPECT_EQ(program.stages[2].offload, "");
  std::map<Action, int> count;
  for (const Instruction& i : program.ranks[0]) ++count[i.action];
  for (const Action action : {Action::offload, Action::release, Action::load})
    EXPECT_EQ(count[action], kMicroBatches) << to_string(action);
  EXPECT_THAT(format_rank(program, 0, TextForm::transfers), HasSubstr("0O0"));
  EXPECT_EQ(format_rank(program, 0, TextForm::compute).find('O'), std::string::npos);
}

/// On the fake device, which is told of the copies, too: "O0" and "L0".
class Telling : public testing::ToldLayer {
 public:
  using ToldLayer::ToldLayer;
  void offload(int micro_batch) override { fake_task("O" + std::to_string(micro_batch), 600, {}, {}); }
  void load(int micro_batch) override { fake_task("L" + std::to_string(micro_batch), 600, {}, {}); }
};

TEST(Offload, OnAnAcceleratorComputesWaitForTheCopiesAlone) {
  const Placement placement = shape(
      "looped", {.devices = 2, .chunks = 1, .offload = std::vector<Nanoseconds>{600, 0}, .capacity = 2});
  const Program program = lower(shortest_plan(placement, {.micro_batches = 4}), placement);
  testing::StreamExchange exchange(testing::Queue::of_a_pair);
  const auto device_of = [](int rank) {
    return at::Device(kFakeDevice, static_cast<c10::DeviceIndex>(rank));
  };
  std::map<int, Telling> layers;
  for (int s = 0; s < 2; ++s) layers.try_emplace(s, program.stages[s], s, device_of(s));
  EXPECT_EQ(
      testing::together(testing::run_all(program, exchange, layers, {.device_of = device_of, .steps = 1})),
      "");
  EXPECT_EQ(testing::together(fake_races()), "");
  const auto before = [](const std::string& first, const std::string& second) {
    return comes_before(find_fake_task(first), find_fake_task(second));
  };
  const std::vector<Instruction>& list = program.ranks[0];
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string m = std::to_string(list[i].micro_batch);
    const auto next = std::find_if(list.begin() + i + 1, list.end(),
                                   [](const Instruction& other) { return runs_layers(other.action); });
    if (list[i].action == Action::offload) {
      EXPECT_TRUE(before("0:0F" + m, "O" + m));
    }
    if (list[i].action == Action::load) {
      EXPECT_TRUE(before("L" + m, "0:0B" + m));
    }
    if (list[i].action == Action::release && next != list.end()) {
      EXPECT_TRUE(before("O" + m, "0:" + to_string(*next)));
    }
  }
}

void expect_refused(const Placement& placement, const std::string& why) {
  try {
    lower(shortest_plan(placement, {.micro_batches = 2}), placement);
    FAIL() << why;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(why));
  }
}

Block& block(Placement& placement, const char* name) { return placement.blocks[placement.find_block(name)]; }

TEST(Offload, IsWholeOrRefused) {
  Placement other = offloading();
  block(other, "s0.freed").kind = Kind::other;
  expect_refused(other, "block 's0.freed' is of kind \"other\"");
  Placement early = offloading();
  std::erase_if(block(early, "s0.B").after,
                [&](const Dependency& d) { return early.blocks[d.block].name == "s0.L"; });
  expect_refused(early, "block 's0.B' must have 's0.L' in `after`");
  Placement part = offloading();
  block(part, "s1.taken").stage = "s0";
  expect_refused(part, "are both the load of stage 's0'");
}

TEST(Offload, OfWhatIsRecomputedOrElsewhereIsRefused) {
  Placement recomputed = shape("looped", {.devices = 2, .chunks = 1, .offload = 600, .layers = 2});
  recomputed.stages[0].recompute = true;
  expect_refused(recomputed, "stage 's0' is offloaded, and is recomputed");
  Placement elsewhere = offloading();
  elsewhere.devices[0].memory = kUnlimited;
  block(elsewhere, "s0.freed").devices = {1};
  expect_refused(elsewhere, "block 's0.freed' must be on device 0");
}

}  // namespace
}  // namespace ostinato
