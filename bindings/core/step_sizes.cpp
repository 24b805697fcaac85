// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/step_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "bindings/core/usage_error.h"
#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/placement/quantity.h"
#include "search/plan/one_batch.h"
#include "search/plan/orders.h"
#include "search/simulate/simulate.h"

namespace ostinato::core {
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
    for (const SizeCost& row : profile.sizes) {
      double time = 0;
      for (const int layer : stage.layers) {
        if (backward) time += static_cast<double>(row.backward[layer]);
        const auto forward = static_cast<double>(row.forward[layer]);
        if (!backward) time += forward;
        if (backward && stage.recompute) time += forward * again(profile.layers[layer]);
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

void check(const std::vector<SlicedProfile>& profiles) {
  const JointOptions& options = profiles.front().options;
  if (!options.one_pipeline()) throw UsageError("--sizes cannot be combined with --replicas or --slices");
  if (options.search.method != "auto" || options.search.objective != Objective::makespan)
    throw UsageError("--sizes cannot be combined with --method or --objective");
}

/// The order that was found for micro-batches of one size, where it is shorter and the memory holds it.
void try_order_of(const Plan& alike, const Placement& placement, Plan& plan) {
  try {
    Plan other = with_sizes(alike, placement, plan.sizes);
    if (other.makespan >= plan.makespan) return;
    plan.schedule = std::move(other.schedule);
    plan.makespan = other.makespan;
    plan.span = other.span;
    plan.peak_memory = std::move(other.peak_memory);
    plan.optimal.makespan = plan.makespan == plan.lower_bound.makespan;
    plan.search.method = alike.search.method;
  } catch (const InputError&) {  // too much memory
  }
}

/// The plan of a candidate's placement; nullopt where no order was found.
std::optional<Plan> plan_of(const Candidate& candidate, const Profile& profile, const BareSizes& sizes,
                            const UnequalOptions& unequal, std::string& why_not) {
  try {
    const Placement& placement = *candidate.placement;
    const std::vector<double> of_batches(sizes.sizes.begin(), sizes.sizes.end());
    const auto of = static_cast<double>(sizes.of);
    Plan plan = search_unequal(placement, sized(profile, placement, of_batches, of), unequal);
    if (candidate.plan && !unequal.keep_order) try_order_of(*candidate.plan, placement, plan);
    return plan;
  } catch (const InfeasibleError& error) {
    why_not = error.what();
  } catch (const UndecidedError& error) {
    why_not = error.what();
  }
  return std::nullopt;
}

/// The earliest starts under `orders` of the one micro-batch that unrolled() makes.
std::vector<ScheduledBlock> started(const Orders& orders, const Placement& placement,
                                    const std::vector<MicroBatch>& sizes) {
  const int blocks = static_cast<int>(placement.blocks.size());
  // The same dependencies: no cycle.
  std::vector<ScheduledBlock> all = *earliest_starts(unrolled(placement, sizes), 1, orders);
  for (ScheduledBlock& step : all) {
    step.micro_batch = step.block / blocks;
    step.block %= blocks;
  }
  sort_schedule(placement, all);
  return all;
}

/// A plan with sizes may start blocks that take no time together with other blocks: only its times tell which
/// is first.
std::vector<ScheduledBlock> with_sizes_of(const Plan& plan, const Placement& placement,
                                          const std::vector<MicroBatch>& sizes) {
  if (plan.sizes.empty()) return with_sizes(plan.schedule, placement, sizes);
  const OneBatch own = as_one_batch(plan, placement);
  return started(orders_of(own.placement, own.plan.schedule), placement, sizes);
}

}  // namespace

std::vector<MicroBatch> sized(const Profile& profile, const Placement& placement,
                              const std::vector<double>& sizes, double of) {
  const bool measured = profile.sizes.size() > 1;
  if (measured) check_layers(profile, placement);
  const auto whole = [](double size) { return size == std::floor(size); };
  const double unit = whole(of) && std::all_of(sizes.begin(), sizes.end(), whole) ? 1 : 1024;
  const auto number = [&](double size) { return std::max(std::llround(unit * size), unit > 1 ? 1LL : 0LL); };
  std::vector<MicroBatch> all;
  for (const double size : sizes) {
    MicroBatch& one = all.emplace_back(scaled(placement, number(size), number(of)));
    if (measured) follow(profile, placement, size, of, one);
  }
  return all;
}

Planned plan_sizes(const std::vector<SlicedProfile>& profiles, const BareSizes& given,
                   const UnequalOptions& unequal, const Searcher& searcher) {
  check(profiles);
  const Profile& profile = *profiles.front().profile;
  BareSizes sizes = given;
  if (sizes.of == 0) sizes.of = profile.tokens;
  if (sizes.of == 0)
    throw InputError(
        "", 0,
        "the profile does not say the size of its micro-batch: put size = ... at the top of the sizes file");
  if (profile.sizes.size() > 1 && sizes.of != profile.tokens)
    throw InputError("", 0,
                     fmt::format("size = {} is given for the profile's micro-batch, but the profile was "
                                 "measured with {}: leave size out",
                                 sizes.of, profile.tokens));
  const auto began = std::chrono::steady_clock::now();
  Planned planned = plan_profile(profiles, searcher);
  const bool cut = planned.plan.search.cut_by_limit;
  Nanoseconds least = 0;
  std::optional<std::size_t> best;
  std::string why_not;
  const auto consider = [&](std::size_t c) {
    Candidate& candidate = planned.choice.candidates[c];
    if (!candidate.placement || candidate.infeasible) return;
    if (best && unequal.stop != nullptr && *unequal.stop) return;
    std::optional<Plan> plan = plan_of(candidate, profile, sizes, unequal, why_not);
    if (!plan) return;
    const Nanoseconds value = predicted_makespan(*plan, *candidate.placement);
    planned.of_sizes.emplace_back(c, value);
    if (best && value >= least) return;
    least = value;
    best = c;
    planned.plan = std::move(*plan);
  };
  const std::size_t usual = planned.choice.winner;
  consider(usual);
  for (std::size_t c = 0; c < planned.choice.candidates.size(); ++c)
    if (c != usual) consider(c);
  if (!best)
    throw UndecidedError("micro-batches of these sizes fit none of the placements tried: " + why_not);
  planned.choice.winner = *best;  // which may have no plan but that for these sizes
  planned.plan.search.cut_by_limit |= cut;
  planned.cut |= planned.plan.search.cut_by_limit;
  describe(planned);
  planned.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return planned;
}

std::vector<ScheduledBlock> with_sizes(const std::vector<ScheduledBlock>& schedule,
                                       const Placement& placement, const std::vector<MicroBatch>& sizes) {
  const int blocks = static_cast<int>(placement.blocks.size());
  Orders orders = orders_of(placement, schedule);
  for (std::vector<Step>& order : orders)
    for (Step& step : order) step = {step.micro_batch * blocks + step.block, 0};
  return started(orders, placement, sizes);
}

Plan with_sizes(const Plan& plan, const Placement& placement, const std::vector<MicroBatch>& sizes) {
  if (static_cast<int>(sizes.size()) != plan.micro_batches)
    throw InputError("", 0,
                     fmt::format("the plan has {}, but there are sizes for {}",
                                 counted(plan.micro_batches, "micro-batch"), sizes.size()));
  check_sizes(placement, sizes);
  Plan other;
  other.placement_name = plan.placement_name;
  other.placement_sha256 = plan.placement_sha256;
  other.micro_batches = plan.micro_batches;
  other.sizes = sizes;
  other.schedule = with_sizes_of(plan, placement, sizes);
  const OneBatch all = as_one_batch(other, placement);
  other.makespan = makespan_of(all.placement, all.plan.schedule);
  other.span = span_of(all.placement, all.plan.schedule);
  other.peak_memory = peak_memory(all.placement, all.plan.schedule);
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    const Device& device = placement.devices[d];
    if (other.peak_memory[d] <= device.memory) continue;
    throw InputError(
        "", 0,
        fmt::format("with these sizes the plan's order needs {} on {}, which has {}; ostinato search --sizes "
                    "looks for an order that fits",
                    format_memory(other.peak_memory[d]), device.name, format_memory(device.memory)));
  }
  return other;
}

}  // namespace ostinato::core
