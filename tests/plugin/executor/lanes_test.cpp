// SPDX-License-Identifier: Apache-2.0
// Stages on lanes: the same gradients, beside what their rank computes.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "plugin/executor/executor.h"
#include "plugin/lowering/lower.h"
#include "search/placement/lanes.h"
#include "tests/plugin/executor/support/accelerator_run.h"
#include "tests/plugin/executor/support/layers.h"
#include "tests/plugin/executor/support/thread_channel.h"
#include "tests/plugin/executor/support/told_layer.h"
#include "tests/support/fake_memory.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

[[maybe_unused]] const bool kRegistered = (register_fake_device(), true);

/// Runs all ranks as threads; what each threw.
template <typename Module>
std::vector<std::string> run_all(const Program& program, std::map<int, Module>& modules, int steps) {
  testing::Exchange exchange;
  std::vector<std::string> failures(program.ranks.size());
  const auto run = [&](int rank) {
    testing::ThreadChannel channel(exchange, rank, testing::Blocking::no);
    try {
      Executor executor(program, rank, channel, {.timeout = 60s});
      for (auto& [s, module] : modules)
        if (program.stages[s].on(rank)) executor.set_stage(s, module);
      for (int step = 0; step < steps; ++step) executor.run();
    } catch (const std::exception& error) {
      failures[rank] = error.what();
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < static_cast<int>(program.ranks.size()); ++r) threads.emplace_back(run, r);
  for (auto& thread : threads) thread.join();
  return failures;
}

/// Blocks of the stage hold that lane of their device, too.
void hold(Placement& placement, const std::string& stage, const std::string& lane) {
  for (Block& block : placement.blocks) {
    if (block.stage != stage) continue;
    const int device = device_of(placement, block.devices[0]);
    if (find_lane(placement, device, lane) < 0) add_lane(placement, device, lane);
    block.devices.push_back(find_lane(placement, device, lane));
    std::ranges::sort(block.devices);
    block.memory = 0;
  }
  link_lanes(placement);
}

struct Case {
  const char* name;
  std::vector<int> device_of;
  std::vector<int> lanes;  ///< stages on them
  bool split;
};

class LanesRun : public ::testing::TestWithParam<Case> {};

TEST_P(LanesRun, GradientsEqualThoseOfOneThread) {
  const auto& [name, device_of, lanes, split] = GetParam();
  const Placement placement = testing::on_lanes(testing::chain(device_of, split), lanes);
  const Program program = lower(testing::backward_first(placement, 6), placement);
  EXPECT_EQ(program.ranks.size(), 2u);
  for (const int s : lanes) EXPECT_EQ(program.stages[s].lane, "network");
  auto layers = testing::make_layers(program);
  for (const std::string& failure : run_all(program, layers, 3)) EXPECT_EQ(failure, "");
  auto reference = testing::make_layers(program);
  for (int step = 0; step < 3; ++step) testing::run_reference(program, reference);
  for (auto& [s, layer] : reference) {
    EXPECT_TRUE(at::equal(layers.at(s).weight.grad(), layer.weight.grad())) << "stage " << s;
    EXPECT_EQ(layers.at(s).losses, layer.losses) << "stage " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, LanesRun,
                         ::testing::Values(Case{"within", {0, 0, 0, 1, 1, 1}, {1, 4}, false},
                                           Case{"split", {0, 0, 0, 1, 1, 1}, {1, 4}, true},
                                           Case{"at_the_cut", {0, 0, 1, 1, 1}, {1, 2}, false},
                                           Case{"in_a_row", {0, 0, 0, 0, 1}, {1, 2}, true},
                                           Case{"at_the_ends", {0, 0, 1, 1}, {0, 3}, false}),
                         [](const auto& one) { return one.param.name; });

/// A layer that waits in its forward until another stage has begun a later micro-batch.
class Waiting : public testing::Layer {
 public:
  struct Begun {
    std::mutex mutex;
    std::condition_variable changed;
    int micro_batch = -1;
  };

  Waiting(const ProgramStage& stage, int index, Begun& begun)
      : Layer(stage, index), lane_(!stage.lane.empty()), begun_(begun) {}

  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override {
    std::unique_lock lock(begun_.mutex);
    if (!lane_) {
      begun_.micro_batch = std::max(begun_.micro_batch, micro_batch);
      begun_.changed.notify_all();
    } else if (!begun_.changed.wait_for(lock, 30s, [&] { return begun_.micro_batch > micro_batch; })) {
      throw std::runtime_error("nothing runs beside the lane");
    }
    lock.unlock();
    return Layer::forward(micro_batch, inputs);
  }

 private:
  bool lane_;
  Begun& begun_;
};

TEST(Lanes, RunBesideWhatTheirRankComputes) {
  const Placement placement = testing::on_lanes(testing::chain({0, 0, 0}), {1});
  const int micro_batches = 4;
  // All forwards of stage 0 first: what it computes does not wait for the lane.
  const Plan plan = testing::list_schedule(placement, micro_batches, [&](int block, int micro_batch) {
    if (placement.blocks[block].kind != Kind::forward) return 100 - micro_batch;
    return placement.blocks[block].stage == "0" ? micro_batch : 10 + micro_batch;
  });
  const Program program = lower(plan, placement);
  Waiting::Begun begun;
  std::map<int, Waiting> layers;
  for (int s = 0; s < 3; ++s) layers.try_emplace(s, program.stages[s], s, begun);
  // The last micro-batch's exchange has nothing to run beside: it is let go.
  std::thread last([&] {
    std::unique_lock lock(begun.mutex);
    begun.changed.wait_for(lock, 30s, [&] { return begun.micro_batch == micro_batches - 1; });
    begun.micro_batch = micro_batches;
    begun.changed.notify_all();
  });
  EXPECT_EQ(run_all(program, layers, 1)[0], "");
  last.join();
}

/// Fails where two stages that hold one lane run at a time.
class Alone : public testing::Layer {
 public:
  using Lanes = std::map<std::string, std::atomic<int>>;  ///< at work on each

  Alone(const ProgramStage& stage, int index, Lanes& lanes) : Layer(stage, index) {
    held_.push_back(&lanes[stage.lane]);
    for (const std::string& lane : stage.holds) held_.push_back(&lanes[lane]);
  }

  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override {
    for (std::atomic<int>* lane : held_) {
      if (++*lane > 1) throw std::runtime_error("two stages hold one lane");
    }
    std::this_thread::sleep_for(2ms);  // so that what does not wait for it is seen
    for (std::atomic<int>* lane : held_) --*lane;
    return Layer::forward(micro_batch, inputs);
  }

 private:
  std::vector<std::atomic<int>*> held_;
};

/// Of stages 0 to 3 on one device, 1 is on its network.
void expect_alone(const std::vector<std::pair<const char*, const char*>>& more) {
  Placement placement = testing::on_lanes(testing::chain({0, 0, 0, 0}), {1});
  for (const auto& [stage, lane] : more) hold(placement, stage, lane);
  const int micro_batches = 8;
  const Plan plan = testing::list_schedule(placement, micro_batches, [&](int block, int micro_batch) {
    return placement.blocks[block].kind == Kind::forward ? micro_batch : 100 - micro_batch;
  });
  const Program program = lower(plan, placement);
  Alone::Lanes lanes;
  std::map<int, Alone> layers;
  for (int s = 0; s < 4; ++s) layers.try_emplace(s, program.stages[s], s, lanes);
  EXPECT_EQ(run_all(program, layers, 1)[0], "");
}

TEST(Lanes, ThatAComputeHoldsAreItsAlone) { expect_alone({{"2", "network"}}); }

TEST(Lanes, ThatAnotherLanesStageHoldsAreItsAlone) {
  expect_alone({{"1", "copy"}, {"3", "network"}, {"0", "copy"}});
  expect_alone({{"2", "network"}, {"1", "copy"}});
}

/// A stage whose forward takes until another has begun `ahead` micro-batches later.
struct Pair {
  int waits = 0, begins = 0, ahead = 0, micro_batches = 0;
};

class Computing : public testing::Layer {
 public:
  Computing(const ProgramStage& stage, int index, const Pair& pair, Waiting::Begun& begun)
      : Layer(stage, index), index_(index), pair_(pair), begun_(begun) {}

  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override {
    std::unique_lock lock(begun_.mutex);
    const int until = micro_batch + pair_.ahead;
    if (index_ == pair_.begins) {
      begun_.micro_batch = micro_batch;
      begun_.changed.notify_all();
    } else if (index_ == pair_.waits && until < pair_.micro_batches &&
               !begun_.changed.wait_for(lock, 30s, [&] { return begun_.micro_batch >= until; })) {
      throw std::runtime_error("the lane waits for the rank that computes");
    }
    lock.unlock();
    return Layer::forward(micro_batch, inputs);
  }

 private:
  int index_;
  Pair pair_;
  Waiting::Begun& begun_;
};

void expect_to_end(const Placement& placement, const Pair& pair) {
  const Plan plan = testing::list_schedule(placement, pair.micro_batches, [&](int block, int micro_batch) {
    return placement.blocks[block].kind == Kind::forward ? micro_batch : 100 - micro_batch;
  });
  const Program program = lower(plan, placement);
  Waiting::Begun begun;
  std::map<int, Computing> layers;
  for (int s = 0; s < 3; ++s) layers.try_emplace(s, program.stages[s], s, pair, begun);
  for (const std::string& failure : run_all(program, layers, 1)) EXPECT_EQ(failure, "");
}

TEST(Lanes, BeginWhenTheirMessageComesWhateverTheirRankComputes) {
  Placement placement = testing::on_lanes(testing::chain({0, 1, 1}), {1});
  placement.blocks[placement.find_block("0.F")].time = 20;  // in the list 1F1 stands behind 2F0, and so on
  expect_to_end(placement, {.waits = 2, .begins = 1, .ahead = 1, .micro_batches = 4});
}

TEST(Lanes, SendWhatTheyMadeWhileTheirRankComputes) {
  expect_to_end(testing::on_lanes(testing::chain({0, 0, 1}), {1}),
                {.waits = 0, .begins = 2, .ahead = -1, .micro_batches = 4});
}

/// A layer that fails.
class Failing : public testing::Layer {
 public:
  Failing(const ProgramStage& stage, int index) : Layer(stage, index), lane_(!stage.lane.empty()) {}
  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override {
    if (lane_ && micro_batch == 1) throw std::runtime_error("the card is gone");
    return Layer::forward(micro_batch, inputs);
  }

 private:
  bool lane_;
};

TEST(Lanes, FailuresOfAStageEndTheStep) {
  const Placement placement = testing::on_lanes(testing::chain({0, 0, 0}), {1});
  const Program program = lower(testing::backward_first(placement, 4), placement);
  std::map<int, Failing> layers;
  for (int s = 0; s < 3; ++s) layers.try_emplace(s, program.stages[s], s);
  testing::Exchange exchange;
  testing::ThreadChannel channel(exchange, 0, testing::Blocking::no);
  Executor executor(program, 0, channel, {.timeout = 60s});
  for (auto& [s, layer] : layers) executor.set_stage(s, layer);
  EXPECT_THROW(executor.run(), std::runtime_error);
  EXPECT_THAT(executor.position().waits_for, HasSubstr("1F1 on lane network"));
}

TEST(Lanes, OnAnAcceleratorAreStreamsThatWaitForWhatTheyTake) {
  const Placement placement = testing::on_lanes(testing::chain({0, 0, 0, 1, 1, 1}), {1, 4});
  const Program program = lower(testing::backward_first(placement, 4), placement);
  testing::StreamExchange exchange(testing::Queue::of_a_pair);
  const auto device_of = [](int rank) {
    return at::Device(kFakeDevice, static_cast<c10::DeviceIndex>(rank));
  };
  std::map<int, testing::ToldLayer> layers;
  for (int s = 0; s < 6; ++s)
    layers.try_emplace(s, program.stages[s], s, device_of(program.stages[s].devices[0]));
  EXPECT_EQ(testing::together(testing::run_all(program, exchange, layers, {.device_of = device_of})), "");
  EXPECT_EQ(testing::together(fake_races()), "");
}

TEST(LanesLower, StandInTheListOfTheirRank) {
  const Placement placement = testing::on_lanes(testing::chain({0, 0, 1}), {1});
  const Program program = lower(testing::backward_first(placement, 2), placement);
  ASSERT_EQ(program.ranks.size(), 2u);
  EXPECT_EQ(program.stages[1].devices, (std::vector<int>{0}));
  for (const Instruction& i : program.ranks[0])
    if (!is_compute(i.action)) {
      EXPECT_EQ(i.stage, 1) << to_string(i);  // nothing travels between a device and its lane
    }
}

TEST(LanesLower, RunOnTheFirstOfThoseThatTheirBlocksHold) {
  Placement placement = testing::on_lanes(testing::chain({0, 0, 1}), {1});
  hold(placement, "1", "copy");
  hold(placement, "2", "network");
  const Program program = lower(testing::backward_first(placement, 2), placement);
  EXPECT_EQ(program.stages[0].holds, std::vector<std::string>{});
  EXPECT_EQ(program.stages[1].lane, "copy");
  EXPECT_EQ(program.stages[1].holds, std::vector<std::string>{"network"});
  EXPECT_EQ(program.stages[2].lane, "");
  EXPECT_EQ(program.stages[2].holds, std::vector<std::string>{"network"});
}

TEST(LanesLower, AreTheSameForAllBlocksOfAStage) {
  Placement placement = testing::on_lanes(testing::chain({0, 0, 1}), {1});
  hold(placement, "2", "network");
  placement.blocks[placement.find_block("2.B")].devices = {1};
  const Plan plan = testing::backward_first(placement, 2);
  try {
    lower(plan, placement);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("blocks of stage '2' are on different lanes"));
  }
}

}  // namespace
}  // namespace ostinato
