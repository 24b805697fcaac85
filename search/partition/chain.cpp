// SPDX-License-Identifier: Apache-2.0
// Which cuts are taken (Levels):
// 1. The best cuts without any memory limit; their busiest device is the bound for all cuts. If they fit
//    with as many micro-batches in flight as 1F1B has, they are the answer.
// 2. Else the number in flight is capped, from the largest cap down, and the best cuts that fit are solved
//    for each. This ends when a smaller cap cannot have a shorter period (Little's law), or when the bound
//    is met.
// 3. If nothing fits with one micro-batch in flight and that was proved, why_infeasible() gives the shortest
//    reason. Where an estimate may be too much, the least one proves that, and the bound (chain.h).
// Each level is solved by chain_single.cpp (one chunk per device) or by chain_chunks.cpp (several: at most
// `nodes` nodes); with several chunks, all stages keep, or all recompute and then keep again what fits.
#include "search/partition/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/partition/chain_problem.h"
#include "search/partition/stages.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

using namespace chain;

void check_layers(const ChainCosts& costs, const Model& model, int chunks) {
  const long stages = static_cast<long>(model.devices()) * chunks;
  if (costs.layers() >= stages) return;
  const std::string rest = costs.shards().empty() ? "" : " beside the sharded ones";
  throw InputError(
      "", 0,
      fmt::format("{} with {} each need{} at least {}{}, the model has {}",
                  counted(model.devices(), "device"), counted(chunks, "chunk"),
                  model.devices() == 1 ? "s" : "", counted(stages, "layer"), rest, costs.layers()));
}

/// How many micro-batches a shard holds: stages are assumed to stand before it in proportion to the time.
int in_flight_of(const ChainCosts& costs, const Shard& shard, int stages, int cap) {
  const LayerSums& on = costs.on(0);
  const auto total = std::max<__int128>(on.time(0, costs.layers()), 1);
  const int before = static_cast<int>(on.time(0, shard.position) * static_cast<__int128>(stages) / total);
  const int behind =
      stages - before +
      static_cast<int>(std::count_if(costs.shards().begin(), costs.shards().end(),
                                     [&](const Shard& s) { return s.position >= shard.position; }));
  return std::min(behind, cap);
}

/// Whether a problem that is not the least one may count memory that a placement does not need. With lanes
/// the least one may, too: a stage is then cut behind each of them.
bool counts_too_much(const Model& model, const ChainCosts& costs, const PartitionOptions& options) {
  if (has_lanes(model.profile, options)) return true;
  const bool chunks = options.chunks > 1, in_part = options.recompute == Recompute::partly;
  return !costs.shards().empty() || !model.graph.is_chain() || (chunks && in_part) ||
         ((chunks || in_part) && (model.rank.buffers > 0 || model.split));
}

Problem problem_at(const Model& model, const ChainCosts& costs, const PartitionOptions& options, int cap,
                   bool least = false) {
  Problem problem{model, costs, devices_of_stages(options), {}, {}};
  problem.stop = options.stop;
  const int most = std::min(cap, options.micro_batches);
  problem.least = least;
  int first_shards = 0;  // that stand before all stages, and so behind none
  for (const Shard& shard : costs.shards()) first_shards += shard.position == 0 ? 1 : 0;
  const int shards = static_cast<int>(costs.shards().size());
  const int shards_behind = least ? 0 : shards - first_shards;
  const int stages = problem.stages();
  for (int s = 0; s < stages; ++s) problem.in_flight.push_back(std::min(most, stages - s + shards_behind));
  for (int i = 0; i < shards; ++i)
    problem.shard_in_flight.push_back(least ? std::min(shards - i, most)
                                            : in_flight_of(costs, costs.shards()[i], stages, most));
  problem.serial = cap == 1;
  problem.may_keep = options.recompute != Recompute::always;
  problem.may_recompute = options.recompute != Recompute::never;
  problem.in_part = options.recompute == Recompute::partly;
  return problem;
}

Bytes largest_memory(const Problem& problem) {
  Bytes most = 0;
  for (int d = 0; d < problem.devices(); ++d) most = std::max(most, problem.memory(d));
  return most;
}

