// SPDX-License-Identifier: Apache-2.0
// Devices that share processors: against an oracle that follows every block with fractions.

#include "search/simulate/shared_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "search/files/error.h"
#include "search/named/named.h"
#include "search/placement/placement_toml.h"
#include "search/placement/shapes.h"
#include "search/simulate/simulate.h"
#include "tests/search/random_plan.h"
#include "tests/support/refusal.h"

namespace ostinato {
namespace {

std::vector<ScheduledBlock> one_f_one_b(const Placement& placement, int micro_batches) {
  return *earliest_starts(placement, micro_batches, *named_schedule("1f1b", placement, micro_batches).orders);
}

/// Blocks without inputs, one a device, as the times say.
Placement apart(const std::vector<Nanoseconds>& times, int cores) {
  Placement placement;
  Host host{.devices = {}, .cores = cores};
  for (std::size_t d = 0; d < times.size(); ++d) {
    const std::string name = "b" + std::to_string(d);
    placement.devices.emplace_back().name = "d" + std::to_string(d);
    Block& block = placement.blocks.emplace_back();
    block.name = block.stage = name;
    block.devices = {static_cast<int>(d)};
    block.time = times[d];
    host.devices.push_back(static_cast<int>(d));
  }
  placement.hosts = {host};
  return placement;
}

Nanoseconds all_at_once(const Placement& placement) {
  std::vector<ScheduledBlock> schedule;
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) schedule.push_back({static_cast<int>(b), 0, 0});
  return replayed_makespan(placement, 1, schedule);
}

TEST(SharedReplay, SharesAProcessorOutEqually) {
  EXPECT_EQ(all_at_once(apart({10, 10}, 1)), 20);
  EXPECT_EQ(all_at_once(apart({10, 30}, 1)), 40);  // 20 together, then 20 alone
  EXPECT_EQ(all_at_once(apart({10, 10, 10}, 2)), 15);
  EXPECT_EQ(all_at_once(apart({10, 10, 40}, 2)), 45);  // 15 together, then 30 alone
  EXPECT_EQ(all_at_once(apart({10, 20, 30}, 3)), 30);
  EXPECT_EQ(all_at_once(apart({0, 0, 7}, 1)), 7);
}

TEST(SharedReplay, TheOptimizersStepComesAfterTheLastBlock) {
  Placement placement = apart({10, 30, 20}, 2);
  const auto step = [&](const std::vector<Nanoseconds>& times) {
    std::vector<ScheduledBlock> schedule;
    for (int b = 0; b < 3; ++b) schedule.push_back({b, 0, 0});
    return whole_step(placement, 1, schedule, times);
  };
  const Nanoseconds shared = step({});
  EXPECT_EQ(shared, all_at_once(placement));
  EXPECT_EQ(step({4, 4, 4}), shared + 6);    // three of them on two processors
  EXPECT_EQ(step({0, 0, 50}), shared + 50);  // one alone
  placement.hosts.clear();
  EXPECT_EQ(step({}), 30);
  EXPECT_EQ(step({19, 0, 9}), 30);  // which end before the last block
  EXPECT_EQ(step({25, 1, 0}), 35);
}

TEST(SharedReplay, AWaitLeavesTheProcessorToTheOthers) {
  Placement placement = apart({10, 10, 20}, 1);
  placement.blocks[1].after = {{0, 0}};
  EXPECT_EQ(all_at_once(placement), 40);
  placement.link.latency = 100;  // 10 and 20 together until 20, the 20 alone until 30, then nobody until 120
  EXPECT_EQ(all_at_once(placement), 130);
}

TEST(SharedReplay, AStepOnSeveralDevicesTakesAPartOfEach) {
  Placement placement = apart({10, 10}, 1);
  placement.blocks.pop_back();
  placement.blocks[0].devices = {0, 1};
  EXPECT_EQ(all_at_once(placement), 20);
}

/// Follows all blocks from one change to the next, with fractions.
double oracle(const Placement& placement, int micro_batches, const std::vector<ScheduledBlock>& schedule) {
  const Orders orders = orders_of(placement, schedule);
  const int blocks = static_cast<int>(placement.blocks.size());
  std::vector<double> left(placement.devices.size(), 0), ends(blocks * micro_batches, -1);
  std::vector<std::size_t> next(placement.devices.size(), 0);
  std::vector<int> doing(placement.devices.size(), -1);
  std::set<int> open;  // steps that have begun and not ended
  double now = 0, last = 0;
  constexpr double kTiny = 1e-9;
  const auto arrival = [&](const Step& step) {
    double latest = 0;
    for (const Dependency& input : placement.blocks[step.block].after) {
      const double end = ends[step.micro_batch * blocks + input.block];
      if (end < 0) return INFINITY + 0.0;
      latest = std::max(latest, end + static_cast<double>(placement.transfer(input, step.block)));
    }
    return latest;
  };
  for (;;) {
    double until = INFINITY;
    for (bool again = true; again;) {  // what has no time begins and ends at one instant
      again = false;
      for (std::size_t d = 0; d < orders.size(); ++d) {
        if (doing[d] >= 0 || next[d] == orders[d].size()) continue;
        const Step step = orders[d][next[d]];
        const std::vector<int>& devices = placement.blocks[step.block].devices;
        const bool free = std::all_of(devices.begin(), devices.end(), [&](int e) {
          return doing[e] < 0 && next[e] < orders[e].size() && orders[e][next[e]].block == step.block &&
                 orders[e][next[e]].micro_batch == step.micro_batch;
        });
        if (!free) continue;
        const double from = arrival(step);
        if (from > now + kTiny) {
          until = std::min(until, from);
          continue;
        }
        for (const int e : devices) {
          doing[e] = step.micro_batch * blocks + step.block;
          left[e] = static_cast<double>(placement.blocks[step.block].time);
        }
        open.insert(doing[d]);
      }
      for (auto s = open.begin(); s != open.end();) {
        bool done = true;
        for (const int e : placement.blocks[*s % blocks].devices) done = done && left[e] <= kTiny;
        if (!done) {
          ++s;
          continue;
        }
        for (const int e : placement.blocks[*s % blocks].devices) {
          doing[e] = -1;
          ++next[e];
        }
        ends[*s] = last = now;
        s = open.erase(s);
        again = true;
        until = INFINITY;
      }
    }
    std::vector<double> speed(placement.devices.size(), 1);
    for (const Host& host : placement.hosts) {
      int busy = 0;
      for (const int d : host.devices) busy += doing[d] >= 0 && left[d] > kTiny;
      for (const int d : host.devices) speed[d] = busy > host.cores ? double(host.cores) / busy : 1;
    }
    for (std::size_t d = 0; d < doing.size(); ++d)
      if (doing[d] >= 0 && left[d] > kTiny) until = std::min(until, now + left[d] / speed[d]);
    if (std::isinf(until)) return last;
    for (std::size_t d = 0; d < doing.size(); ++d)
      if (doing[d] >= 0 && left[d] > kTiny) left[d] -= (until - now) * speed[d];
    now = until;
  }
}

TEST(SharedReplay, AgreesWithAnOracleThatUsesFractions) {
  test::Random random(7);
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    Placement placement = test::random_placement(random);
    for (Block& block : placement.blocks) block.time *= random.between(1, 5'000);
    const int devices = static_cast<int>(placement.devices.size());
    Host host{.devices = {}, .cores = static_cast<int>(random.between(1, devices))};
    for (int d = static_cast<int>(random.between(0, 1)); d < devices; ++d) host.devices.push_back(d);
    if (!host.devices.empty()) placement.hosts = {host};
    const int micro_batches = static_cast<int>(random.between(1, 5));
    const Plan plan = test::random_plan(placement, micro_batches, random);
    const double expected = oracle(placement, micro_batches, plan.schedule);
    const Nanoseconds found = replayed_makespan(placement, micro_batches, plan.schedule);
    // Rounding up delays each change of who computes by less than a nanosecond.
    EXPECT_GE(static_cast<double>(found), expected - 1e-3);
    EXPECT_LE(static_cast<double>(found), expected + 4.0 * static_cast<double>(plan.schedule.size()) + 1e-3);
    EXPECT_GE(found, shared_work(placement, micro_batches));
  }
}

TEST(SharedReplay, EnoughProcessorsChangeNothing) {
  Placement placement = shape("v", {.devices = 4, .forward = 1000, .backward = 2000});
  const auto schedule = one_f_one_b(placement, 8);
  const SimulateOptions varied{.jitter_ppm = 200'000, .seed = 5, .runs = 10};
  const Simulation alone = simulate(placement, 8, schedule, varied);
  placement.hosts = {{.devices = {0, 1, 2, 3}, .cores = 4}};
  EXPECT_EQ(simulate(placement, 8, schedule, varied).makespans, alone.makespans);
  placement.hosts[0].cores = 2;
  EXPECT_EQ(simulate(placement, 8, schedule, {}).worst(),
            8 * 4 * 3000 / 2 + 3000);  // and what fills and drains
}

TEST(SharedReplay, TimesThatDoNotFitAreRefused) {
  Placement placement = apart({Nanoseconds{1} << 62, 1}, 1);
  placement.blocks[0].devices = {0, 1};
  placement.blocks[1].after = {{0, 0}};
  EXPECT_THROW(replayed_makespan(placement, 1, {{0, 0, 0}, {1, 0, Nanoseconds{1} << 62}}), InputError);
}

constexpr const char* kShared = R"(format = "ostinato-placement/1"
[[devices]]
[[devices]]
[[hosts]]
devices = [0, 1]
cores = 1
[[blocks]]
name = "a"
devices = [0]
time = 1
)";

TEST(Hosts, AreReadAndWritten) {
  const Placement placement = parse_placement(kShared, "p.toml").placement;
  ASSERT_EQ(placement.hosts.size(), 1u);
  EXPECT_EQ(placement.hosts[0].devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(placement.hosts[0].cores, 1);
  const std::string text = format_placement(placement);
  EXPECT_NE(text.find("[[hosts]]\ndevices = [0, 1]\ncores = 1\n"), std::string::npos);
  EXPECT_EQ(parse_placement(text, "q.toml").placement.hosts[0].devices, placement.hosts[0].devices);
}

std::string refusal(const std::string& text, const std::string& what, const std::string& instead) {
  return test::refusal_by([&] { parse_placement(test::replaced(text, what, instead), "p.toml"); });
}

TEST(Hosts, AreRefusedWithTheirLine) {
  EXPECT_NE(refusal(kShared, "cores = 1", "cores = 0").find("p.toml:6: "), std::string::npos);
  EXPECT_NE(refusal(kShared, "[0, 1]", "[0, 2]").find("p.toml:5: a device of the host"), std::string::npos);
  EXPECT_NE(refusal(kShared, "[0, 1]", "[0, 0]").find("p.toml:5: the host names device 0 twice"),
            std::string::npos);
  EXPECT_NE(refusal(kShared, "[0, 1]", "[]").find("p.toml:5: the host has no devices"), std::string::npos);
  const std::string twice = "cores = 1\n[[hosts]]\ndevices = [1]\ncores = 1";
  EXPECT_NE(refusal(kShared, "cores = 1", twice).find("p.toml:7: device 1 is on the host of line 4, too"),
            std::string::npos);
  EXPECT_NE(refusal(kShared, "cores = 1", "cors = 1").find("did you mean"), std::string::npos);
}

}  // namespace
}  // namespace ostinato
