// SPDX-License-Identifier: Apache-2.0
// What choose_plan() says of every candidate, against all cuts and all orders: tiny profiles, kinds of
// devices with profiles of their own, memory that is nearly full, slow links, one device. "Optimal", a bound,
// "infeasible" and "no shorter" are claims; where a candidate says none of them, nothing is asked of it.
// OSTINATO_ROUNDS=100 draws a hundred times as often.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/partition/even_split.h"
#include "search/partition/joint.h"
#include "search/partition/joint_candidates.h"
#include "search/partition/stages.h"
#include "tests/search/all_orders.h"
#include "tests/search/checked.h"
#include "tests/search/partition/partition_profiles.h"
#include "tests/search/rounds.h"

namespace ostinato {
namespace {

struct Drawn {
  Profile profile;
  JointOptions options;
};

Drawn draw(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Drawn drawn;
  const int micro_batches = 1 + below(3), devices = 1 + below(4 - micro_batches), layers = devices + below(3);
  const auto profile = [&] {
    Profile made = test::random_profile(random, layers);
    if (below(2) == 0) test::share_memory(random, made);
    return made;
  };
  drawn.profile = profile();
  if (below(3) == 0) {
    LayerCost& beside = drawn.profile.layers[below(layers)];
    beside.parameters = beside.gradients = beside.optimizer_state = 0;
    beside.lane = "network";
  }
  Cluster cluster = alike(devices, kUnlimited);
  cluster.kinds.resize(1 + below(2));
  for (DeviceKind& kind : cluster.kinds) {
    if (below(4) == 0) kind.speed = kUsualSpeed / (1 + below(3));
    if (below(2) == 0) kind.profile = std::make_shared<Profile>(profile());
    if (below(4) > 0) kind.memory = 10 + below(40 * layers);  // from nothing fits to nearly all does
  }
  for (ClusterDevice& device : cluster.devices) device.kind = below(static_cast<int>(cluster.kinds.size()));
  if (below(2) == 0)
    cluster.within = Link{.latency = below(20), .bytes_per_second = 1'000'000'000 / (1 + below(9))};
  drawn.options.partition.devices = devices;
  drawn.options.partition.cluster = std::move(cluster);
  drawn.options.partition.micro_batches = drawn.options.search.micro_batches = micro_batches;
  drawn.options.search.time_limit_seconds = 0;
  drawn.options.restrictions.push_back({Rule::most_chunks, "", 1 + below(2)});
  drawn.options.recompute = below(2) == 0;
  return drawn;
}

bool smaller(const std::optional<Nanoseconds>& a, const std::optional<Nanoseconds>& b) {
  return a && (!b || *a < *b);
}

/// The least makespan of what a candidate may be made of: all its cuts, or those that it has.
class EveryPlan {
 public:
  EveryPlan(const Profile& profile, const Candidate& candidate, int micro_batches)
      : profile_(profile), candidate_(candidate), n_(micro_batches) {}

  /// False where there are too many orders.
  bool known() const {
    return stages() * 2 * n_ <= 8 && !candidate_.graph && candidate_.options.sharded.empty();
  }

  std::optional<Nanoseconds> least() {
    if (candidate_.placement) {
      judge(*candidate_.placement);
      return least_;
    }
    if (candidate_.cuts || candidate_.even) {
      judge(candidate_.cuts ? candidate_.cuts->stages : cut_evenly(profile_, candidate_.options).stages);
      return least_;
    }
    std::vector<int> devices = devices_of_stages(candidate_.options);
    if (candidate_.options.chunks > 1) {
      cut(devices, {});
      return least_;
    }
    do cut(devices, {});
    while (std::next_permutation(devices.begin(), devices.end()));
    return least_;
  }

 private:
  int stages() const { return candidate_.devices() * candidate_.options.chunks; }

  void judge(const Placement& placement) {
    const std::optional<Nanoseconds> one = test::AllOrders(placement, n_).least();
    if (smaller(one, least_)) least_ = one;
  }

  void judge(const std::vector<Stage>& made) {
    const Placement placement = place_stages(profile_, candidate_.options, made);
    if (step_fits(facts_of(profile_, candidate_.options, made), placement)) judge(placement);
  }

  void cut(const std::vector<int>& devices, std::vector<Stage> made) {
    const int layers = static_cast<int>(profile_.layers.size());
    const int first = made.empty() ? 0 : made.back().layers.back() + 1;
    const int left = static_cast<int>(devices.size() - made.size());
    if (left == 0) {
      if (first == layers) judge(made);
      return;
    }
    Stage stage;
    stage.devices = {devices[made.size()]};
    for (int last = first; last + left <= layers; ++last) {
      stage.layers.push_back(last);
      for (const bool recompute : {false, true}) {
        if (candidate_.options.recompute == (recompute ? Recompute::never : Recompute::always)) continue;
        stage.recompute = recompute;
        std::vector<Stage> more = made;
        more.push_back(stage);
        cut(devices, std::move(more));
      }
    }
  }

  const Profile& profile_;
  const Candidate& candidate_;
  const int n_;
  std::optional<Nanoseconds> least_;
};

struct Seen {
  int plans = 0, optimal = 0, no_shorter = 0, infeasible = 0, nothing = 0;
};

void compare(const Drawn& drawn, const JointChoice& choice, Seen& seen) {
  const int n = drawn.options.search.micro_batches;
  const Candidate& winner = choice.candidates[choice.winner];
  for (const Candidate& candidate : choice.candidates) {
    SCOPED_TRACE(fmt::format("{}: {}", candidate.name, candidate.why_not));
    if (candidate.plan) {
      test::expect_holds(*candidate.plan, *candidate.placement);
      EXPECT_LE(winner.value(), candidate.value());
      ++seen.plans;
    }
    EveryPlan every(drawn.profile, candidate, n);
    if (!every.known()) continue;
    const std::optional<Nanoseconds> least = every.least();
    if (candidate.plan) {
      ASSERT_TRUE(least) << "a plan where nothing fits";
      EXPECT_GE(candidate.value(), *least);
      EXPECT_LE(candidate.plan->lower_bound.makespan, *least);
      if (candidate.plan->optimal.makespan) {
        EXPECT_EQ(candidate.value(), *least);
        ++seen.optimal;
      }
    }
    if (candidate.infeasible) {
      EXPECT_FALSE(least) << "there is one of " << *least;
      ++seen.infeasible;
    }
    if (candidate.no_shorter) {
      EXPECT_FALSE(least && *least < winner.value()) << *least << " is shorter than " << winner.value();
      ++seen.no_shorter;
    }
    if (least && !candidate.infeasible) {
      EXPECT_LE(candidate.bound, *least);
    }
  }
}

TEST(JointStrange, WhatIsSaidOfEveryCandidateIsTrue) {
  std::mt19937 random(83);
  Seen seen;
  for (int round = 0; round < test::rounds(150) && !testing::Test::HasFailure(); ++round) {
    const Drawn drawn = draw(random);
    SCOPED_TRACE(fmt::format("round {}: {} layers, {} devices, {} micro-batches", round,
                             drawn.profile.layers.size(), drawn.options.partition.devices,
                             drawn.options.search.micro_batches));
    try {
      compare(drawn, choose_plan(drawn.profile, drawn.options), seen);
    } catch (const UndecidedError&) {
      ++seen.nothing;
    } catch (const InfeasibleError& error) {
      ++seen.nothing;
      for (const Recompute recompute : {Recompute::never, Recompute::needed}) {
        if (recompute == Recompute::needed && !drawn.options.recompute) continue;
        Candidate all;
        all.options = drawn.options.partition;
        all.options.recompute = recompute;
        EXPECT_FALSE(EveryPlan(drawn.profile, all, drawn.options.search.micro_batches).least())
            << error.what();
      }
    } catch (const InputError&) {  // which claims nothing
    }
  }
  EXPECT_GT(seen.plans, test::rounds(150) / 2);
  EXPECT_GT(seen.optimal, test::rounds(150) / 4);
  EXPECT_GT(seen.no_shorter, 0);
  EXPECT_GT(seen.infeasible, 0);
  EXPECT_GT(seen.nothing, 0);
}

}  // namespace
}  // namespace ostinato
