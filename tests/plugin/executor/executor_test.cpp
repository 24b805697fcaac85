// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "plugin/executor/error.h"
#include "plugin/executor/host_channel.h"
#include "plugin/lowering/lower.h"
#include "tests/plugin/executor/support/layers.h"
#include "tests/plugin/executor/support/thread_channel.h"
#include "tests/support/fake_device.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;
using testing::backward_first;
using testing::Blocking;
using testing::chain;
using testing::Exchange;
using testing::Layer;
using testing::ThreadChannel;

Program program_of(const Placement& placement, int micro_batches, int in_flight = 0) {
  return lower(backward_first(placement, micro_batches, in_flight), placement);
}

/// How the ranks' messages travel: between threads, there with every call blocking, or through memory.
enum class Way { threads, blocking, memory };

std::unique_ptr<Channel> channel_of(Exchange& exchange, int rank, Way way) {
  auto channel =
      std::make_unique<ThreadChannel>(exchange, rank, way == Way::blocking ? Blocking::yes : Blocking::no);
  return way == Way::memory ? make_host_channel(std::move(channel)) : std::move(channel);
}

/// Runs one rank; what it threw, in words.
template <typename Module>
std::string run_rank(const Program& program, int rank, Exchange& exchange, Way way,
                     std::map<int, Module>& modules, int steps, ExecutorOptions options,
                     std::vector<std::int64_t>* peaks = nullptr) {
  const std::unique_ptr<Channel> channel = channel_of(exchange, rank, way);
  try {
    Executor executor(program, rank, *channel, options);
    for (auto& [s, module] : modules) {
      if (program.stages[s].on(rank)) executor.set_stage(s, module);
    }
    for (int step = 0; step < steps; ++step) {
      executor.run();
      if (peaks) peaks->push_back(executor.peak_bytes());
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

template <typename Module>
std::vector<std::string> run_all(const Program& program, std::map<int, Module>& modules, Way way,
                                 int steps = 1, ExecutorOptions options = {.timeout = 60s}) {
  Exchange exchange;
  std::vector<std::string> failures(program.ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      failures[r] = run_rank(program, static_cast<int>(r), exchange, way, modules, steps, options);
    });
  }
  for (auto& thread : threads) thread.join();
  return failures;
}

struct Case {
  const char* name;
  std::vector<int> device_of;
  std::vector<std::pair<int, int>> edges;  ///< empty: a chain
  int micro_batches;
  int in_flight;
};

class BitForBit : public ::testing::TestWithParam<std::tuple<Case, Way>> {};

TEST_P(BitForBit, GradientsEqualThoseOfOneThread) {
  const auto& [c, way] = GetParam();
  const Placement p =
      c.edges.empty() ? chain(c.device_of) : testing::graph({.device_of = c.device_of, .edges = c.edges});
  const Program program = program_of(p, c.micro_batches, c.in_flight);
  ASSERT_TRUE(keeps_order(program));
  auto layers = testing::make_layers(program);
  for (const std::string& failure : run_all(program, layers, way, 3)) EXPECT_EQ(failure, "");
  auto reference = testing::make_layers(program);
  for (int step = 0; step < 3; ++step) testing::run_reference(program, reference);
  for (auto& [s, layer] : reference) {
    EXPECT_TRUE(at::equal(layers.at(s).weight.grad(), layer.weight.grad())) << "stage " << s;
    EXPECT_TRUE(at::equal(layers.at(s).bias.grad(), layer.bias.grad())) << "stage " << s;
    EXPECT_EQ(layers.at(s).losses, layer.losses) << "stage " << s;
  }
}

const Case kCases[] = {
    {"alone", {0}, {}, 3, 0},
    {"two", {0, 1}, {}, 4, 2},
    {"gpipe", {0, 1, 2}, {}, 4, 0},
    {"oneFoneB", {0, 1, 2, 3}, {}, 8, 4},
    {"looped", {0, 1, 0, 1}, {}, 5, 0},
    {"wave", {0, 1, 2, 2, 1, 0}, {}, 5, 0},
    {"anyMap", {1, 0, 0, 1, 1, 0}, {}, 3, 0},
    {"skip", {0, 1, 2}, {{0, 1}, {0, 2}, {1, 2}}, 4, 0},
    {"branches", {0, 1, 0}, {{0, 2}, {1, 2}}, 4, 0},
};

std::string name_of(const ::testing::TestParamInfo<std::tuple<Case, Way>>& info) {
  const auto& [c, way] = info.param;
  return c.name + std::string(way == Way::threads ? "" : way == Way::blocking ? "Blocking" : "Memory");
}

INSTANTIATE_TEST_SUITE_P(Executor, BitForBit,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(Way::threads, Way::blocking, Way::memory)),
                         name_of);

