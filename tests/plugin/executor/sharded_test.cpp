// SPDX-License-Identifier: Apache-2.0
// Stages that are sharded over several ranks, as threads: bit for bit what one thread computes.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <thread>

#include "plugin/executor/error.h"
#include "plugin/executor/executor.h"
#include "plugin/lowering/lower.h"
#include "tests/plugin/executor/support/layers.h"
#include "tests/plugin/executor/support/thread_channel.h"
#include "tests/plugin/executor/support/thread_group.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;
using testing::Blocking;
using testing::Exchange;
using testing::kBatch;
using testing::kWidth;
using testing::ThreadChannel;
using testing::ThreadGroup;

/// tanh(w * sum of the inputs + b), element by element, for columns [begin, end) of the width. The parts are
/// summed over the ranks of `group`, and so are the gradients of the input: every sum adds zeros to one
/// figure, so that the bits are those of one rank with all columns. A stage that feeds no other returns the
/// mean of squares.
class Shard : public StageModule {
 public:
  Shard(const ProgramStage& stage, int index, int rank, ThreadGroup* group)
      : rank_(rank), group_(group), first_(stage.inputs.empty()), last_(stage.outputs.empty()) {
    const auto size = static_cast<std::int64_t>(stage.devices.size());
    const auto place = std::find(stage.devices.begin(), stage.devices.end(), rank) - stage.devices.begin();
    begin_ = group ? kWidth * place / size : 0;
    end_ = group ? kWidth * (place + 1) / size : kWidth;
    weight = piece(at::linspace(0.5, 1.5 + index, kWidth)).requires_grad_(true);
    bias = piece(at::linspace(-1, 1, kWidth)).requires_grad_(true);
  }

  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override {
    at::Tensor x = first_ ? at::linspace(-1, 1 + micro_batch, kBatch * kWidth).reshape({kBatch, kWidth})
                          : enter(inputs[0]);
    for (std::size_t i = 1; i < inputs.size(); ++i) x = x + enter(inputs[i]);
    const at::Tensor part = at::tanh(x.narrow(1, begin_, end_ - begin_) * weight + bias);
    const at::Tensor y = leave(at::constant_pad_nd(part, {begin_, kWidth - end_}));
    if (!last_) return {y};
    losses.push_back((y * y).mean().item<double>());
    return {(y * y).mean()};
  }

  at::Tensor piece(const at::Tensor& whole) const { return whole.slice(0, begin_, end_).clone(); }

  at::Tensor weight, bias;
  std::vector<double> losses;

 private:
  /// The identity; on the way back the ranks' gradients are summed.
  at::Tensor enter(const at::Tensor& x) const {
    if (!group_) return x;
    at::Tensor entered = x.clone();
    if (entered.requires_grad())
      entered.register_hook([this](const at::Tensor& gradient) { return group_->sum(rank_, gradient); });
    return entered;
  }

  /// The sum over the ranks; the identity on the way back.
  at::Tensor leave(const at::Tensor& part) const {
    if (!group_) return part;
    at::Tensor sum = part.clone();
    const c10::NoGradGuard no_graph;
    sum.copy_(group_->sum(rank_, part));
    return sum;
  }

  int rank_;
  ThreadGroup* group_;
  bool first_, last_;
  std::int64_t begin_ = 0, end_ = 0;
};

struct Case {
  const char* name;
  testing::GraphOptions options;
  int micro_batches;
};

/// One rank's modules, and what its steps threw.
struct Rank {
  std::map<int, Shard> shards;
  std::string failure;
};

void run_rank(const Program& program, int rank, Exchange& exchange, Blocking blocking, int steps,
              Rank& self) {
  ThreadChannel channel(exchange, rank, blocking);
  try {
    Executor executor(program, rank, channel, {.timeout = 60s});
    for (auto& [stage, shard] : self.shards) executor.set_stage(stage, shard);
    for (int step = 0; step < steps; ++step) executor.run();
  } catch (const std::exception& error) {
    self.failure = error.what();
  }
}

/// Every rank in a thread of its own.
std::vector<Rank> run_all(const Program& program, Blocking blocking, int steps) {
  Exchange exchange;
  std::map<int, ThreadGroup> groups;
  std::vector<Rank> ranks(program.ranks.size());
  for (int s = 0; s < static_cast<int>(program.stages.size()); ++s) {
    const ProgramStage& stage = program.stages[s];
    ThreadGroup* group = stage.sharded() ? &groups.try_emplace(s, stage.devices).first->second : nullptr;
    for (const int rank : stage.devices) ranks[rank].shards.try_emplace(s, stage, s, rank, group);
  }
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back(
        [&, r] { run_rank(program, static_cast<int>(r), exchange, blocking, steps, ranks[r]); });
  for (auto& thread : threads) thread.join();
  return ranks;
}

