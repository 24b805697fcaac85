// SPDX-License-Identifier: Apache-2.0
// What the joint choice finds never gets longer where it may choose among more: memory, devices, options.

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "search/files/error.h"
#include "search/partition/joint.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using test::joint_options;
using test::random_profile;

constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::max();

Nanoseconds shortest(const Profile& profile, const JointOptions& options) {
  try {
    const JointChoice choice = choose_plan(profile, options);
    return choice.candidates[choice.winner].value();
  } catch (const InfeasibleError&) {
    return kNone;
  } catch (const UndecidedError&) {  // none of the candidates fits
    return kNone;
  } catch (const InputError&) {  // what would fit is not allowed: a stage that recomputes in part is two
    return kNone;
  }
}

/// Whose activations and inputs need room, and whose backwards have halves.
Profile large_activations(std::mt19937& random, int layers) {
  Profile profile = random_profile(random, layers);
  for (LayerCost& cost : profile.layers) {
    cost.kept = 5 + static_cast<Bytes>(random() % 60);
    cost.input_bytes = static_cast<Bytes>(random() % 10);
    const Nanoseconds input = 1 + static_cast<Nanoseconds>(random() % 9);
    const Nanoseconds weight = 1 + static_cast<Nanoseconds>(random() % 9);
    cost.backward_input = {input, input, input, 3};
    cost.backward_weight = {weight, weight, weight, 3};
    cost.backward = {input + weight, input + weight, input + weight, 3};
  }
  return profile;
}

/// In which each layer can lie on a device of its own, one micro-batch at a time.
Bytes some_memory(const Profile& profile, int devices) {
  Bytes fixed = 0, largest = 0;
  for (const LayerCost& cost : profile.layers) {
    const Bytes own = cost.parameters + cost.gradients + cost.optimizer_state;
    fixed += own;
    largest = std::max(largest, own + cost.kept + cost.input_bytes + 10);
  }
  return fixed / devices + largest;
}

class JointOrder : public testing::TestWithParam<int> {
 protected:
  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  const int layers_ = 4 + static_cast<int>(random_() % 3);
  const int devices_ = 2 + static_cast<int>(random_() % 3);
  const Profile profile_ = large_activations(random_, layers_);
  JointOptions options_ = joint_options(devices_, 2 + static_cast<int>(random_() % 5));
};

TEST_P(JointOrder, MoreMemoryIsNeverLonger) {
  const Bytes some = some_memory(profile_, devices_);
  Nanoseconds least = kNone;
  for (const Bytes percent : {100, 130, 180, 250, 400}) {
    options_.partition.device_memory = some * percent / 100;
    const Nanoseconds found = shortest(profile_, options_);
    EXPECT_LE(found, least) << percent << " %";
    least = std::min(least, found);
  }
  EXPECT_LT(least, kNone);
}

TEST_P(JointOrder, MoreDevicesAreNeverLonger) {
  options_.partition.device_memory = some_memory(profile_, 2) * 3 / 2;
  Nanoseconds least = kNone;
  for (int devices = 1; devices <= 4; ++devices) {
    options_.partition.devices = devices;
    const Nanoseconds found = shortest(profile_, options_);
    EXPECT_LE(found, least) << devices << " devices";
    least = std::min(least, found);
  }
}

TEST_P(JointOrder, MoreToChooseFromIsNeverLonger) {
  options_.partition.device_memory = some_memory(profile_, devices_) * 6 / 5;
  const Nanoseconds all = shortest(profile_, options_);
  const auto without = [&](auto change) {
    JointOptions fewer = options_;
    change(fewer);
    return shortest(profile_, fewer);
  };
  EXPECT_LE(all, without([](JointOptions& o) { o.recompute = false; }));
  EXPECT_LE(all, without([](JointOptions& o) { o.restrictions.push_back({Rule::most_chunks, "", 1}); }));
  EXPECT_LE(all, without([](JointOptions& o) { o.fewer_devices = FewerDevices::none; }));
  EXPECT_LE(all, without([](JointOptions& o) { o.moves = false; }));
  EXPECT_LE(all, without([](JointOptions& o) { o.restrictions.push_back({Rule::whole_backwards, ""}); }));
}