class SplitBackwards : public ::testing::TestWithParam<std::tuple<Case, Way>> {};

TEST_P(SplitBackwards, GradientsEqualThoseOfOneThread) {
  const auto& [c, way] = GetParam();
  const Placement p = c.edges.empty()
                          ? chain(c.device_of, true)
                          : testing::graph({.device_of = c.device_of, .edges = c.edges, .split = true});
  const Program program = program_of(p, c.micro_batches, c.in_flight);
  auto layers = testing::make_layers(program);
  for (const std::string& failure : run_all(program, layers, way, 3)) EXPECT_EQ(failure, "");
  auto reference = testing::make_layers(program);
  for (int step = 0; step < 3; ++step) testing::run_reference(program, reference);
  for (auto& [s, layer] : reference) {
    EXPECT_TRUE(at::equal(layers.at(s).weight.grad(), layer.weight.grad())) << "stage " << s;
    EXPECT_TRUE(at::equal(layers.at(s).bias.grad(), layer.bias.grad())) << "stage " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, SplitBackwards,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(Way::threads, Way::memory)),
                         name_of);

TEST(Executor, RecordsEveryInstructionOnce) {
  const Program program = program_of(chain({0, 0}), 3);
  auto layers = testing::make_layers(program);
  Exchange exchange;
  ThreadChannel channel(exchange, 0, Blocking::no);
  Executor executor(program, 0, channel);
  for (auto& [s, layer] : layers) executor.set_stage(s, layer);
  for (int step = 0; step < 2; ++step) executor.run();
  ASSERT_EQ(executor.records().size(), program.ranks[0].size());
  std::int64_t last = 0;
  for (std::size_t i = 0; i < executor.records().size(); ++i) {
    EXPECT_EQ(executor.records()[i].instruction, static_cast<int>(i));
    EXPECT_GE(executor.records()[i].start_ns, last);
    EXPECT_GE(executor.records()[i].end_ns, executor.records()[i].start_ns);
    last = executor.records()[i].end_ns;
  }
}

// 1F1B keeps at most `in flight` activations; with a bound of one, an output is gone before the next one is
// made.
TEST(Executor, KeepsNoOutputLongerThanItIsNeeded) {
  const Program program = program_of(chain({0, 1}), 6, 1);
  auto layers = testing::make_layers(program);
  for (const std::string& failure : run_all(program, layers, Way::memory, 2)) EXPECT_EQ(failure, "");
  EXPECT_EQ(layers.at(0).most_alive, 1);
  EXPECT_EQ(layers.at(1).most_alive, 1);
}

TEST(Executor, ReusesItsBuffers) {
  const Program program = program_of(chain({0, 1}), 8, 2);
  auto layers = testing::make_layers(program);
  Exchange exchange;
  std::vector<std::int64_t> peaks;
  std::thread other([&] { run_rank(program, 0, exchange, Way::threads, layers, 20, {.timeout = 60s}); });
  EXPECT_EQ(run_rank(program, 1, exchange, Way::threads, layers, 20, {.timeout = 60s}, &peaks), "");
  other.join();
  // Two activations received at once, and gradients whose receipt is not proven yet; whatever it is, it does
  // not grow.
  constexpr std::int64_t message = testing::kBatch * testing::kWidth * 4;
  EXPECT_LE(peaks.front(), 8 * message);
  EXPECT_EQ(peaks[1], peaks.back());
}

// Nothing comes back that would say what has arrived: rank 0 waits for that itself.
TEST(Executor, ForwardsAloneHaveFewMessagesUnderWay) {
  const Program program =
      program_of(testing::graph({.device_of = {0, 1}, .edges = {{0, 1}}, .training = false}), 20);
  for (const Way way : {Way::threads, Way::memory}) {
    auto layers = testing::make_layers(program);
    Exchange exchange;
    std::vector<std::int64_t> peaks;
    std::thread other([&] { run_rank(program, 1, exchange, way, layers, 3, {.timeout = 60s}); });
    EXPECT_EQ(run_rank(program, 0, exchange, way, layers, 3, {.timeout = 60s}, &peaks), "");
    other.join();
    EXPECT_EQ(peaks, (std::vector<std::int64_t>(3, 2 * testing::kBatch * testing::kWidth * 4)));
  }
}

