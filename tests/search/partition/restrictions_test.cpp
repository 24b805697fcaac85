// SPDX-License-Identifier: Apache-2.0
// Every plan obeys the restrictions of its profile: profiles and restrictions are drawn, and what the
// placement file says is looked at by code that knows nothing of search/profile/restrictions.h.
// OSTINATO_ROUNDS=100 draws a hundred times as often.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/partition/stages.h"
#include "search/placement/placement_toml.h"
#include "search/profile/profile_json.h"
#include "tests/search/checked.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"
#include "tests/search/rounds.h"

namespace ostinato {
namespace {

using Devices = std::set<int>;

/// Of the file of a placement.
struct Written {
  std::map<int, Devices> of_layer;
  std::vector<std::set<int>> layers;  ///< by stage
  std::map<int, int> chunks;          ///< by device, those that it does not share
  bool splits = false, shards = false;
  Devices used;
  std::size_t devices = 0;

  explicit Written(const std::string& text) {
    const Placement placement = parse_placement(text, "p.toml").placement;
    devices = placement.devices.size();
    for (const Stage& stage : placement.stages) {
      shards |= stage.devices.size() > 1;
      if (stage.devices.size() == 1) ++chunks[stage.devices[0]];
      used.insert(stage.devices.begin(), stage.devices.end());
      layers.emplace_back(stage.layers.begin(), stage.layers.end());
      for (const int l : stage.layers) of_layer[l].insert(stage.devices.begin(), stage.devices.end());
    }
    for (const Block& block : placement.blocks) splits |= block.kind == Kind::backward_weight;
  }

