// SPDX-License-Identifier: Apache-2.0
// An executor on an accelerator: what waits for what there, whatever the times are. Ranks are threads, each
// with a fake device of its own (tests/support/fake_memory.h) and a channel that treats streams as NCCL's
// does.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plugin/lowering/lower.h"
#include "tests/plugin/executor/support/accelerator_run.h"
#include "tests/plugin/executor/support/told_layer.h"
#include "tests/support/fake_memory.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;
using testing::AcceleratorRun;
using testing::backward_first;
using testing::chain;
using testing::Queue;
using testing::StreamExchange;
using testing::together;
using testing::ToldLayer;

/// Before anything runs backwards: autograd looks for devices once in a process.
[[maybe_unused]] const bool kRegistered = (register_fake_device(), true);

at::Device device_of(int rank) { return {kFakeDevice, static_cast<c10::DeviceIndex>(rank)}; }

std::map<int, ToldLayer> layers_of(const Program& program) {
  std::map<int, ToldLayer> layers;
  for (int s = 0; s < static_cast<int>(program.stages.size()); ++s)
    layers.try_emplace(s, program.stages[s], s, device_of(program.stages[s].devices[0]));
  return layers;
}

AcceleratorRun on_fake_devices() { return {.device_of = device_of}; }

/// Stage s feeds stage s + 1; each is on a rank of its own and only runs forward.
Program forwards(int stages, int micro_batches, Nanoseconds latency = 0) {
  testing::GraphOptions options{.device_of = {}, .edges = {}, .training = false, .latency = latency};
  for (int s = 0; s < stages; ++s) {
    options.device_of.push_back(s);
    if (s > 0) options.edges.emplace_back(s - 1, s);
  }
  const Placement placement = testing::graph(options);
  return lower(backward_first(placement, micro_batches), placement);
}

bool comes_before(const std::string& first, const std::string& second) {
  return ostinato::comes_before(find_fake_task(first), find_fake_task(second));
}

TEST(Accelerator, AReceiveDoesNotWaitForTheComputeBeforeIt) {
  Program program = forwards(3, 4);
  // 1F1, 1SEND_F1, 1RECV_F2, 1F2: the receive is issued behind the compute, because it passes no send.
  auto& list = program.ranks[1];
  const auto at = [&](const char* name) {
    return std::ranges::find(list, name, [](const Instruction& i) { return to_string(i); });
  };
  std::rotate(at("1RECV_F2"), at("1RECV_F2") + 1, at("1SEND_F1") + 1);
  ASSERT_EQ(at("1RECV_F2"), at("1SEND_F1") + 1);
  StreamExchange exchange(Queue::of_a_pair);
  auto layers = layers_of(program);
  EXPECT_EQ(together(run_all(program, exchange, layers, on_fake_devices())), "");
  // Message 4 * 2 + m from rank 0 to rank 1 is that of micro-batch m in the third step.
  EXPECT_FALSE(comes_before("2:1F1", "0>1 10"));
  EXPECT_TRUE(comes_before("0>1 10", "2:1F2"));
  EXPECT_FALSE(comes_before("0>1 11", "2:1F2"));  // nor a compute for the receive of the next one
  EXPECT_EQ(together(fake_races()), "");
}

TEST(Accelerator, AReceiveWaitsForTheLastThatReadItsBuffer) {
  const Program program = forwards(2, 4);
  StreamExchange exchange(Queue::of_a_pair);
  auto layers = layers_of(program);
  EXPECT_EQ(together(run_all(program, exchange, layers, on_fake_devices())), "");
  // Two buffers in turns.
  EXPECT_TRUE(comes_before("2:1F0", "0>1 10"));
  EXPECT_TRUE(comes_before("2:1F1", "0>1 11"));
  EXPECT_FALSE(comes_before("2:1F1", "0>1 10"));
  EXPECT_EQ(together(fake_races()), "");
}

TEST(Accelerator, ASendWaitsForItsProducerAlone) {
  Program program = forwards(2, 2);
  // 0F0, 0F1, 0SEND_F0, 0SEND_F1: allowed, and what a send behind another compute looks like.
  std::swap(program.ranks[0][1], program.ranks[0][2]);
  ASSERT_EQ(to_string(program.ranks[0][2]), "0SEND_F0");
  StreamExchange exchange(Queue::of_a_pair);
  auto layers = layers_of(program);
  EXPECT_EQ(together(run_all(program, exchange, layers, on_fake_devices())), "");
  EXPECT_TRUE(comes_before("2:0F0", "0>1 4"));
  EXPECT_FALSE(comes_before("2:0F1", "0>1 4"));
  EXPECT_TRUE(comes_before("2:0F1", "0>1 5"));
  EXPECT_EQ(together(fake_races()), "");
}

TEST(Accelerator, TheCurrentDeviceOfTheCallerMayBeAnother) {
  // A script that names its devices and calls no set_device().
  const Program program = lower(backward_first(chain({0, 1}), 4, 2), chain({0, 1}));
  StreamExchange exchange(Queue::of_a_direction);
  auto layers = layers_of(program);
  AcceleratorRun run = on_fake_devices();
  run.current = [](int) { return at::Device(kFakeDevice, 7); };
  EXPECT_EQ(together(run_all(program, exchange, layers, run)), "");
  EXPECT_EQ(together(fake_races()), "");
}