TEST(Executor, TimeoutNamesBothInstructions) {
  const Program program = program_of(chain({0, 1}), 2, 2);
  auto layers = testing::make_layers(program);
  Exchange exchange;  // rank 0 never comes
  const std::string failure = run_rank(program, 1, exchange, Way::threads, layers, 1, {.timeout = 50ms});
  EXPECT_NE(
      failure.find(
          "rank 1 waited 0.0 s for 1RECV_F0 from rank 0, instruction 0, which waits for 0SEND_F0 of rank "
          "0 (its instruction 1)"),
      std::string::npos)
      << failure;
  EXPECT_NE(failure.find("rank 1 is in step 1 at instruction 0 of 8 (1RECV_F0)"), std::string::npos)
      << failure;
}

/// A rank by itself on an accelerator.
class FakeChannel : public ThreadChannel {
 public:
  explicit FakeChannel(Exchange& exchange) : ThreadChannel(exchange, 0, Blocking::yes) {}
  at::Device device() const override { return {kFakeDevice, 0}; }
};

/// Issues work for 2 us each micro-batch; at the second one the device stops.
class Issuing : public StageModule {
 public:
  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>&) override {
    ++forwards;
    fake_device_hangs(hangs && micro_batch >= 1);
    fake_device_works(2000);
    return {at::ones({}).requires_grad_(true)};
  }
  bool hangs = false;
  int forwards = 0;
};

TEST(Executor, OnAnAcceleratorTimesAndTimeoutsAreTheDevices) {
  register_fake_device();
  const Program program = program_of(chain({0}), 2);
  Exchange exchange;
  FakeChannel channel(exchange);
  Executor executor(program, 0, channel, {.timeout = 20ms});
  Issuing module;
  executor.set_stage(0, module);
  executor.run();
  std::int64_t busy = 0;
  for (const Record& r : executor.records()) busy += r.end_ns - r.start_ns;
  EXPECT_EQ(busy, 4000);
  EXPECT_EQ(executor.records().back().end_ns, 4000);
  module.hangs = true;
  try {
    executor.run();
    FAIL() << "the device has not ended the step";
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 0 waited 0.0 s for 0F1, instruction 2; rank 0 is in "
                                                   "step 2 at instruction 2 of 4 (0F1)"));
  }
  fake_device_hangs(false);
}

/// Notes which of its earlier computes the host knows to have ended when it issues the next.
class Watching : public StageModule {
 public:
  std::vector<at::Tensor> forward(int, const std::vector<at::Tensor>&) override {
    work();
    return {at::ones({}).requires_grad_(true)};
  }
  void before_backward(int, BackwardPart) override { work(); }

  std::vector<int> running;  ///< computes whose end the host has not seen, at the begin of each

 private:
  void work() {
    running.push_back(static_cast<int>(
        std::ranges::count_if(tasks_, [](const FakeTask& task) { return !host_has_seen(task); })));
    tasks_.push_back(fake_device_works(1000));
  }
  std::vector<FakeTask> tasks_;
};

TEST(Executor, TheHostIsNeverMoreThanTwoComputesAheadOfAnAccelerator) {
  register_fake_device();
  const Program program = program_of(chain({0}), 3);
  Exchange exchange;
  FakeChannel channel(exchange);
  Executor executor(program, 0, channel);
  Watching module;
  executor.set_stage(0, module);
  executor.run();
  EXPECT_EQ(module.running, (std::vector{0, 1, 1, 1, 1, 1}));  // and the next is issued while one still runs
}

TEST(Executor, ADeviceThatStopsIsFoundTwoComputesLater) {
  register_fake_device();
  const Program program = program_of(chain({0}), 8);
  Exchange exchange;
  FakeChannel channel(exchange);
  Executor executor(program, 0, channel, {.timeout = 20ms});
  Issuing module;
  module.hangs = true;
  executor.set_stage(0, module);
  EXPECT_THROW(executor.run(), TimeoutError);
  fake_device_hangs(false);
  EXPECT_EQ(module.forwards, 2);  // of 8
}

/// A stage that goes wrong at one micro-batch.
class Broken : public StageModule {
 public:
  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>&) override {
    if (micro_batch == 1) throw std::domain_error("the data ran out");
    return {at::ones({}).requires_grad_(true)};
  }
};