/// The least that any device needs to run this layer alone, one micro-batch at a time.
Bytes least_needed(const Problem& problem, int position) {
  Bytes least = kUnlimited;
  for (int d = 0; d < problem.devices(); ++d) {
    for (const bool recompute : {false, true}) {
      if (!(recompute ? problem.may_recompute : problem.may_keep)) continue;
      const Load load = problem.add({}, d, 0, position, position + 1, recompute);
      least = std::min(least, problem.needed(load));
    }
  }
  return least;
}

/// Why nothing fits with one micro-batch in flight: the shortest proof that holds.
std::string why_infeasible(const Profile& profile, const Problem& problem) {
  const int layers = problem.costs.layers();
  const Bytes most = largest_memory(problem);
  for (int i = 0; i < layers; ++i) {
    const Bytes needed = least_needed(problem, i);
    if (needed > most) {
      const auto [wanted, there] = format_apart(needed, most);
      return fmt::format("layer {} alone needs {} with one micro-batch in flight, but a device has only {}",
                         profile.layers[problem.costs.layer(i)].name, wanted, there);
    }
  }
  const Bytes fixed = problem.costs.least_fixed(0, layers) + problem.costs.shard_fixed() * problem.devices();
  if (fixed / problem.devices() > most) {
    return fmt::format("{} take {}, {} at most {}",
                       problem.model.inference ? "parameters" : "parameters, gradients and optimizer state",
                       format_memory(fixed),
                       problem.devices() == 1 ? "a device holds"
                                              : fmt::format("each of {} devices holds", problem.devices()),
                       format_memory(most));
  }
  return fmt::format(
      "every partition of {} into {} exceeds the memory of some device (at most {}), even with one "
      "micro-batch "
      "in flight",
      counted(layers, "layer"), counted(problem.stages(), "stage"), format_memory(most));
}

/// The best partition where memory does not count; then, where it does not fit, caps from the largest that
/// fits down until fewer in flight cannot have a shorter period.
class Levels {
 public:
  Levels(const Model& model, const ChainCosts& costs, const PartitionOptions& options)
      : model_(model),
        costs_(costs),
        options_(options),
        too_much_(counts_too_much(model, costs, options)),
        chain_(costs.least_time(0, costs.layers(), options.recompute == Recompute::always) +
               costs.shard_time()) {}

  struct Best {
    Found found;
    int in_flight = 0;
    Nanoseconds period = 0;
  };

  /// The best cuts, so far where it is stopped; `found.ends` is empty where none was found.
  Best best() {
    try {
      look();
    } catch (const StoppedError&) {
      if (!has_best()) throw;
    }
    return best_;
  }

  /// Nothing fits with as few in flight as may be.
  bool proved_empty() const {
    if (!too_much_) return last_.proved_empty;
    return !has_lanes(model_.profile, options_) && solve(least_problem(1), options_.nodes / 10).proved_empty;
  }
  Problem least_problem(int cap) const { return problem_at(model_, costs_, options_, cap, true); }

 private:
  void look() {
    const int stages = model_.devices() * options_.chunks + static_cast<int>(costs_.shards().size());
    const int most = std::min(options_.micro_batches, stages);
    Problem free = problem_at(model_, costs_, options_, most);
    free.unlimited = true;
    if (free.may_keep) free.may_recompute = free.in_part = false;
    const Found quickest = solve(free, options_.nodes);
    free_bound_ = quickest.lower_bound;
    Problem full = problem_at(model_, costs_, options_, most);
    full.device_of = quickest.device_of;
    if (!quickest.ends.empty() && fits(full, quickest)) {
      best_ = {quickest, most, quickest.busiest};
      return;
    }
    const int fewest = model_.inference ? most : 1;  // an inference needs no less memory for fewer
    for (int cap = take_most(fewest, most) - 1; cap >= fewest; --cap) {
      if (least_period(cap) >= best_.period || best_.found.busiest == quickest.lower_bound) break;
      take(cap);
    }
    if (too_much_ && has_best()) bound_best();
  }

