// SPDX-License-Identifier: Apache-2.0
// Earliest starts (docs/bounds.md, W) against the words of the statements, step by step and set by set.

#include "search/checker/earliest.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "search/checker/area.h"
#include "search/checker/windows.h"
#include "search/placement/shapes.h"
#include "tests/search/all_orders.h"

namespace ostinato {
namespace {

using checker::Graph;
using checker::kNoDevice;
using checker::Wide;

/// W1 to W4 forwards, without regard to speed.
class Definition {
 public:
  Definition(const Graph& graph, int n, int origin) : graph_(graph), origin_(origin) {
    for (int a = 0; a < graph.blocks(); ++a) distance_.push_back(graph.distances_from(a));
    for (int i = 0; i < n; ++i) {
      start_.emplace_back(graph.blocks());
      for (int b = 0; b < graph.blocks(); ++b) start_[i][b] = i > 0 ? end(b, i - 1) : first(b);
      graph.walk(false, [&](int b, const auto& inputs) { raise(b, i, inputs); });
    }
  }

  std::optional<Nanoseconds> start(int b, int i) const { return start_[i][b]; }

 private:
  using Time = std::optional<Nanoseconds>;

  Time first(int b) const {
    const auto& devices = graph_.block(b).devices;
    const bool at_origin = origin_ == kNoDevice || std::count(devices.begin(), devices.end(), origin_) > 0;
    return at_origin ? Time(0) : std::nullopt;
  }

  Time end(int b, int i) const {
    return start_[i][b] ? Time(*start_[i][b] + graph_.block(b).time) : std::nullopt;
  }

  bool leads(int a, int b) const { return distance_[a][b] != Graph::kNone; }

  void raise(int b, int i, const std::vector<Graph::Edge>& inputs) {
    Time& least = start_[i][b];
    for (const Graph::Edge& e : inputs) {
      if (const Time ended = end(e.block, i))
        least = std::max(least, Time(*ended + static_cast<Nanoseconds>(e.transfer)));
    }
    for (const int d : graph_.block(b).devices) {
      least = std::max(least, after_work(b, i, d));
      least = std::max(least, after_memory(b, i, d, least));
    }
  }

  /// W3 over the sets {start >= h, gap >= g}: no other set gives more.
  Time after_work(int b, int i, int d) const {
    struct Step {
      Nanoseconds start, time, gap;
    };
    std::vector<Step> steps;
    for (const int x : graph_.on_device(d)) {
      if (!leads(x, b)) continue;
      const Nanoseconds time = graph_.block(x).time;
      const auto gap = x == b ? 0 : static_cast<Nanoseconds>(distance_[x][b] - time - graph_.block(b).time);
      for (int j = 0; j < (x == b ? i : i + 1); ++j) {
        if (start_[j][x]) steps.push_back({*start_[j][x], time, gap});
      }
    }
    Time latest;
    for (const Step& h : steps) {
      for (const Step& g : steps) {
        const auto counts = [&](const Step& s) { return s.start >= h.start && s.gap >= g.gap; };
        if (std::none_of(steps.begin(), steps.end(), counts)) continue;
        Nanoseconds end = h.start + g.gap;
        for (const Step& s : steps) end += counts(s) ? s.time : 0;
        latest = std::max(latest, Time(end));
      }
    }
    return latest;
  }

  /// W4: tries every end as the instant.
  Time after_memory(int b, int i, int d, Time least) const {
    const Device& device = graph_.placement().devices[d];
    const checker::Matching matching = checker::match(graph_, d);
    if (device.memory == kUnlimited || device.memory < device.static_memory || !matching.complete)
      return least;
    std::set<Time> instants = {least};
    const auto held_after = [&](const Time& instant) {
      Wide held = 0;
      for (const checker::Held& h : matching.held) {
        if (h.taker != b && !leads(h.taker, b)) continue;
        for (int j = 0; j <= i; ++j) {
          const Time ended = h.giver < 0 ? Time(1'000'000) : end(h.giver, j);
          if (h.giver >= 0) instants.insert(ended);
          if (ended > instant) held += h.bytes;
        }
      }
      return held;
    };
    held_after(least);
    for (const Time& instant : std::set<Time>(instants)) {
      if (instant >= least &&
          held_after(instant) <= device.memory - device.static_memory - graph_.workspace(b))
        return instant;
    }
    return least;
  }