TEST(Executor, AFailureOfAModulePassesAndEndsTheExecutor) {
  const Program program = program_of(chain({0}), 2);
  Exchange exchange;
  ThreadChannel channel(exchange, 0, Blocking::no);
  Executor executor(program, 0, channel);
  Broken broken;
  executor.set_stage(0, broken);
  EXPECT_THROW(executor.run(), std::domain_error);
  try {
    executor.run();
    FAIL();
  } catch (const ExecutionError& error) {
    EXPECT_NE(std::string(error.what()).find("an earlier step failed (rank 0 is in step 1 at instruction"),
              std::string::npos)
        << error.what();
  }
}

/// Passes on several tensors: floating, integer, None, and one without a gradient.
class Mixed : public StageModule {
 public:
  explicit Mixed(int stage) : stage_(stage), weight_(at::full({3}, 2.0).requires_grad_(true)) {}
  std::vector<at::Tensor> forward(int m, const std::vector<at::Tensor>& in) override {
    if (stage_ == 0) {
      return {weight_ * m, at::full({2}, 7 + m, at::kLong), at::Tensor(), at::full({2, 2}, 0.5), weight_ + 1};
    }
    EXPECT_TRUE(in[0].requires_grad() && !in[3].requires_grad() && in[4].requires_grad());
    EXPECT_TRUE(at::equal(in[1], at::full({2}, 7 + m, at::kLong)));
    EXPECT_FALSE(in[2].defined());
    EXPECT_TRUE(at::equal(in[3], at::full({2, 2}, 0.5)));
    return {(in[0] * in[3].sum()).sum()};  // the last input is not used: its gradient is zero
  }
  const at::Tensor& weight() const { return weight_; }

 private:
  int stage_;
  at::Tensor weight_;
};

TEST(Executor, TuplesIntegersNoneAndUnusedInputs) {
  for (const std::vector<int>& devices : {std::vector{0, 1}, std::vector{0, 0}}) {
    const Program program = program_of(chain(devices), 3);
    std::map<int, Mixed> modules;
    for (int s = 0; s < 2; ++s) modules.emplace(s, Mixed(s));
    for (const std::string& failure : run_all(program, modules, Way::memory, 2)) EXPECT_EQ(failure, "");
    // d loss / d weight = m * 2 for m = 0, 1, 2, in two steps.
    EXPECT_TRUE(at::equal(modules.at(0).weight().grad(), at::full({3}, 12.0)));
  }
}

/// A first stage whose output grows with the micro-batch.
class Growing : public StageModule {
 public:
  explicit Growing(int stage) : stage_(stage) {}
  std::vector<at::Tensor> forward(int m, const std::vector<at::Tensor>& in) override {
    if (stage_ == 1) return {in[0].sum()};
    return {at::ones({m + 1}).requires_grad_(true) * 2};
  }

 private:
  int stage_;
};

TEST(Executor, RefusesShapesThatChange) {
  const Program program = program_of(chain({0, 1}), 2);
  std::map<int, Growing> modules;
  for (int s = 0; s < 2; ++s) modules.emplace(s, Growing(s));
  const auto failures = run_all(program, modules, Way::threads, 1, {.timeout = 200ms});
  EXPECT_NE(
      failures[0].find("0SEND_F1 carries (Float[2] with gradient), but stage '0' announced (Float[1] with "
                       "gradient)"),
      std::string::npos)
      << failures[0];
}

/// Hands on a tensor that is not where its rank computes.
class Elsewhere : public StageModule {
 public:
  std::vector<at::Tensor> forward(int /*micro_batch*/, const std::vector<at::Tensor>& /*inputs*/) override {
    return {at::empty({2}, at::TensorOptions().device(at::kMeta))};
  }
};

TEST(Executor, RefusesATensorOfAnotherDevice) {
  const Program program = program_of(chain({0, 1}), 1);
  std::map<int, Elsewhere> modules;
  for (int s = 0; s < 2; ++s) modules.emplace(s, Elsewhere());
  EXPECT_EQ(run_all(program, modules, Way::threads, 1, {.timeout = 200ms})[0],
            "stage '0' hands on a tensor on meta, but its rank computes on cpu: move it there (.to(device))");
}

/// What a growing output does to the stages behind it: weights on both sides of a border, and a sum of
/// squares.
class Stretching : public StageModule {
 public:
  Stretching(int stage, int stages) : stage_(stage), last_(stage + 1 == stages) {}