/// Two devices that are fast and have much memory, and two that have half of both.
Nanoseconds on_unlike_devices(const Profile& profile, const std::vector<int>& kinds) {
  JointOptions options = joint_options(4, 8);
  Cluster cluster = alike(4, 1000);
  cluster.kinds.push_back(cluster.kinds.front());
  cluster.kinds[1].memory /= 2;
  cluster.kinds[1].speed /= 2;
  for (std::size_t d = 0; d < kinds.size(); ++d) cluster.devices[d].kind = kinds[d];
  options.partition.cluster = cluster;
  return shortest(profile, options);
}

TEST(JointKinds, AreListedInAnyOrder) {
  Profile profile = test::profile_of({40, 40, 20, 40, 20, 20, 40, 40, 20, 40, 40, 80});
  const Bytes kept[] = {20, 40, 80, 40, 40, 40, 20, 20, 40, 20, 40, 40};
  for (LayerCost& cost : profile.layers) {
    cost.kept = kept[cost.index];
    cost.recompute = cost.forward.median;
    cost.input_bytes = cost.output_bytes = 4;
    cost.parameters = cost.gradients = 100;
  }
  EXPECT_LE(on_unlike_devices(profile, {0, 0, 1, 1}), 4860);
  EXPECT_LE(on_unlike_devices(profile, {1, 1, 0, 0}), 4860);
}

TEST(JointMoves, OfWholeBackwardsDoNotHideThoseOfHalves) {
  Profile profile = test::profile_of({6, 1, 1, 4});
  const Nanoseconds input[] = {1, 1, 5, 2}, weight[] = {7, 3, 9, 5};
  for (LayerCost& cost : profile.layers) {
    const Nanoseconds i = input[cost.index], w = weight[cost.index];
    cost.backward_input = {i, i, i, 3};
    cost.backward_weight = {w, w, w, 3};
    cost.backward = {i + w, i + w, i + w, 3};
  }
  EXPECT_EQ(shortest(profile, joint_options(3, 8)), 135);
}

TEST(JointMoves, OfWhatIsRuledOutOnFewerDevicesWhereTransfersTakeLong) {
  Profile profile = test::profile_of({300, 200, 700, 600, 1000, 100});
  const Bytes output[] = {2304, 1536, 2304, 512, 2048, 0};
  for (LayerCost& cost : profile.layers) cost.output_bytes = output[cost.index];
  const auto with = [&](int devices) {
    JointOptions options = joint_options(devices, 3);
    options.partition.inference = true;
    options.partition.cluster = alike(devices, kUnlimited);
    options.partition.cluster->within = {.latency = 100, .bytes_per_second = 1'000'000'000};
    return shortest(profile, options);
  };
  EXPECT_EQ(with(2), 7112);
  EXPECT_EQ(with(3), 7112);
}

TEST(JointMoves, ThatRecomputeDoNotHideOthersFurtherOut) {
  Profile profile = test::profile_of({16, 4, 16, 4, 4, 4, 4});
  const Nanoseconds input[] = {8, 4, 4, 4, 7, 3, 3}, weight[] = {11, 4, 6, 4, 2, 9, 2};
  const Bytes kept[] = {120, 88, 8, 212, 172, 240, 208}, read[] = {1, 9, 7, 8, 1, 3, 8},
              parameters[] = {92, 28, 8, 112, 144, 160, 104};
  for (LayerCost& cost : profile.layers) {
    const Nanoseconds i = input[cost.index], w = weight[cost.index];
    cost.backward_input = {i, i, i, 3};
    cost.backward_weight = {w, w, w, 3};
    cost.backward = {i + w, i + w, i + w, 3};
    cost.kept = kept[cost.index];
    cost.input_bytes = read[cost.index];
    cost.parameters = cost.gradients = parameters[cost.index];
    cost.optimizer_state = 2 * cost.parameters;
  }
  JointOptions options = joint_options(2, 6);
  options.partition.cluster = alike(2, 3037);
  options.partition.cluster->kinds.push_back(options.partition.cluster->kinds.front());
  options.partition.cluster->kinds.front().speed = kUsualSpeed / 4;
  options.partition.cluster->devices.back().kind = 1;
  const Nanoseconds found = shortest(profile, options);
  options.recompute = false;
  EXPECT_LE(found, shortest(profile, options));
}

INSTANTIATE_TEST_SUITE_P(RandomProfiles, JointOrder, testing::Range(4, 10));

}  // namespace
}  // namespace ostinato