TEST(Accelerator, TransfersHideBehindComputes) {
  // A transfer of 9 ns beside computes of 10 and more: as planned, to the nanosecond.
  const Program program = forwards(4, 6, 9);
  StreamExchange exchange(Queue::of_a_pair, 9);
  auto layers = layers_of(program);
  std::vector<Nanoseconds> ends;
  AcceleratorRun run = on_fake_devices();
  run.on_step = [&] { ends.push_back(fake_devices_meet()); };
  EXPECT_EQ(together(run_all(program, exchange, layers, run)), "");
  EXPECT_EQ(ends[2] - ends[1], program.makespan);
}

struct Case {
  const char* name;
  std::vector<int> device_of;
  std::vector<std::pair<int, int>> edges;  ///< empty: a chain
  int micro_batches;
  int in_flight;
  bool split = false;
};

const Case kCases[] = {
    {"two", {0, 1}, {}, 4, 2},
    {"gpipe", {0, 1, 2}, {}, 4, 0},
    {"oneFoneB", {0, 1, 2, 3}, {}, 8, 4},
    {"looped", {0, 1, 0, 1}, {}, 5, 0},
    {"wave", {0, 1, 2, 2, 1, 0}, {}, 5, 0},
    {"skip", {0, 1, 2}, {{0, 1}, {0, 2}, {1, 2}}, 4, 0},
    {"branches", {0, 1, 0}, {{0, 2}, {1, 2}}, 4, 0},
    {"split", {0, 1, 2, 3}, {}, 6, 4, true},
};

Program program_of(const Case& c) {
  const Placement placement =
      c.edges.empty() ? chain(c.device_of, c.split)
                      : testing::graph({.device_of = c.device_of, .edges = c.edges, .split = c.split});
  return lower(backward_first(placement, c.micro_batches, c.in_flight), placement);
}

class AcceleratorCases : public ::testing::TestWithParam<std::tuple<Case, Queue>> {
 protected:
  void expect_reference(const Program& program, std::map<int, ToldLayer>& layers, int steps) {
    auto reference = testing::make_layers(program);
    for (int step = 0; step < steps; ++step) testing::run_reference(program, reference);
    for (auto& [s, layer] : reference) {
      EXPECT_TRUE(at::equal(layers.at(s).weight.grad().cpu(), layer.weight.grad())) << "stage " << s;
      EXPECT_TRUE(at::equal(layers.at(s).bias.grad().cpu(), layer.bias.grad())) << "stage " << s;
    }
  }
};

TEST_P(AcceleratorCases, NothingIsReadTooEarlyNorGivenAwayTooSoon) {
  const auto& [c, queue] = GetParam();
  const Program program = program_of(c);
  for (const bool dynamic : {false, true}) {
    StreamExchange exchange(queue);
    auto layers = layers_of(program);
    AcceleratorRun run = on_fake_devices();
    run.options.dynamic_shapes = dynamic;
    ASSERT_EQ(together(run_all(program, exchange, layers, run)), "");
    expect_reference(program, layers, run.steps);
  }
  EXPECT_EQ(together(fake_races()), "");
}

TEST_P(AcceleratorCases, TransfersAreIssuedInTheListsOrder) {
  const auto& [c, queue] = GetParam();
  const Program program = program_of(c);
  StreamExchange exchange(queue);
  auto layers = layers_of(program);
  EXPECT_EQ(together(run_all(program, exchange, layers, on_fake_devices())), "");
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    std::vector<std::pair<int, bool>> listed;
    for (int step = 0; step < 3; ++step) {
      for (const Instruction& i : program.ranks[rank])
        if (!is_compute(i.action)) listed.emplace_back(i.peer, is_send(i.action));
    }
    EXPECT_EQ(exchange.issued(rank), listed) << "rank " << rank;
  }
}

std::string name_of(Queue queue) {
  return queue == Queue::of_all ? "OneQueue" : queue == Queue::of_a_direction ? "Directions" : "";
}

INSTANTIATE_TEST_SUITE_P(
    , AcceleratorCases,
    ::testing::Combine(::testing::ValuesIn(kCases),
                       ::testing::Values(Queue::of_a_direction, Queue::of_a_pair, Queue::of_all)),
    [](const auto& test) { return std::get<0>(test.param).name + name_of(std::get<1>(test.param)); });

TEST(Accelerator, WordsThatDoNotComeAreNamed) {
  const Program program = forwards(2, 1);
  StreamExchange exchange(Queue::of_a_pair);
  auto layers = layers_of(program);
  fake_device_hangs(true);
  AcceleratorRun run = on_fake_devices();
  run.options.timeout = 20ms;
  const auto failures = run_all(program, exchange, layers, run);
  fake_device_hangs(false);
  EXPECT_THAT(failures[1], ::testing::HasSubstr(
                               "rank 1 waited 0.0 s for 1RECV_F0 from rank 0, instruction 0, which waits for "
                               "0SEND_F0 of rank 0 (its instruction 1)"));
}

}  // namespace
}  // namespace ostinato