  bool obeys(const Restriction& one) const {
    switch (one.rule) {
      case Rule::most_chunks:
        return std::ranges::all_of(chunks, [&](const auto& held) { return held.second <= one.chunks; });
      case Rule::whole_backwards:
        return !splits;
      case Rule::no_shards:
        return !shards;
      case Rule::fixed_ends:
        return *of_layer.begin()->second.begin() == *used.begin() &&
               *of_layer.rbegin()->second.rbegin() == *used.rbegin();
      case Rule::together:
        return std::ranges::all_of(one.layers, [&](int l) {
          return of_layer.at(l) == (one.device < 0 ? of_layer.at(one.layers[0]) : Devices{one.device});
        });
      case Rule::one_stage:
        return std::ranges::all_of(layers, [&](const std::set<int>& of_stage) {
          return of_stage.contains(one.layers[0]) == of_stage.contains(one.layers[1]);
        });
      case Rule::spread: {
        Devices have;
        for (const int l : one.layers) have.insert(of_layer.at(l).begin(), of_layer.at(l).end());
        return have.size() == devices;
      }
    }
    return false;
  }
};

Profile drawn_profile(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Profile profile = test::random_profile(random, 5 + below(3));
  for (LayerCost& cost : profile.layers) {
    cost.shardable = below(4) == 0;
    if (below(3) > 0) {
      cost.backward_input = cost.backward_weight = cost.forward;
      cost.backward.median = cost.backward.low = cost.backward.high = 2 * cost.forward.median;
    }
  }
  return profile;
}

Restrictions drawn_restrictions(std::mt19937& random, int layers, int devices) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Restrictions drawn;
  for (const Rule rule : kRules) {
    if (below(2) == 0) continue;
    Restriction& one = drawn.emplace_back(Restriction{rule, "drawn"});
    if (rule == Rule::most_chunks) one.chunks = 1 + below(2);
    if (rule == Rule::together) one.layers = {below(layers - 1), 0};
    if (rule == Rule::together && below(3) == 0) one.device = below(devices);
    if (rule == Rule::together) one.layers[1] = std::min(layers - 1, one.layers[0] + 1 + below(2));
    if (rule == Rule::one_stage) one.layers = {below(layers - 1), 0};
    if (rule == Rule::one_stage) one.layers[1] = one.layers[0] + 1;
    if (rule == Rule::spread) {
      const bool all = find_rule(drawn, Rule::together) != nullptr;  // else no placement may obey both
      for (int l = 0; l < layers; l += all ? 1 : 2) one.layers.push_back(l);
    }
  }
  return drawn;
}

/// The file of what plan() takes; "": nothing.
std::string chosen(const Profile& profile, const Restrictions& restrictions, int devices) {
  JointOptions options = test::joint_options(devices, 3);
  options.shardable = shardable_layers(profile);
  options.restrictions = restrictions;
  options.fewer_devices = FewerDevices::some;
  try {
    const JointChoice choice = choose_plan(profile, options);
    const Candidate& best = choice.candidates[choice.winner];
    test::expect_holds(*best.plan, *best.placement);
    return format_placement(*best.placement) +
           format_model(facts_of(profile, best.options, best.cuts->stages));
  } catch (const InputError&) {
    return "";
  }
}

TEST(Restrictions, EveryPlanObeysThem) {
  std::map<Rule, int> broken_without;
  int none = 0, plans = 0;
  for (int round = 0; round < test::rounds(24); ++round) {
    SCOPED_TRACE(round);
    std::mt19937 random(round);
    Profile profile = drawn_profile(random);
    const int devices = 2 + round % 2;
    const Restrictions restrictions =
        drawn_restrictions(random, static_cast<int>(profile.layers.size()), devices);
    const Written free(chosen(profile, {}, devices));
    for (const Restriction& one : restrictions) broken_without[one.rule] += !free.obeys(one);
    profile.restrictions = restrictions;
    const std::string text = chosen(profile, restrictions, devices);
    (text.empty() ? none : plans) += 1;
    if (text.empty()) continue;
    const Written written(text);
    for (const Restriction& one : restrictions)
      EXPECT_TRUE(written.obeys(one)) << to_string(one.rule) << "\n" << text;
  }
  EXPECT_EQ(none, 0) << "of " << plans;
  for (const Rule rule : kRules) EXPECT_GT(broken_without[rule], 0) << to_string(rule);
}

/// All ways to cut a chain into three stages.
std::vector<std::array<std::pair<int, int>, 3>> cuts_in_three(int layers) {
  std::vector<std::array<std::pair<int, int>, 3>> cuts;
  for (int a = 1; a < layers; ++a)
    for (int b = a + 1; b < layers; ++b) cuts.push_back({{{0, a}, {a, b}, {b, layers}}});
  return cuts;
}

/// Time of the busiest of three stages in a row that have a layer of `spread` each, where every cut is tried.
Nanoseconds least_spread(const Profile& profile, const std::vector<int>& spread) {
  Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
  for (const auto& stages : cuts_in_three(static_cast<int>(profile.layers.size()))) {
    Nanoseconds busiest = 0;
    bool all_have = true;
    for (const auto& [first, end] : stages) {
      Nanoseconds time = 0;
      bool has = false;
      for (int l = first; l < end; ++l) {
        time += test::time_of(profile.layers[l]);
        has |= std::ranges::find(spread, l) != spread.end();
      }
      busiest = std::max(busiest, time);
      all_have &= has;
    }
    if (all_have) least = std::min(least, busiest);
  }
  return least;
}

TEST(Restrictions, TheBestCutThatIsSpreadIsFound) {
  int differ = 0;
  for (int round = 0; round < test::rounds(60); ++round) {
    SCOPED_TRACE(round);
    std::mt19937 random(round);
    std::vector<Nanoseconds> times(7);
    for (Nanoseconds& time : times) time = 1 + static_cast<Nanoseconds>(random() % 9);
    Profile profile = test::profile_of(times);
    const PartitionOptions options{.devices = 3};
    const Nanoseconds free = cut_chain(profile, options).busiest;
    std::set<int> spread;
    while (spread.size() < 3) spread.insert(static_cast<int>(random() % 7));
    profile.restrictions = {{Rule::spread, "a", 0, {spread.begin(), spread.end()}}};
    const StageCuts cuts = cut_chain(profile, options);
    EXPECT_EQ(cuts.busiest, least_spread(profile, profile.restrictions[0].layers));
    EXPECT_EQ(first_broken(profile.restrictions, cuts.stages, 3, false), nullptr);
    EXPECT_LE(cuts.lower_bound, cuts.busiest);
    differ += cuts.busiest > free;
  }
  EXPECT_GT(differ, 0);
}

/// Time of the busiest of three stages in a row, one a device, in any order of the devices: nullopt, if no
/// stage of `one.device` can have all of its layers. The last `slow` devices take twice as long.
std::optional<Nanoseconds> least_in_any_order(const Profile& profile, const Restriction& one, int slow) {
  std::optional<Nanoseconds> least;
  std::vector<int> order{0, 1, 2};
  do {
    for (const auto& stages : cuts_in_three(static_cast<int>(profile.layers.size()))) {
      Nanoseconds busiest = 0;
      bool obeys = false;
      for (int s = 0; s < 3; ++s) {
        const auto [first, end] = stages[s];
        Nanoseconds time = 0;
        for (int l = first; l < end; ++l) time += test::time_of(profile.layers[l]);
        busiest = std::max(busiest, time * (order[s] >= 3 - slow ? 2 : 1));
        obeys |= order[s] == one.device && first <= one.layers.front() && one.layers.back() < end;
      }
      if (obeys && (!least || busiest < *least)) least = busiest;
    }
  } while (std::ranges::next_permutation(order).found);
  return least;
}

/// The device that must run some layers stands where they are in the chain.
TEST(Restrictions, TheBestOrderForANamedDeviceIsFound) {
  int moved = 0;
  for (int round = 0; round < test::rounds(120); ++round) {
    SCOPED_TRACE(round);
    std::mt19937 random(round);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::vector<Nanoseconds> times(4 + below(3));
    for (Nanoseconds& time : times) time = 1 + below(9);
    Profile profile = test::profile_of(times);
    const int first = below(static_cast<int>(times.size()) - 1), slow = below(3);
    const Restriction one{Rule::together, "a", 0, {first, first + 1}, below(3)};
    profile.restrictions = {one};
    PartitionOptions options{.devices = 3};
    options.cluster = alike(3, kUnlimited);
    if (slow > 0) {
      options.cluster->kinds.push_back(options.cluster->kinds.front());
      options.cluster->kinds.back().speed = kUsualSpeed / 2;
      for (int d = 3 - slow; d < 3; ++d) options.cluster->devices[d].kind = 1;
    }
    const StageCuts cuts = cut_chain(profile, options);
    EXPECT_EQ(cuts.busiest, least_in_any_order(profile, one, slow));
    EXPECT_EQ(cuts.lower_bound, cuts.busiest);
    EXPECT_EQ(first_broken(profile.restrictions, cuts.stages, 3, false), nullptr);
    moved += cuts.stages.front().devices.front() != 0;
  }
  EXPECT_GT(moved, 0);
}

TEST(Restrictions, LayersOfOneStageRecomputeTogether) {
  int in_part = 0;
  for (int round = 0; round < test::rounds(300); ++round) {
    SCOPED_TRACE(round);
    std::mt19937 random(round);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Profile profile = test::random_profile(random, 6);
    for (LayerCost& cost : profile.layers) cost.recompute = cost.forward.median;
    const int first = below(5);
    profile.restrictions = {{Rule::one_stage, "a", 0, {first, first + 1}}};
    PartitionOptions options{.devices = 2, .micro_batches = 4, .recompute = Recompute::partly};
    options.chunks = 1 + below(2);
    options.device_memory = 40 + below(400);
    try {
      const StageCuts cuts = cut_chain(profile, options);
      EXPECT_EQ(first_broken(profile.restrictions, cuts.stages, 2, false), nullptr);
      in_part += static_cast<int>(cuts.stages.size()) > 2 * options.chunks;
    } catch (const InputError&) {  // nothing fits
    }
  }
  EXPECT_GT(in_part, 0);
}

TEST(Restrictions, FewerLayersThanDevicesCannotBeSpread) {
  Profile profile = test::profile_of({4, 4, 4, 4});
  profile.restrictions = {{Rule::spread, "experts", 0, {1}}};
  EXPECT_EQ(chosen(profile, profile.restrictions, 2), "");
  EXPECT_THAT([&] { cut_chain(profile, {.devices = 2}); },
              testing::ThrowsMessage<InputError>(
                  "on 2 devices the profile's 'restrictions' forbid every placement: a device with none of "
                  "layer 1 (experts)"));
}

TEST(Restrictions, SaysWhichLeftSomethingOut) {
  Profile profile = test::profile_of({4, 4, 4, 4, 4, 4});
  JointOptions options = test::joint_options(2, 4);
  options.fewer_devices = FewerDevices::none;
  options.restrictions = {{Rule::whole_backwards, "a"}, {Rule::no_shards, "b"}, {Rule::most_chunks, "c", 64}};
  // No halves, no shardable layer, no 65 chunks.
  EXPECT_TRUE(choose_plan(profile, options).not_tried.empty());
  for (LayerCost& cost : profile.layers) cost.backward_input = cost.backward_weight = cost.forward;
  profile.layers[5].shardable = true;
  options.restrictions[2].chunks = 1;
  EXPECT_EQ(choose_plan(profile, options).not_tried, options.restrictions);
}

TEST(Restrictions, AWaveThatIsNotAllowedHasItsBound) {
  const Profile profile = test::profile_of({9, 2, 2, 2, 2, 9});
  JointOptions options = test::joint_options(2, 4);
  options.restrictions = {{Rule::fixed_ends, "the script reads there"}};
  const JointChoice choice = choose_plan(profile, options);
  ASSERT_EQ(choice.not_tried, options.restrictions);
  int waves = 0;
  for (const Candidate& c : choice.candidates) {
    if (!c.forbidden) continue;
    EXPECT_THAT(c.name, testing::StartsWith("wave, 2 chunks"));
    EXPECT_GT(c.bound, 0);
    EXPECT_FALSE(c.plan || c.placement);
    EXPECT_THAT(c.why_not, testing::EndsWith("(the script reads there)"));
    ++waves;
  }
  EXPECT_GT(waves, 0);
}

Profile stored() {
  Profile profile = test::profile_of({1, 1, 1});
  profile.timer = "cpu";
  profile.micro_batch_size = 1;
  profile.model_sha256 = std::string(64, '0');
  return profile;
}

std::string refusal(const std::string& restriction) {
  std::string text = format_profile(stored());
  text.replace(text.find("  \"layers\""), 0, "  \"restrictions\": [" + restriction + "],\n");
  try {
    parse_profile(text, "p.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Restrictions, AreKeptInTheProfile) {
  Profile profile = stored();
  EXPECT_EQ(format_profile(profile).find("restrictions"), std::string::npos);
  profile.restrictions = {{Rule::most_chunks, "a", 2},       {Rule::fixed_ends, "b"},
                          {Rule::together, "c", 0, {0, 2}},  {Rule::together, "d", 0, {1}, 1},
                          {Rule::one_stage, "f", 0, {1, 2}}, {Rule::spread, "e", 0, {2}}};
  EXPECT_EQ(parse_profile(format_profile(profile), "p").restrictions, profile.restrictions);
  EXPECT_EQ(refusal(R"({"rule": "no_shards", "reason": ""})"), "");
  EXPECT_THAT(refusal(R"({"rule": "one_stage", "layers": [0, 2], "reason": ""})"),
              testing::EndsWith("'layers' needs at least two layers, each next to the one before it"));
  EXPECT_THAT(refusal(R"({"rule": "no_shard", "reason": ""})"),
              testing::HasSubstr("did you mean 'no_shards'?"));
  EXPECT_THAT(refusal(R"({"rule": "no_shards"})"), testing::HasSubstr("'reason'"));
  EXPECT_THAT(refusal(R"({"rule": "no_shards", "reason": "", "chunks": 1})"),
              testing::HasSubstr("is a key of the rule 'most_chunks' only"));
  EXPECT_THAT(refusal(R"({"rule": "most_chunks", "reason": ""})"), testing::HasSubstr("'chunks'"));
  EXPECT_THAT(refusal(R"({"rule": "together", "reason": "", "layers": [1]})"),
              testing::HasSubstr("two layers"));
  EXPECT_THAT(refusal(R"({"rule": "spread", "reason": "", "layers": []})"), testing::HasSubstr("one layer"));
  EXPECT_THAT(refusal(R"({"rule": "spread", "reason": "", "layers": [1], "device": 0})"),
              testing::HasSubstr("is a key of the rule 'together' only"));
  EXPECT_THAT(refusal(R"({"rule": "together", "reason": "", "layers": [1, 3]})"),
              testing::HasSubstr("is 3, out of range"));
}

}  // namespace
}  // namespace ostinato