  std::vector<at::Tensor> forward(int m, const std::vector<at::Tensor>& in) override {
    if (stage_ == 0) ++calls_;
    const std::int64_t size = 1 + (m + calls_ / 4) % 3;
    const at::Tensor x = (stage_ == 0 ? at::arange(1.0F, static_cast<float>(size + 1)) : in[0]) * weight_;
    return {last_ ? (x * x).sum() : x};
  }
  float gradient() const { return weight_.grad().item<float>(); }

 private:
  int stage_;
  bool last_;
  int calls_ = 0;
  at::Tensor weight_ = at::full({1}, 2.0F).requires_grad_(true);
};

TEST(Executor, ShapesMayChangeWhereItIsTold) {
  const auto gradients = [](const std::vector<int>& devices, Way way) {
    const Program program = program_of(chain(devices), 4, 3);
    std::map<int, Stretching> modules;
    for (int s = 0; s < 3; ++s) modules.emplace(s, Stretching(s, 3));
    const ExecutorOptions options{.timeout = 60s, .dynamic_shapes = true};
    for (const std::string& failure : run_all(program, modules, way, 5, options)) EXPECT_EQ(failure, "");
    return std::vector{modules.at(0).gradient(), modules.at(1).gradient(), modules.at(2).gradient()};
  };
  const auto expected = gradients({0, 0, 0}, Way::threads);
  for (const Way way : {Way::threads, Way::blocking, Way::memory})
    EXPECT_EQ(gradients({0, 1, 2}, way), expected);
  EXPECT_EQ(gradients({0, 1, 0}, Way::threads), expected);
}

/// A first stage with more outputs for every micro-batch; a last one that sums what comes, however much it
/// is.
class Multiplying : public StageModule {
 public:
  explicit Multiplying(int stage) : stage_(stage) {}

  std::vector<at::Tensor> forward(int m, const std::vector<at::Tensor>& in) override {
    std::vector<at::Tensor> out;
    if (stage_ == 0) {
      for (int k = 0; k <= 40 * m; ++k) out.push_back(weight_ * (k + 1));
      return out;
    }
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& x : in) sum = sum + x.sum();
    return {sum};
  }
  const at::Tensor& weight() const { return weight_; }

 private:
  int stage_;
  at::Tensor weight_ = at::ones({3}).requires_grad_(true);
};

TEST(Executor, TheNumberOfOutputsMayChangeWithTheirShapes) {
  for (const Way way : {Way::threads, Way::blocking, Way::memory}) {
    const Program program = program_of(chain({0, 1}), 3, 2);
    std::map<int, Multiplying> modules;
    for (int s = 0; s < 2; ++s) modules.emplace(s, Multiplying(s));
    const ExecutorOptions options{.timeout = 60s, .dynamic_shapes = true};
    for (const std::string& failure : run_all(program, modules, way, 1, options)) EXPECT_EQ(failure, "");
    // 1, then 1 + 2 + ... + 41, then ... + 81
    EXPECT_TRUE(at::equal(modules.at(0).weight().grad(), at::full({3}, 1.0 + 861.0 + 3321.0)));
  }
}

/// A first stage that hands on the number of its calls, counted in place or not; a last one that notes it.
class Counting : public StageModule {
 public:
  Counting(int stage, bool in_place, bool trains) : stage_(stage), in_place_(in_place), trains_(trains) {}

  std::vector<at::Tensor> forward(int, const std::vector<at::Tensor>& in) override {
    if (stage_ == 0) {
      in_place_ ? calls_.add_(1) : calls_ = calls_ + 1;
      return {weight_ * 2, calls_};
    }
    counted.push_back(in[1].max().item<std::int64_t>());
    return {trains_ ? (in[0] * weight_).sum() : in[0]};
  }

  std::vector<std::int64_t> counted;

 private:
  int stage_;
  bool in_place_, trains_;
  at::Tensor calls_ = at::zeros({3}, at::kLong);
  at::Tensor weight_ = at::ones({3}).requires_grad_(true);
};

