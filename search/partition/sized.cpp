// SPDX-License-Identifier: Apache-2.0
#include "search/partition/sized.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/partition/stage_cost.h"
#include "search/placement/lanes.h"

namespace ostinato {
namespace {

/// What the layers of a stage take at each size of the profile.
class Curve {
  /// What a forward takes that is run once more, as a part of the first.
  static double again(const LayerCost& layer) {
    if (!layer.recompute || layer.forward.median == 0) return 1;
    return static_cast<double>(*layer.recompute) / static_cast<double>(layer.forward.median);
  }

 public:
  Curve(const Profile& profile, const Stage& stage, Kind kind) {
    const bool backward = kind != Kind::forward;
    const bool again_too = stage.recompute && backward && kind != Kind::backward_weight;
    for (const SizeCost& row : profile.sizes) {
      double time = 0;
      for (const int layer : stage.layers) {
        if (backward) time += static_cast<double>(row.backward[layer]);
        const auto forward = static_cast<double>(row.forward[layer]);
        if (!backward) time += forward;
        if (again_too) time += forward * again(profile.layers[layer]);
      }
      points_.emplace_back(static_cast<double>(row.size), time);
    }
  }

  double at(double size) const {
    std::size_t k = 1;
    while (k + 1 < points_.size() && size > points_[k].first) ++k;
    const auto& [x, a] = points_[k - 1];
    const auto& [y, b] = points_[k];
    return std::max(0.0, a + (b - a) * (size - x) / (y - x));
  }

 private:
  std::vector<std::pair<double, double>> points_;
};

void follow(const Profile& profile, const Placement& placement, double size, double of, MicroBatch& one) {
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    const Block& block = placement.blocks[b];
    const auto stage = std::find_if(placement.stages.begin(), placement.stages.end(),
                                    [&](const Stage& s) { return s.name == block.stage; });
    if (stage == placement.stages.end() || stage->layers.empty()) continue;
    const Curve curve(profile, *stage, block.kind);
    const double usual = curve.at(of);
    if (usual <= 0) continue;
    const double time = static_cast<double>(block.time) * curve.at(size) / usual;
    one.times[b] = static_cast<Nanoseconds>(std::llround(std::min(time, 1e18)));
  }
}

void check_layers(const Profile& profile, const Placement& placement) {
  for (const Stage& stage : placement.stages)
    for (const int layer : stage.layers)
      if (layer >= static_cast<int>(profile.layers.size()))
        throw InputError(
            "", 0,
            fmt::format("stage \"{}\" of the placement has layer {}, but the profile has only {}", stage.name,
                        layer, counted(profile.layers.size(), "layer")));
}

/// A placement with blocks that take what their layers do alone.
Placement layers_alone(const RankCost& rank, Placement placement) {
  for (Block& block : placement.blocks)
    if (!runs_on_lane(placement, block))
      block.time -= std::min(block.time, chain::block_overhead(rank, block.kind));
  return placement;
}

}  // namespace

std::vector<MicroBatch> sized(const Profile& profile, const Placement& placement,
                              const std::vector<double>& sizes, double of) {
  const bool measured = profile.sizes.size() > 1;
  if (measured) check_layers(profile, placement);
  const auto whole = [](double size) { return size == std::floor(size); };
  const double unit = whole(of) && std::all_of(sizes.begin(), sizes.end(), whole) ? 1 : 1024;
  const auto number = [&](double size) { return std::max(std::llround(unit * size), unit > 1 ? 1LL : 0LL); };
  const Placement alone = layers_alone(profile.rank, placement);
  std::vector<MicroBatch> all;
  for (const double size : sizes) {
    MicroBatch& one = all.emplace_back(scaled(alone, number(size), number(of)));
    if (measured) follow(profile, alone, size, of, one);
    for (std::size_t b = 0; b < one.times.size(); ++b) {
      const Nanoseconds beside = placement.blocks[b].time - alone.blocks[b].time;
      one.times[b] += std::min(beside, std::numeric_limits<Nanoseconds>::max() - one.times[b]);
    }
  }
  return all;
}

}  // namespace ostinato