  const Graph& graph_;
  int origin_;
  std::vector<std::vector<Wide>> distance_;
  std::vector<std::vector<Time>> start_;
};

int compare(const Placement& p, int n, int origin) {
  const Graph graph(p);
  const auto fast = checker::earliest_starts(graph, n, {.origin = origin});
  const Definition slow(graph, n, origin);
  int known = 0;
  for (int i = 0; i < n; ++i) {
    for (int b = 0; b < graph.blocks(); ++b) {
      const Nanoseconds start = fast.start[i * graph.blocks() + b];
      EXPECT_EQ(start, slow.start(b, i).value_or(checker::kUnknown))
          << "block " << b << ", micro-batch " << i << ", origin " << origin;
      known += start != checker::kUnknown ? 1 : 0;
    }
  }
  return known;
}

TEST(CheckerEarliest, IsWhatTheStatementsSay) {
  test::Dice random(41);
  int unknown = 0;
  for (int round = 0; round < 1500 && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Placement p = test::any_small(random, 1 + random.below(8));
    if (round % 4 != 0) test::add_memory(random, p);
    const int n = 1 + random.below(8);
    compare(p, n, kNoDevice);
    const int devices = static_cast<int>(p.devices.size());
    unknown += static_cast<int>(p.blocks.size()) * n - compare(p, n, random.below(devices));
  }
  EXPECT_GT(unknown, 1000);
}

TEST(CheckerEarliest, IsWhatTheStatementsSayOfPipelines) {
  for (const std::string& name : shape_names()) {
    for (const Bytes room : {2, 3, 8}) {
      ShapeOptions options{.devices = 4, .backward = 2, .weight = 1, .capacity = room};
      options.forward = std::vector<Nanoseconds>{3, 2, 3, 4};
      const Placement p = shape(name, options);
      for (const int origin : {kNoDevice, 0, 2}) compare(p, 10, origin);
    }
  }
}

TEST(CheckerEarliest, MicroBatchesBeyondTheWorkFollowFromTheFirst) {
  const Placement p = shape("v", {.devices = 4, .forward = 1, .backward = 1, .weight = 1, .capacity = 4});
  const Graph graph(p);
  const checker::Windows windows(graph, 20'000, 0);
  ASSERT_TRUE(windows.known());
  EXPECT_EQ(windows.least_end_of(0), 3 * 20'000 + 3);
}

// docs/bounds.md, S4: W on the last device need not end before device 0's last step, but for memory.
TEST(CheckerEarliest, MemoryMakesStepsKnownThatNoPathDoes) {
  Placement p = shape("v", {.devices = 4, .forward = 1, .backward = 1, .weight = 1, .capacity = 2});
  int last_weight = 0;
  for (std::size_t b = 0; b < p.blocks.size(); ++b) {
    if (p.blocks[b].kind == Kind::backward_weight && p.blocks[b].devices == std::vector{3})
      last_weight = static_cast<int>(b);
  }
  const Graph graph(p);
  const checker::Windows windows(graph, 6, 0);
  EXPECT_EQ(windows.after(last_weight, 5), checker::kUnknown);
  EXPECT_EQ(windows.after(last_weight, 4), checker::kUnknown);
  EXPECT_GT(windows.after(last_weight, 3), 3);  // F of micro-batch 5 waits for it, then its way back
  p.devices[3].memory = kUnlimited;
  const Graph unlimited(p);
  EXPECT_EQ(checker::Windows(unlimited, 6, 0).after(last_weight, 3), checker::kUnknown);
}

}  // namespace
}  // namespace ostinato
