// SPDX-License-Identifier: Apache-2.0
// Named schedules take the time and the memory that their papers give.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/search/named/named_runs.h"

namespace ostinato {
namespace {

TEST(GPipe, NeedsTheTimeAndMemoryOfItsPaper) {
  for (const int d : {1, 2, 4, 7}) {
    for (const int n : {1, 3, 8}) {
      const Placement placement = shape("v", whole(d, 1, 2, 5));
      EXPECT_EQ(makespan("gpipe", placement, n), (n + d - 1) * 7);
      EXPECT_EQ(peaks("gpipe", placement, n), std::vector<Bytes>(d, n));
    }
  }
}

TEST(OneFOneB, NeedsTheTimeAndMemoryOfItsPaper) {
  for (const int d : {1, 2, 4, 7}) {
    for (const int n : {1, 2, 3, 8, 15}) {
      const Placement placement = shape("v", whole(d, 1, 2, 5));
      EXPECT_EQ(makespan("1f1b", placement, n), (n + d - 1) * 7);
      std::vector<Bytes> expected;
      for (int r = 0; r < d; ++r) expected.push_back(std::min(n, d - r));
      EXPECT_EQ(peaks("1f1b", placement, n), expected);
    }
  }
}

TEST(OneFOneB, AlternatesInTheSteadyState) {
  const Placement placement = shape("v", whole(2, 1, 1, 1));
  const NamedSchedule named = named_schedule("1f1b", placement, 3);
  ASSERT_TRUE(named.orders);
  const int f = placement.find_block("s0.F");
  const int b = placement.find_block("s0.B");
  EXPECT_EQ((*named.orders)[0], (std::vector<Step>{{f, 0}, {f, 1}, {b, 0}, {f, 2}, {b, 1}, {b, 2}}));
}

TEST(Interleaved, NeedsTheTimeAndMemoryOfItsPaper) {
  for (const int d : {2, 4, 5}) {
    for (const int c : {2, 3}) {
      for (const int groups : {1, 2, 4}) {
        const Placement placement = shape("looped", whole(d, c, 2, 5));
        const int n = groups * d;
        EXPECT_EQ(makespan("interleaved-1f1b", placement, n), (n * c + d - 1) * 7)
            << d << ' ' << c << ' ' << n;
        std::vector<Bytes> expected;
        for (int r = 0; r < d; ++r) expected.push_back(std::min(n * c, 2 * (d - r - 1) + (c - 1) * d + 1));
        EXPECT_EQ(peaks("interleaved-1f1b", placement, n), expected);
      }
    }
  }
}

TEST(ZeroBubble, H1HoldsWhat1F1BHoldsAndLosesAThird) {
  for (const int d : {2, 4, 6}) {
    for (const int n : {d, 2 * d, 5 * d}) {
      const Placement placement = shape("v", unit_split(d));
      EXPECT_EQ(makespan("zb-h1", placement, n), 3 * n + d - 1) << d << ' ' << n;
      const std::vector<Bytes> held = peaks("zb-h1", placement, n);
      EXPECT_EQ(*std::max_element(held.begin(), held.end()), d);
    }
  }
}

TEST(ZeroBubble, H2LeavesNoBubbleWithinADevice) {
  for (const int d : {2, 4, 6}) {
    for (const int n : {2 * d - 1, 2 * d, 5 * d}) {
      const Placement placement = shape("v", unit_split(d));
      const std::vector<ScheduledBlock> schedule = run("zb-h2", placement, n);
      EXPECT_EQ(span_of(placement, schedule), 3 * n) << d << ' ' << n;
      const std::vector<Bytes> held = peak_memory(placement, schedule);
      EXPECT_EQ(*std::max_element(held.begin(), held.end()), 2 * d - 1);
    }
  }
}

TEST(LoopedBfs, NeedsTheTimeAndMemoryOfItsPaper) {
  const Placement placement = shape("looped", whole(4, 3, 2, 5));
  EXPECT_EQ(makespan("looped-bfs", placement, 8), (8 * 3 + 4 - 1) * 7);
  EXPECT_EQ(peaks("looped-bfs", placement, 8), std::vector<Bytes>(4, 8 * 3));
}

TEST(InterleavedZeroBubble, LosesWhatH1LosesWithChunks) {
  for (const int d : {2, 4, 8}) {
    for (const int c : {2, 3}) {
      for (const int n : {d, 2 * d, 4 * d}) {
        const Placement placement = shape("looped", unit_split(d, c));
        EXPECT_EQ(makespan("interleaved-zb", placement, n), 3 * n * c + d - 1) << d << ' ' << c << ' ' << n;
        EXPECT_EQ(peaks("interleaved-zb", placement, n), std::vector<Bytes>(d, d * c));
      }
    }
  }
}

// Zero Bubble, table 1 and section 4.3: with room for p micro-batches the heuristic is ZB-H1 where F = I = W,
// with room for 2 p no device idles between its first and last block.
TEST(ZeroBubble, AutomaticSchedulesReachTheirPaperWithinTheirMemory) {
  for (const int d : {2, 4, 8}) {
    for (const int n : {2 * d, 3 * d, 4 * d}) {
      const Placement placement = shape("v", unit_split(d));
      const auto one = run("zb-1p", placement, n), two = run("zb-2p", placement, n);
      EXPECT_EQ(span_of(placement, one), 3 * n + d - 1) << d << ' ' << n;
      EXPECT_EQ(span_of(placement, two), 3 * n) << d << ' ' << n;
      for (const Bytes held : peak_memory(placement, one)) EXPECT_LE(held, d);
      for (const Bytes held : peak_memory(placement, two)) EXPECT_LE(held, 2 * d);
    }
  }
}

/// Stage times and transfers in proportions that were measured on GPUs (the last stage computes the loss).
Placement measured(int devices, Bytes room) {
  ShapeOptions options;
  options.devices = devices;
  std::vector<Nanoseconds> f(devices, 290), i(devices, 293), w(devices, 192);
  f.back() = 417, i.back() = 387, w.back() = 328;
  options.forward = f, options.backward = i, options.weight = w;
  options.link.latency = 5;
  options.capacity = room;
  return shape("v", options);
}

TEST(ZeroBubble, AutomaticScheduleIsNoLongerThanTheFixedOnesOnUnevenStages) {
  for (const int d : {4, 8}) {
    const Placement placement = measured(d, kUnlimited);
    for (const int n : {2 * d, 4 * d}) {
      const auto span = [&](const char* name) { return span_of(placement, run(name, placement, n)); };
      EXPECT_LE(span("zb-1p"), span("zb-h1"));
      EXPECT_LE(span("zb-2p"), span("zb-h2"));
      EXPECT_LE(span("zb-2p"), span("zb-1p"));
    }
  }
}

TEST(ZeroBubble, AutomaticScheduleKeepsToTheRoomOfTheDevices) {
  for (const Bytes room : {1, 2, 3, 5}) {
    const Placement placement = measured(4, room);
    for (const Bytes held : peaks("zb-auto", placement, 9)) EXPECT_LE(held, room);
  }
  EXPECT_EQ(named_schedule("zb-auto", measured(4, 0), 3).why_not, "zb-auto finds no order within the memory");
}

// Chimera, section 3.1 and table 2, with F = B: 2 N' blocks of one slot and D - 2 idle slots for the N' = 2 N
// micro-batches of both directions, and between D / 2 + 1 and D activations.
TEST(Chimera, NeedsTheTimeAndMemoryOfItsPaper) {
  for (const int d : {2, 4, 6, 8}) {
    for (const int units : {1, 2, 5}) {
      const Placement placement = shape("x", whole(d, 1, 3, 3));
      const int n = units * d / 2;
      EXPECT_EQ(makespan("chimera", placement, n), (4 * n + d - 2) * 3) << d << ' ' << n;
      const std::vector<Bytes> held = peaks("chimera", placement, d / 2);
      EXPECT_EQ(*std::min_element(held.begin(), held.end()), d / 2 + 1);
      EXPECT_EQ(*std::max_element(held.begin(), held.end()), d);
    }
  }
}

struct Times {
  Nanoseconds f, i, w;
};

/// Of DualPipe with PP stages: (PP / 2 - 1)(F&B + B - 3 W) with B = I + W, F&B = F + B.
Nanoseconds dual_pipe_bubble(int stages, const Times& t) {
  return (stages / 2 - 1) * (t.f + 2 * (t.i + t.w) - 3 * t.w);
}

// DeepSeek-V3, table 2. A device here starts the second block of a pair as soon as the first one has ended,
// so the bubble may be smaller.
TEST(DualPipe, NeedsAtMostTheBubbleOfItsReport) {
  for (const Times& t : {Times{1, 1, 1}, Times{2, 3, 2}, Times{4, 5, 3}}) {
    for (const int d : {2, 4, 8}) {
      for (const int n : {d, 2 * d}) {
        const ShapeOptions options{.devices = d, .forward = t.f, .backward = t.i, .weight = t.w};
        const Placement placement = shape("x", options);
        EXPECT_LE(makespan("dualpipe", placement, n), 2 * n * (t.f + t.i + t.w) + dual_pipe_bubble(d, t));
        EXPECT_EQ(peaks("dualpipe", placement, n), std::vector<Bytes>(d, d + 1));
      }
    }
  }
}

TEST(DualPipeV, IsHalfOfADualPipeOfTwiceTheDevices) {
  for (const Times& t : {Times{1, 1, 1}, Times{2, 3, 2}, Times{4, 5, 3}}) {
    for (const int d : {2, 4}) {
      for (const int n : {2 * d, 4 * d}) {
        ShapeOptions options{.devices = d, .forward = t.f, .backward = t.i, .weight = t.w};
        const Placement placement = shape("wave", options);
        EXPECT_LE(makespan("dualpipe-v", placement, n),
                  2 * n * (t.f + t.i + t.w) + dual_pipe_bubble(2 * d, t));
        EXPECT_EQ(peaks("dualpipe-v", placement, n), std::vector<Bytes>(d, 2 * d + 1));
        options.devices = 2 * d;
        EXPECT_EQ(makespan("dualpipe", shape("x", options), n), makespan("dualpipe-v", placement, n));
      }
    }
  }
}

// Hanayo, section 3: bubble ratio (2 D - 2) / (3 D W + D - 1) for N = D and B = 2 F, up to one forward of a
// chunk: the paper divides what is one block here.
TEST(Hanayo, LosesAtMostWhatItsPaperSays) {
  for (const int d : {2, 4, 8}) {
    for (const int waves : {1, 2, 4}) {
      const Placement placement = shape("wave", whole(d, 2 * waves, 1, 2));
      const Nanoseconds length = makespan("hanayo", placement, d);
      const Nanoseconds idle = length - 6 * waves * d - 1;
      EXPECT_LE(idle * (3 * d * waves + d - 1), length * (2 * d - 2)) << d << ' ' << waves;
      for (const Bytes held : peaks("hanayo", placement, 3 * d)) EXPECT_LE(held, 2 * waves * d);
    }
  }
}

TEST(OneFOneBPlus, HoldsAsManyMicroBatchesAsDevices) {
  for (const char* kind : {"m", "nn", "nn-first", "multimodal", "x", "k", "chains"}) {
    const ShapeOptions options{.forward = 1, .backward = 3, .shard_memory = 0};
    const Placement placement = shape(kind, options);
    Nanoseconds busy = 0;
    std::vector<Bytes> stages(4, 0);
    for (const Block& block : placement.blocks) {
      busy += block.devices.front() == 0 ? block.time : 0;
      for (const int d : block.devices) stages[d] += std::max<Bytes>(0, block.memory);
    }
    const std::vector<Bytes> held = peaks("1f1b+", placement, 12);
    for (int d = 0; d < 4; ++d) EXPECT_LE(held[d], 4 * stages[d]) << kind;
    EXPECT_LT(makespan("1f1b+", placement, 12), 2 * 12 * busy) << kind;
  }
}

/// The placements that a schedule may be for, with split and with whole backwards.
std::vector<Placement> trainings(int devices) {
  std::vector<Placement> all;
  for (const char* kind : {"v", "x", "looped", "wave", "m", "k"}) {
    for (const Nanoseconds weight : {0, 1}) {
      ShapeOptions options = unit_split(devices, 2);
      options.backward = weight == 0 ? 2 : 1;
      options.weight = weight;
      all.push_back(shape(kind, options));
    }
  }
  return all;
}

// tests/bench/named_bench does the same for 4, 8 and 16 devices.
TEST(Named, SearchIsNeverLongerAtTheMemoryOfASchedule) {
  std::vector<Placement> all = trainings(4);
  for (const char* kind : {"v", "x", "looped", "wave"})
    for (const Nanoseconds exchange : {2, 5})
      all.push_back(in_parts(shape(kind, whole(4, 2, 4, 8)), exchange));
  for (Placement placement : all) {
    std::map<std::vector<Bytes>, Nanoseconds> best_at;
    for (const std::string& name : named_schedules()) {
      if (!named_schedule(name, placement, 8).orders) continue;
      const auto schedule = run(name, placement, 8);
      const auto [known, is_new] = best_at.emplace(peak_memory(placement, schedule), kUnlimited);
      known->second = std::min(known->second, makespan_of(placement, schedule));
    }
    for (const auto& [memory, makespan] : best_at) {
      for (std::size_t d = 0; d < memory.size(); ++d)
        if (placement.devices[d].lane_of < 0) placement.devices[d].memory = memory[d];
      const Plan plan = search(placement, {.micro_batches = 8, .time_limit_seconds = 1});
      test::expect_holds(plan, placement);
      EXPECT_LE(plan.makespan, makespan) << placement.name << ", " << plan.search.method;
    }
  }
}

struct VShaped {
  const char* name;
  int devices;
  Bytes chunks;        ///< the busiest device holds no more
  Nanoseconds bubble;  ///< makespan beyond 6 units a micro-batch
};

class VShapedSchedule : public testing::TestWithParam<VShaped> {};

// Controllable Memory, table 1: 1F1B's activations (2 D chunks), half and a third of them, up to a constant;
// the period is the load of a device. With 4 devices, zb-v and v-min are optimal for 8 and 4 chunks (51 and
// 59 for 8 micro-batches).
TEST_P(VShapedSchedule, HoldsItsShareOfMemoryAtTheFullRate) {
  const VShaped known = GetParam();
  const Placement placement = shape("wave", unit_split(known.devices, 2));
  for (const int n : {2 * known.devices, 4 * known.devices}) {
    EXPECT_LE(makespan(known.name, placement, n), 6 * n + known.bubble) << n;
    const std::vector<Bytes> held = peaks(known.name, placement, n);
    EXPECT_LE(*std::max_element(held.begin(), held.end()), known.chunks);
  }
}

// Zero Bubble, section 6: D - 1 idle units for F = I = W; the order of passes is fixed, and where they differ
// no idle unit is longer than the longest pass.
TEST(ZeroBubble, VLosesOnePassARank) {
  for (const int d : {2, 4, 8}) {
    for (const int n : {2 * d - 1, 2 * d, 4 * d}) {
      EXPECT_EQ(makespan("zb-v", shape("wave", unit_split(d, 2)), n), 6 * n + d - 1);
      const ShapeOptions uneven{.devices = d, .forward = 10, .backward = 12, .weight = 8};
      EXPECT_LE(makespan("zb-v", shape("wave", uneven), n), 60 * n + (d - 1) * 12) << d << ' ' << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, VShapedSchedule,
                         testing::Values(VShaped{"zb-v", 2, 4, 1}, VShaped{"zb-v", 4, 8, 3},
                                         VShaped{"zb-v", 8, 16, 7}, VShaped{"v-half", 4, 4 + 2, 9},
                                         VShaped{"v-half", 8, 8 + 2, 21}, VShaped{"v-min", 4, 4, 11},
                                         VShaped{"v-min", 9, 6 + 2, 31}),
                         [](const auto& test) {
                           std::string name = test.param.name + std::to_string(test.param.devices);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace ostinato