/// The same on one thread and without shards.
std::map<int, Shard> run_reference(const Program& program, int steps) {
  std::map<int, Shard> whole;
  for (int s = 0; s < static_cast<int>(program.stages.size()); ++s)
    whole.try_emplace(s, program.stages[s], s, program.stages[s].devices[0], nullptr);
  for (int m = 0; m < steps * program.micro_batches; ++m) {
    std::map<int, at::Tensor> outputs;
    for (auto& [s, module] : whole) {
      std::vector<at::Tensor> inputs;
      for (const int from : program.stages[s].inputs) inputs.push_back(outputs.at(from));
      outputs[s] = module.forward(m % program.micro_batches, inputs)[0];
    }
    outputs.rbegin()->second.backward();
  }
  return whole;
}

class Sharded : public ::testing::TestWithParam<std::tuple<Case, Blocking, bool>> {};

TEST_P(Sharded, GradientsAndLossesEqualThoseOfOneThreadBitForBit) {
  const auto& [c, blocking, split] = GetParam();
  testing::GraphOptions options = c.options;
  options.split = split;
  const Placement placement = testing::graph(options);
  const Program program = lower(testing::backward_first(placement, c.micro_batches), placement);
  constexpr int steps = 3;
  const std::vector<Rank> ranks = run_all(program, blocking, steps);
  const std::map<int, Shard> reference = run_reference(program, steps);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.failure, "");
    for (const auto& [s, shard] : rank.shards) {
      const Shard& whole = reference.at(s);
      EXPECT_TRUE(at::equal(shard.weight.grad(), shard.piece(whole.weight.grad()))) << "stage " << s;
      EXPECT_TRUE(at::equal(shard.bias.grad(), shard.piece(whole.bias.grad()))) << "stage " << s;
      EXPECT_EQ(shard.losses, whole.losses) << "stage " << s;
    }
  }
}

const Case kCases[] = {
    {"embedding", {.device_of = {0, 0, 1}, .edges = {{0, 1}, {1, 2}}, .shards = {{0, {0, 1}}}}, 4},
    {"head", {.device_of = {0, 1, 0}, .edges = {{0, 1}, {1, 2}}, .shards = {{2, {0, 1}}}}, 4},
    {"mShape",
     {.device_of = {0, 0, 1, 2, 3, 0},
      .edges = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}},
      .shards = {{0, {0, 1, 2, 3}}, {5, {0, 1, 2, 3}}}},
     6},
    {"nnShape",
     {.device_of = {0, 0, 1, 0, 2, 3},
      .edges = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}},
      .shards = {{0, {0, 1, 2, 3}}, {3, {0, 1, 2, 3}}}},
     5},
    {"kShape",
     {.device_of = {0, 1, 2, 3, 0}, .edges = {{0, 1}, {2, 3}, {1, 4}, {3, 4}}, .shards = {{4, {0, 1, 2, 3}}}},
     4},
    {"overlapping",
     {.device_of = {0, 1, 2, 0},
      .edges = {{0, 1}, {1, 2}, {2, 3}},
      .shards = {{0, {0, 1}}, {1, {1, 2}}, {3, {0, 2}}}},
     5},
    {"skipped", {.device_of = {0, 1, 1}, .edges = {{0, 1}, {0, 2}, {1, 2}}, .shards = {{0, {0, 1}}}}, 3},
};

INSTANTIATE_TEST_SUITE_P(Executor, Sharded,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(Blocking::no, Blocking::yes),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) +
                                  (std::get<1>(test.param) == Blocking::yes ? "Blocking" : "") +
                                  (std::get<2>(test.param) ? "Split" : "");
                         });

/// A shard that looks at where its rank is while it runs.
class Watcher : public StageModule {
 public:
  std::vector<at::Tensor> forward(int, const std::vector<at::Tensor>&) override {
    seen = to_string(executor->position());
    throw std::domain_error("seen");
  }
  const Executor* executor = nullptr;
  std::string seen;
};

TEST(ShardedStage, PositionNamesTheRanksThatMeet) {
  const Placement placement = testing::graph({.device_of = {0}, .edges = {}, .shards = {{0, {0, 1}}}});
  const Program program = lower(testing::backward_first(placement, 1), placement);
  Exchange exchange;
  ThreadChannel channel(exchange, 1, Blocking::no);
  Executor executor(program, 1, channel);
  Watcher watcher;
  watcher.executor = &executor;
  executor.set_stage(0, watcher);
  EXPECT_THROW(executor.run(), std::domain_error);
  EXPECT_EQ(watcher.seen, "rank 1 is in step 1 at instruction 0 of 2 (0F0), which ranks 0, 1 run together");
}

}  // namespace
}  // namespace ostinato