  void bound_best() {
    const Problem least = least_problem(best_.in_flight);
    if (mixes(least) || has_lanes(model_.profile, options_)) return;  // of which solve() knows no bound
    Nanoseconds& bound = best_.found.lower_bound;
    const Found found = solve(least, options_.nodes / 10);
    if (!found.ends.empty()) bound = std::min(best_.found.busiest, std::max(bound, found.lower_bound));
  }

  /// Takes the largest cap for which cuts are found, and returns it; fewest - 1: for none. Fewer in flight
  /// need no more memory, so it is found by halves.
  int take_most(int fewest, int most) {
    if (take(most)) return most;
    int fits = fewest - 1;
    for (int over = most; over - fits > 1;) {
      const int cap = fits + (over - fits) / 2;
      (take(cap) ? fits : over) = cap;
    }
    return fits;
  }

  /// Whether cuts are found for this cap.
  bool take(int cap) {
    const Problem problem = problem_at(model_, costs_, options_, cap);
    problem.check_stop();
    last_ = solve(problem, options_.nodes / 10);
    if (last_.ends.empty()) return false;
    if (too_much_) last_.lower_bound = std::min(last_.busiest, free_bound_);
    const Nanoseconds period = std::max(last_.busiest, least_period(cap));
    if (!has_best() || period < best_.period || (period == best_.period && cap > best_.in_flight))
      best_ = {last_, cap, period};
    return true;
  }

  bool has_best() const { return !best_.found.ends.empty(); }

  /// Whether the partition that memory did not restrict fits as it is.
  bool fits(const Problem& full, const Found& found) const {
    if (options_.chunks > 1) return all_fit(full, found.ends);
    for (int s = 0, first = 0; s < full.stages(); first = found.ends[s++]) {
      const auto stage = full.fitting(full.device_of[s], s, first, found.ends[s], found.busiest);
      if (!stage || stage->recomputed != found.recomputed[s]) return false;
    }
    return true;
  }

  /// Some of several chunks may keep, and some recompute.
  bool mixes(const Problem& problem) const {
    return options_.chunks > 1 && problem.may_keep && problem.may_recompute;
  }

  Found solve(const Problem& problem, long nodes) const {
    if (options_.chunks == 1) return solve_single(problem);
    if (!mixes(problem)) return solve_chunks(problem, nodes);
    Problem keeping = problem, recomputing = problem;
    keeping.may_recompute = recomputing.may_keep = false;
    recomputing.in_any_part = problem.in_part && problem.least;
    Found found = solve_chunks(keeping, nodes / 2);
    if (found.ends.empty()) {
      found = solve_chunks(recomputing, nodes / 2);
      if (!found.ends.empty()) keep_what_fits(problem, found);
    }
    // Divisions where some layers keep and some recompute were not looked at.
    found.lower_bound = std::min(found.busiest, free_bound_);
    return found;
  }

  Nanoseconds least_period(int cap) const { return (chain_ + cap - 1) / cap; }

  const Model& model_;
  const ChainCosts& costs_;
  const PartitionOptions& options_;
  const bool too_much_;         ///< counts_too_much(): bounds and proofs are of least problems
  const Nanoseconds chain_;     ///< a micro-batch takes this long at least, through all stages and back
  Nanoseconds free_bound_ = 0;  ///< of the busiest device, where memory does not count and stages may keep
  Found last_;
  Best best_;
};

/// From the first to the last of layers that must stay together: a stage that has one then has all. None of
/// layers on one device where that leaves fewer runs than stages: several stages of the device may still hold
/// them.
std::vector<Undivided> undivided(const Profile& profile, int stages) {
  std::vector<Undivided> whole, of_stages;
  for (const Restriction& one : profile.restrictions) {
    if (one.rule != Rule::together && one.rule != Rule::one_stage) continue;
    whole.push_back({{one.layers.front(), one.layers.back() + 1}, one.device, one.rule == Rule::one_stage});
    if (one.rule == Rule::one_stage) of_stages.push_back(whole.back());
  }
  int runs = 1;
  for (int l = 1; l < static_cast<int>(profile.layers.size()); ++l) {
    const auto divides = [&](const Undivided& one) { return one.run.first < l && l < one.run.end; };
    if (std::ranges::none_of(whole, divides)) ++runs;
  }
  return runs < stages ? of_stages : whole;
}