TEST(Executor, WhatIsHandedOnMayNotChangeWhileOthersTakeIt) {
  const auto run = [](const std::vector<int>& devices, Way way, int in_flight, bool in_place, bool trains) {
    const Placement placement = testing::graph({.device_of = devices, .edges = {{0, 1}}, .training = trains});
    const auto first_stage_first = [](int block, int micro_batch) { return 100.0 * block + micro_batch; };
    const Program program = in_flight > 0
                                ? program_of(placement, 4, in_flight)
                                : lower(testing::list_schedule(placement, 4, first_stage_first), placement);
    std::map<int, Counting> modules;
    for (int s = 0; s < 2; ++s) modules.emplace(s, Counting(s, in_place, trains));
    const std::vector<std::string> failures = run_all(program, modules, way, 1, {.timeout = 200ms});
    if (failures[0].empty()) {
      EXPECT_EQ(modules.at(1).counted, (std::vector<std::int64_t>{1, 2, 3, 4}));
    }
    return failures[0];
  };
  for (const std::vector<int>& devices : {std::vector{0, 1}, std::vector{0, 0}}) {
    for (const Way way : {Way::threads, Way::memory}) {
      for (const bool trains : {true, false}) {
        EXPECT_EQ(run(devices, way, 0, false, trains), "");
        EXPECT_THAT(run(devices, way, 0, true, trains),
                    ::testing::HasSubstr("stage '0' has handed on a tensor that was changed in place"));
      }
      EXPECT_EQ(run(devices, way, 1, true, true), "");  // each goes all the way before the next one comes
    }
  }
}

/// Hands on what lies in memory in another order, forwards and backwards, and notes how it arrives.
class Turning : public StageModule {
 public:
  using Strides = std::vector<std::int64_t>;
  explicit Turning(int stage) : stage_(stage) {}

  std::vector<at::Tensor> forward(int m, const std::vector<at::Tensor>& in) override {
    if (stage_ > 0) taken->push_back(in[0].strides().vec());
    const at::Tensor x = stage_ == 0 ? weight_ * (m + 1) : in[0].t().contiguous() * weight_;
    if (stage_ == 2) return {x.square().mean()};
    const at::Tensor out = stage_ == 0 ? x.t() : x.t().contiguous();
    out.register_hook([back = came_back](const at::TensorBase& g) { back->push_back(g.strides().vec()); });
    return {out};
  }

  std::shared_ptr<std::vector<Strides>> taken = std::make_shared<std::vector<Strides>>();
  std::shared_ptr<std::vector<Strides>> came_back = std::make_shared<std::vector<Strides>>();

 private:
  int stage_;
  at::Tensor weight_ = at::rand({3, 4}).requires_grad_(true);
};

std::map<int, Turning> three_turning() {
  std::map<int, Turning> modules;
  for (int s = 0; s < 3; ++s) modules.emplace(s, Turning(s));
  return modules;
}

TEST(Executor, TensorsAndGradientsArriveAsTheyLieInMemory) {
  constexpr int kMicroBatches = 4;
  std::map<int, Turning> reference = three_turning();  // in one graph
  for (int m = 0; m < kMicroBatches; ++m) {
    std::vector<at::Tensor> passed;
    for (int s = 0; s < 3; ++s) passed = reference.at(s).forward(m, passed);
    passed[0].backward();
  }
  ASSERT_NE(*reference.at(2).taken, *reference.at(1).came_back);
  for (const std::vector<int>& devices : {std::vector{0, 1, 2}, std::vector{0, 0, 1}, std::vector{0, 1, 0}}) {
    for (const Way way : {Way::threads, Way::blocking, Way::memory}) {
      for (const bool dynamic : {false, true}) {
        std::map<int, Turning> modules = three_turning();
        const ExecutorOptions options{.timeout = 60s, .dynamic_shapes = dynamic};
        const Program program = program_of(chain(devices), kMicroBatches, 3);
        for (const std::string& failure : run_all(program, modules, way, 1, options)) EXPECT_EQ(failure, "");
        for (int s = 0; s < 3; ++s) {
          EXPECT_EQ(*modules.at(s).taken, *reference.at(s).taken);
          EXPECT_EQ(*modules.at(s).came_back, *reference.at(s).came_back);
        }
      }
    }
  }
}

TEST(Executor, RefusesWhatItCannotRun) {
  Exchange exchange;
  ThreadChannel channel(exchange, 0, Blocking::no);
  EXPECT_THROW(Executor(program_of(chain({0}), 1), 1, channel), ExecutionError);  // no such rank
  Program swapped = program_of(chain({0, 1}), 2, 2);
  std::swap(swapped.ranks[0][0], swapped.ranks[0][1]);
  EXPECT_THROW(Executor(swapped, 0, channel), ExecutionError);  // fails the proof
  Executor executor(program_of(chain({0, 1}), 1), 0, channel);
  auto layers = testing::make_layers(executor.program());
  EXPECT_THROW(executor.set_stage(1, layers.at(1)), ExecutionError);  // on the other rank
  EXPECT_THROW(executor.run(), ExecutionError);                       // stage 0 has no module
}

}  // namespace
}  // namespace ostinato
