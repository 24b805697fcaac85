// SPDX-License-Identifier: Apache-2.0
#include "search/simulate/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "search/files/error.h"
#include "search/named/named.h"
#include "search/placement/shapes.h"
#include "search/simulate/step_graph.h"

namespace ostinato {
namespace {

std::vector<ScheduledBlock> run(const std::string& name, const Placement& placement, int micro_batches) {
  const NamedSchedule named = named_schedule(name, placement, micro_batches);
  return *earliest_starts(placement, micro_batches, *named.orders);
}

Placement v(Nanoseconds latency = 0) {
  Placement placement = shape("v", {.devices = 4, .forward = 1000, .backward = 2000});
  placement.link.latency = latency;
  return placement;
}

TEST(Simulate, WithoutVariationIsThePlanItself) {
  const Placement placement = v(50);
  const auto schedule = run("1f1b", placement, 8);
  const Simulation result = simulate(placement, 8, schedule, {.runs = 3});
  EXPECT_EQ(result.planned, makespan_of(placement, schedule));
  EXPECT_EQ(result.makespans, std::vector<Nanoseconds>(3, result.planned));
}

TEST(Simulate, IsDeterministicAndDependsOnTheSeed) {
  const Placement placement = v();
  const auto schedule = run("1f1b", placement, 8);
  const SimulateOptions options{.jitter_ppm = 100'000, .seed = 3, .runs = 20};
  SimulateOptions other = options;
  other.seed = 4;
  EXPECT_EQ(simulate(placement, 8, schedule, options).makespans,
            simulate(placement, 8, schedule, options).makespans);
  EXPECT_NE(simulate(placement, 8, schedule, options).makespans,
            simulate(placement, 8, schedule, other).makespans);
}

TEST(Simulate, StaysWithinTheJitter) {
  const Placement placement = v();
  const auto schedule = run("gpipe", placement, 8);
  const Simulation result = simulate(placement, 8, schedule, {.jitter_ppm = 100'000, .runs = 200});
  EXPECT_GE(result.makespans.front(), result.planned * 9 / 10);
  EXPECT_LE(result.worst(), result.planned * 11 / 10);
  EXPECT_LT(result.makespans.front(), result.worst());
  EXPECT_LE(result.median(), result.worst());
}

TEST(Simulate, ScalesTransfers) {
  const Placement placement = v(100);
  const auto schedule = run("1f1b", placement, 1);
  EXPECT_EQ(simulate(placement, 1, schedule, {}).worst(), 12000 + 6 * 100);
  EXPECT_EQ(simulate(placement, 1, schedule, {.transfer_ppm = 2'500'000}).worst(), 12000 + 6 * 250);
  EXPECT_EQ(simulate(placement, 1, schedule, {.transfer_ppm = 0}).worst(), 12000);
}

TEST(Simulate, RunsBlocksWithoutTimeInTheOrderOfTheirDevice) {
  Placement placement = v();
  for (Block& block : placement.blocks) block.time = 0;
  EXPECT_EQ(simulate(placement, 4, run("1f1b", placement, 4), {}).worst(), 0);
}

TEST(StepGraph, RefusesOrdersThatContradictEachOther) {
  const Placement placement = shape("v", {.devices = 1});
  const int f = placement.find_block("s0.F");
  const int b = placement.find_block("s0.B");
  EXPECT_NO_THROW(StepGraph(placement, 1, {{{f, 0}, {b, 0}}}));
  EXPECT_THROW(StepGraph(placement, 1, {{{b, 0}, {f, 0}}}), InputError);
}

/// Work, transfers and idle time of a chain add up to the makespan: nothing is skipped.
void expect_gapless(const Placement& placement, const std::vector<CriticalStep>& chain,
                    Nanoseconds makespan) {
  Nanoseconds time = 0;
  for (const CriticalStep& link : chain) {
    EXPECT_EQ(time + link.transfer + link.idle, link.step.start);
    time = link.step.start + placement.blocks[link.step.block].time;
  }
  EXPECT_EQ(time, makespan);
}

TEST(CriticalChain, ReachesFromTheStartToTheMakespan) {
  for (const Nanoseconds latency : {0, 70}) {
    for (const char* name : {"gpipe", "1f1b"}) {
      const Placement placement = v(latency);
      const auto schedule = run(name, placement, 6);
      expect_gapless(placement, critical_chain(placement, 6, schedule), makespan_of(placement, schedule));
    }
  }
}

TEST(CriticalChain, NamesTheTransfer) {
  const Placement placement = v(100);
  const auto chain = critical_chain(placement, 1, run("1f1b", placement, 1));
  ASSERT_EQ(chain.size(), 8u);
  EXPECT_EQ(chain[0].binding, Binding::begin);
  EXPECT_EQ(chain[1].binding, Binding::transfer);
  EXPECT_EQ(chain[1].transfer, 100);
  EXPECT_EQ(chain[4].binding, Binding::device);  // the last stage turns around
}

TEST(CriticalChain, NamesTheMemoryThatAForwardWaitsFor) {
  Placement placement = shape("v", {.devices = 1});
  const auto schedule = run("1f1b", placement, 3);
  const auto waiting = [&](Bytes capacity) {
    placement.devices[0].memory = capacity;
    const auto chain = critical_chain(placement, 3, schedule);
    return std::count_if(chain.begin(), chain.end(),
                         [](const auto& c) { return c.binding == Binding::memory; });
  };
  EXPECT_EQ(waiting(1), 2);  // the second and the third forward
  EXPECT_EQ(waiting(3), 0);
}

TEST(CriticalChain, NamesIdleTime) {
  const Placement placement = v();
  auto schedule = run("1f1b", placement, 2);
  for (ScheduledBlock& step : schedule) step.start += step.start > 0 ? 500 : 0;
  const auto chain = critical_chain(placement, 2, schedule);
  expect_gapless(placement, chain, makespan_of(placement, schedule));
  EXPECT_EQ(
      std::count_if(chain.begin(), chain.end(), [](const auto& c) { return c.binding == Binding::none; }), 1);
}

/// The explanation of a plan, as one text.
std::string explained(const Placement& placement, int micro_batches,
                      const std::vector<ScheduledBlock>& schedule) {
  std::string text;
  for (const std::string& line : explain(placement, critical_chain(placement, micro_batches, schedule)))
    text += line + "\n";
  return text;
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Explain, NamesTheDeviceWhoseWorkBinds) {
  const Placement placement = shape("v", {.devices = 1, .forward = 1000, .backward = 2000});
  const std::string text = explained(placement, 4, run("gpipe", placement, 4));
  expect_says(text, "The critical chain determines the makespan of 12 us: 8 steps");
  expect_says(text, "It runs from s0.F of micro-batch 0 to s0.B of micro-batch");
  expect_says(text, "device0 limits the step: its work is 12 us (100 %) of the chain.");
  expect_says(text, "making the other devices faster would not.");
}

TEST(Explain, SaysWhatOtherDevicesCost) {
  Placement placement = v();
  for (Block& block : placement.blocks)
    if (block.devices.front() == 0) block.time = 60'000;
  const std::string text = explained(placement, 1, run("1f1b", placement, 1));
  expect_says(text, "device0 limits the step: its work is 120 us (93 %) of the chain.");
  expect_says(text, "making the other devices faster would shorten it by at most 9 us.");
}

TEST(Explain, NamesTheDeviceWithAllItsWorkInTheChain) {
  Placement placement = v();
  for (Block& block : placement.blocks)
    if (block.devices.front() == 1) block.time *= 3;
  const std::string text = explained(placement, 8, run("1f1b", placement, 8));
  expect_says(text, "device1 limits the step: its work is ");
}

TEST(Explain, NamesTheWayThroughThePipelineAndTheSlowestLink) {
  Placement placement = v(100);
  placement.links[{1, 2}] = {.latency = 900, .bytes_per_second = 0};
  const std::string text = explained(placement, 1, run("1f1b", placement, 1));
  expect_says(text, "No single device limits the step: ");
  expect_says(text, "The chain changes devices 6 times");
  expect_says(text, "mostly from device1 to device2 (900 ns)");
}

TEST(Explain, NamesTheMemoryAndWhoWaitsForWhom) {
  Placement placement = shape("v", {.devices = 1, .forward = 1000, .backward = 2000});
  placement.devices[0].memory = 1;
  const std::string text = explained(placement, 3, run("1f1b", placement, 3));
  expect_says(
      text,
      "The memory of device0 limits the step 2 times: s0.F of micro-batch 1 waits for the end of s0.B of "
      "micro-batch 0, because 1 B of its 1 B are missing until then; the last to wait is s0.F of "
      "micro-batch 2, for s0.B of micro-batch 1; with more memory");
}

TEST(Explain, SaysThatIdleTimeIsThePlansOwn) {
  const Placement placement = v();
  auto schedule = run("1f1b", placement, 2);
  expect_says(explained(placement, 2, schedule), "0 ns of idle time.");
  for (ScheduledBlock& step : schedule) step.start += step.start > 0 ? 500 : 0;
  const std::string text = explained(placement, 2, schedule);
  expect_says(text, "500 ns of idle time.");
  expect_says(text, "The idle time is not necessary");
}

TEST(Explain, SaysThatAPlanIsEmpty) { EXPECT_EQ(explained(v(), 0, {}), "The plan is empty.\n"); }

TEST(Simulate, QuantilesAreRunsInTheirOrder) {
  Simulation s;
  for (Nanoseconds t = 1; t <= 101; ++t) s.makespans.push_back(t);
  EXPECT_EQ(s.at(0), 1);
  EXPECT_EQ(s.at(10), 11);
  EXPECT_EQ(s.median(), 51);
  EXPECT_EQ(s.at(100), s.worst());
  s.makespans = {7};
  EXPECT_EQ(s.at(0), 7);
  EXPECT_EQ(s.at(99), 7);
  for (int runs = 1; runs <= 120; ++runs) {
    s.makespans.resize(static_cast<std::size_t>(runs));
    std::iota(s.makespans.begin(), s.makespans.end(), 1);
    for (int percent = 1; percent <= 100; ++percent) {
      EXPECT_GE(s.at(percent) * 100, runs * percent);
      EXPECT_LT((s.at(percent) - 1) * 100, runs * percent);
    }
  }
}

}  // namespace
}  // namespace ostinato