/// The stages between the cuts, and the shards where they stand.
std::vector<Stage> stages_of(const Model& model, const ChainCosts& costs, const Found& found) {
  std::vector<int> all(model.devices());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Stage> stages;
  std::size_t shard = 0;
  const auto add_shards = [&](int position) {
    for (; shard < costs.shards().size() && costs.shards()[shard].position <= position; ++shard)
      stages.push_back({.layers = costs.shards()[shard].layers, .devices = all});
  };
  int first = 0;
  for (std::size_t s = 0; s < found.ends.size(); ++s) {
    add_shards(first);
    const int kept_from = first + found.recomputed[s];
    for (const int end : {kept_from, found.ends[s]}) {
      if (end == first) continue;
      Stage stage{.devices = {found.device_of[s]}, .recompute = end == kept_from};
      for (; first < end; ++first) stage.layers.push_back(costs.layer(first));
      stages.push_back(std::move(stage));
    }
  }
  add_shards(costs.layers());
  return stages;
}

StageCuts cut_by(const StageRules& rules, const Model& model, const Profile& profile,
                 const PartitionOptions& options) {
  const ChainCosts costs(model, options.sharded, rules);
  check_layers(costs, model, options.chunks);
  Levels levels(model, costs, options);
  const Levels::Best best = levels.best();
  const Found& found = best.found;
  if (!found.ends.empty())
    return {stages_of(model, costs, found), found.busiest, found.lower_bound, best.in_flight,
            !rules.spread.empty()};
  const bool tied = std::ranges::any_of(profile.layers, [](const LayerCost& l) { return l.tied > 0; });
  if (rules.empty() && !tied && levels.proved_empty()) {  // memory of tied layers is an estimate from above
    throw InfeasibleError("no partition fits: " + why_infeasible(profile, levels.least_problem(1)));
  }
  throw InputError("", 0,
                   fmt::format("no partition with {} per device was found that fits the memory of the "
                               "devices{}, but one may exist: give more memory or devices, or fewer chunks",
                               counted(options.chunks, "chunk"),
                               rules.empty() ? "" : " and obeys the profile's restrictions"));
}

}  // namespace

std::vector<int> devices_of_stages(const PartitionOptions& options) {
  const int devices = options.cluster ? static_cast<int>(options.cluster->devices.size()) : options.devices;
  std::vector<int> order = options.order;
  if (order.empty()) {
    order.resize(devices);
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<int> device_of;
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    const bool back = options.layout == ChunkLayout::wave && chunk % 2 == 1;
    device_of.insert(device_of.end(), order.begin(), order.end());
    if (back) std::reverse(device_of.end() - devices, device_of.end());
  }
  return device_of;
}

/// Where the best cuts leave a device without a layer that every device must have, each stage gets one, which
/// is more than the restriction asks for where a device has several stages.
StageCuts cut_chain(const Profile& profile, const PartitionOptions& options) {
  check_partition(profile, options);
  const Model model(profile, options);
  StageRules rules{.undivided = undivided(profile, model.devices() * options.chunks)};
  StageCuts cuts = cut_by(rules, model, profile, options);
  const Restriction* spread = find_rule(profile.restrictions, Rule::spread);
  if (spread == nullptr ||
      first_broken({*spread}, cuts.stages, model.devices(), options.split_backward) == nullptr)
    return cuts;
  if (static_cast<int>(spread->layers.size()) < model.devices())
    throw InputError("", 0,
                     fmt::format("on {} the profile's 'restrictions' forbid every placement: {}",
                                 counted(model.devices(), "device"), words_of(*spread)));
  rules.spread = spread->layers;
  return cut_by(rules, model, profile, options);
}

Placement partition_chain(const Profile& profile, const PartitionOptions& options) {
  return place_stages(profile, options, cut_chain(profile, options).stages);
}

}  // namespace ostinato
