// SPDX-License-Identifier: Apache-2.0
#include "search/named/named.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "search/placement/lanes.h"
#include "search/placement/shapes.h"
#include "tests/search/checked.h"

namespace ostinato {
namespace {

ShapeOptions unit_split(int devices, int chunks = 1) {
  return {.devices = devices, .chunks = chunks, .forward = 1, .backward = 1, .weight = 1};
}

ShapeOptions whole(int devices, int chunks, Nanoseconds forward, Nanoseconds backward) {
  return {.devices = devices, .chunks = chunks, .forward = forward, .backward = backward};
}

std::vector<ScheduledBlock> run(const std::string& name, const Placement& placement, int micro_batches) {
  const NamedSchedule named = named_schedule(name, placement, micro_batches);
  if (!named.orders) {
    ADD_FAILURE() << name << ": " << named.why_not;
    return {};
  }
  auto schedule = earliest_starts(placement, micro_batches, *named.orders);
  if (!schedule)
    ADD_FAILURE() << name << " contradicts itself for " << placement.name << ", " << micro_batches;
  return schedule ? *schedule : std::vector<ScheduledBlock>{};
}

Nanoseconds makespan(const std::string& name, const Placement& placement, int micro_batches) {
  return makespan_of(placement, run(name, placement, micro_batches));
}

std::vector<Bytes> peaks(const std::string& name, const Placement& placement, int micro_batches) {
  return peak_memory(placement, run(name, placement, micro_batches));
}

/// Every stage of a chain, or of two, in four parts: it computes, exchanges on a lane, computes and
/// exchanges. Each exchange takes `exchange`, each computing part half of what the block took.
Placement in_parts(const Placement& whole, Nanoseconds exchange) {
  Placement parts;
  parts.name = whole.name + " in parts";
  parts.devices = whole.devices;
  std::vector<int> lane;
  for (int d = 0; d < static_cast<int>(whole.devices.size()); ++d)
    lane.push_back(add_lane(parts, d, "network"));
  for (const Block& block : whole.blocks) {
    const bool forward = block.kind == Kind::forward;
    const int first = static_cast<int>(parts.blocks.size());
    for (int k = 0; k < 4; ++k) {
      const int part = forward ? k : 3 - k;  // a backward begins with the exchange behind the stage
      Block made = block;
      made.name = block.name + std::to_string(part);
      made.stage = block.stage + "." + std::to_string(part);
      made.after.clear();
      if (part % 2 == 1) {
        made.devices = {lane[block.devices[0]]};
        made.memory = 0;
        made.time = exchange;
      } else {
        made.time = block.time / 2;
        if (part != 0) made.memory = 0;
      }
      if (k > 0) made.after.push_back({first + k - 1, 0});
      if (!forward) made.after.push_back({parts.find_block(block.stage + ".F" + std::to_string(part)), 0});
      parts.blocks.push_back(std::move(made));
    }
    for (const Dependency& input : block.after) {
      const Block& before = whole.blocks[input.block];
      if (before.stage != block.stage)
        parts.blocks[first].after.push_back({parts.find_block(before.name + (forward ? "3" : "0")), 0});
    }
  }
  link_lanes(parts);
  return parts;
}

TEST(Combined1F1B, HidesExchangesBehindComputing) {
  for (const int d : {1, 2, 4, 8}) {
    for (const Nanoseconds exchange : {1, 2}) {
      const Placement placement = in_parts(shape("v", whole(d, 1, 4, 8)), exchange);
      const Nanoseconds more =
          makespan("combined-1f1b", placement, 40) - makespan("combined-1f1b", placement, 30);
      EXPECT_EQ(more, 10 * (4 + 8)) << d << ' ' << exchange;  // what a device computes
      EXPECT_GT(makespan("1f1b", placement, 40) - makespan("1f1b", placement, 30), more);
      std::vector<Bytes> expected(2 * d, 0);
      for (int r = 0; r < d; ++r) expected[r] = 2 * (d - r);
      EXPECT_EQ(peaks("combined-1f1b", placement, 40), expected);
    }
  }
}

TEST(Combined1F1B, RunsLoopedChunks) {
  const Placement placement = in_parts(shape("looped", whole(4, 2, 4, 8)), 2);
  EXPECT_EQ(makespan("combined-1f1b", placement, 40) - makespan("combined-1f1b", placement, 32),
            8 * 2 * (4 + 8));
  EXPECT_LT(makespan("combined-1f1b", placement, 32), makespan("interleaved-1f1b", placement, 32));
}

TEST(DualPipe, HidesExchangesBehindComputing) {
  const Placement placement = in_parts(shape("x", whole(4, 1, 4, 8)), 2);
  EXPECT_EQ(makespan("dualpipe", placement, 40) - makespan("dualpipe", placement, 30), 10 * 2 * (4 + 8));
}

TEST(Named, SaysWhyNotOfLanes) {
  const auto why = [](const char* name, const Placement& placement) {
    return named_schedule(name, placement, 4).why_not;
  };
  const Placement v = shape("v", whole(4, 1, 4, 8));
  EXPECT_EQ(why("combined-1f1b", v), "combined-1f1b needs devices with lanes");
  EXPECT_EQ(why("dualpipe-v", in_parts(v, 1)), "dualpipe-v is not for devices with lanes");
  EXPECT_EQ(why("zb-1p", in_parts(v, 1)), "zb-1p is not for devices with lanes");
}

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

/// A placement of the shape whose times and links are anything.
Placement uneven(const std::string& name, const ShapeOptions& options, std::mt19937_64& random) {
  Placement placement = shape(name, options);
  placement.link.latency = static_cast<Nanoseconds>(random() % 5);
  for (Block& block : placement.blocks) block.time = static_cast<Nanoseconds>(random() % 20);
  return placement;
}

/// Every step once on each of its devices, and no cycle.
void expect_complete(const std::string& name, const Placement& placement, int n) {
  const NamedSchedule named = named_schedule(name, placement, n);
  if (!named.orders) {
    EXPECT_NE(named.why_not, "");
    return;
  }
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    std::map<std::pair<int, int>, int> seen;
    for (const Step& step : (*named.orders)[d]) ++seen[{step.block, step.micro_batch}];
    for (int b = 0; b < static_cast<int>(placement.blocks.size()); ++b) {
      const auto& devices = placement.blocks[b].devices;
      const bool here = std::find(devices.begin(), devices.end(), static_cast<int>(d)) != devices.end();
      for (int i = 0; i < n; ++i)
        ASSERT_EQ((seen[{b, i}]), here ? 1 : 0) << name << ' ' << placement.blocks[b].name;
    }
  }
  EXPECT_TRUE(earliest_starts(placement, n, *named.orders)) << name << " on " << placement.name << ", " << n;
}

TEST(Named, EveryScheduleRunsEverywhereThatItIsAdmitted) {
  std::mt19937_64 random(7);
  for (const std::string& kind : shape_names()) {
    for (const int devices : {2, 4, 6, 8}) {
      for (const int chunks : {1, 2, 3, 4}) {
        for (const Nanoseconds weight : {0, 1}) {
          ShapeOptions options = unit_split(devices, chunks);
          options.weight = weight;
          const Placement placement = uneven(kind, options, random);
          for (const std::string& name : named_schedules()) {
            for (const int n : {1, 2, 3, 5, 8, 13}) expect_complete(name, placement, n);
          }
        }
      }
    }
  }
}

TEST(Named, GPipeIsAdmittedEverywhereAndForInference) {
  for (const std::string& kind : shape_names()) {
    for (const bool training : {true, false}) {
      const Placement placement = shape(kind, {.training = training});
      EXPECT_TRUE(named_schedule("gpipe", placement, 3).orders) << kind;
    }
  }
}

TEST(Named, SaysWhyNot) {
  const auto why = [](const char* name, const Placement& placement) {
    return named_schedule(name, placement, 4).why_not;
  };
  const Placement v = shape("v", {});
  EXPECT_EQ(why("zb-h1", v), "zb-h1 needs the backward split into backward_input and backward_weight");
  EXPECT_EQ(
      why("interleaved-1f1b", v),
      "interleaved-1f1b needs several chunks per device, looped; this placement has one chunk per device");
  EXPECT_EQ(why("1f1b", shape("v", {.training = false})),
            "1f1b is a schedule for training; this placement runs no backward");
  EXPECT_EQ(why("1f1b", shape("m", {})),
            "1f1b needs a chain of stages with one device each: block embed.F holds 4 devices");
  EXPECT_EQ(why("1f1b", shape("x", {})),
            "1f1b needs a chain of stages with one device each: the forwards are not one chain: b0.F does "
            "not follow "
            "a3.F");
  EXPECT_EQ(why("interleaved-1f1b", shape("wave", {})),
            "interleaved-1f1b needs several chunks per device, looped; this placement has several chunks per "
            "device, "
            "as a wave");
}

TEST(Named, SaysWhyNotOfTwoChains) {
  const auto why = [](const char* name, const Placement& placement) {
    return named_schedule(name, placement, 4).why_not;
  };
  EXPECT_EQ(why("chimera", shape("v", {})),
            "chimera needs two chains in opposite directions: the placement has 1 independent part");
  EXPECT_EQ(
      why("dualpipe", shape("chains", {.devices = 4})),
      "dualpipe needs two chains in opposite directions: the chains do not run through the same devices in "
      "opposite directions");
  EXPECT_EQ(why("chimera", shape("x", {.training = false})),
            "chimera is a schedule for training; this placement runs no backward");
  EXPECT_EQ(why("1f1b+", shape("v", {})),
            "1f1b+ is not for a chain with one chunk per device: use 1f1b there");
}

TEST(Named, FollowsTheChainThroughAnyNumberingOfTheDevices) {
  Placement placement = shape("v", whole(3, 1, 2, 5));
  for (Block& block : placement.blocks) block.devices[0] = (block.devices[0] * 2 + 1) % 3;
  EXPECT_EQ(makespan("1f1b", placement, 6), (6 + 3 - 1) * 7);
}

TEST(Named, AdmitsSkipEdges) {
  Placement placement = shape("v", whole(4, 1, 2, 5));
  placement.blocks[placement.find_block("s3.F")].after.push_back({placement.find_block("s0.F"), 0});
  EXPECT_EQ(makespan("1f1b", placement, 6), (6 + 4 - 1) * 7);
}

TEST(Named, LeavesDevicesWithoutAStageIdle) {
  Placement placement = shape("v", whole(2, 1, 2, 5));
  placement.devices.push_back({"spare", "", kUnlimited, 0});
  const NamedSchedule named = named_schedule("1f1b", placement, 2);
  ASSERT_TRUE(named.orders);
  ASSERT_EQ(named.orders->size(), 3u);
  EXPECT_TRUE((*named.orders)[2].empty());
}

}  // namespace
}  // namespace ostinato
