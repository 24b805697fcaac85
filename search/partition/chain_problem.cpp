// SPDX-License-Identifier: Apache-2.0
#include "search/partition/chain_problem.h"
#include "search/plan/sends_ahead.h"

#include <algorithm>

#include "search/partition/inference.h"
#include "search/partition/transit.h"

namespace ostinato::chain {

Load Problem::add(Load load, int device, int stage, int first, int end, bool recompute) const {
  if (model.inference) return add_forward(load, device, first, end);
  const LayerSums& on = sums(device);
  const Bytes kept = on.kept(first, end);
  const Bytes workspace = on.workspace(first, end) + (recompute ? kept : 0);
  load.time += on.time(first, end) + model.blocks() + (recompute ? on.again(first, end) : 0);
  load.fixed += on.fixed(first, end);
  load.together += on.step_together(first, end);
  load.alone = std::max(load.alone, on.step_alone(first, end));
  load.messages = std::max(load.messages, messages_of(model.rank, costs.read_by(first), costs.sent_by(end)));
  load.kept += ((recompute ? 0 : kept) + on.sent(end) + on.input(first)) * in_flight[stage];
  load.workspace = std::max(load.workspace, serial ? load.kept + workspace : workspace);
  return load;
}

Load Problem::add_stage(const Load& load, int device, int stage, int first, int end, int recomputed) const {
  if (recomputed == 0 || recomputed == end - first)
    return add(load, device, stage, first, end, recomputed > 0);
  const int kept_from = first + recomputed;
  return add(add(load, device, stage, first, kept_from, true), device, stage, kept_from, end, false);
}

Load Problem::add_forward(Load load, int device, int first, int end) const {
  const LayerSums& on = sums(device);
  load.time += on.time(first, end) + model.blocks();
  load.fixed += on.fixed(first, end) + messages_ahead(on.input(first), costs.sent_by(end));
  load.workspace = std::max(load.workspace, on.input(first) + on.workspace(first, end));
  return load;
}

Load Problem::add_shard(Load load, int shard) const {
  const StageCost& cost = costs.shards()[shard].cost;
  load.time += cost.forward + cost.backward;
  load.fixed += cost.fixed;
  load.together += cost.step_together;
  load.alone = std::max(load.alone, cost.step_alone);
  load.messages = std::max(load.messages, cost.messages);
  load.kept += cost.in_flight(false) * shard_in_flight[shard];
  load.workspace = std::max(load.workspace, serial ? load.kept + cost.workspace() : cost.workspace());
  return load;
}

Bytes Problem::needed(const Load& load) const {
  const Bytes running = load.workspace + (serial ? 0 : load.kept);
  return load.fixed + load.messages + model.rank.held +
         std::max(running, model.end_of_step(load.together, load.alone));
}

std::optional<Problem::Fitting> Problem::fitting(int device, int stage, int first, int end,
                                                 Nanoseconds limit) const {
  if (costs.splits(first, end) || !costs.allows(device, first, end)) return std::nullopt;
  std::optional<Fitting> best;
  const auto consider = [&](int recomputed) {
    const Load load = with_shards(device, stage, first, end, recomputed);
    if (load.time > limit || (best && load.time >= best->load.time) || !fits(load, device)) return false;
    best = Fitting{load, recomputed};
    return true;
  };
  const int layers = end - first;
  if (may_keep && consider(0)) return best;
  if (may_recompute) consider(layers);
  // Fewer recomputed layers take less time.
  for (int recomputed = 1; in_part && recomputed < layers; ++recomputed)
    if (costs.may_end(first + recomputed) && consider(recomputed)) break;
  return best;
}

Load Problem::with_shards(int device, int stage, int first, int end, int recomputed) const {
  const int shards = static_cast<int>(costs.shards().size());
  Load load;
  int shard = 0;
  while (shard < shards && costs.shards()[shard].position <= first) load = add_shard(load, shard++);
  load = add_stage(load, device, stage, first, end, recomputed);
  while (shard < shards) load = add_shard(load, shard++);
  return load;
}

bool Problem::beyond(int device, int stage, int first, int end, Nanoseconds limit) const {
  const LayerSums& on = sums(device);
  Nanoseconds time = costs.shard_time() + on.time(first, end) + model.blocks();
  if (!may_keep) time += on.again(first, end);
  if (time > limit || costs.splits(first, end)) return true;
  if (memory(device) == kUnlimited) return false;
  const Bytes kept = may_recompute ? 0 : on.kept(first, end) * in_flight[stage];
  return costs.shard_fixed() + on.fixed(first, end) + kept > memory(device);
}

std::vector<char> reachable_ends(const Problem& problem, int device, int stage,
                                 const std::vector<char>& starts, Nanoseconds limit) {
  const int layers = problem.costs.layers();
  const auto begin = starts.begin();
  const int lowest = static_cast<int>(std::find(begin, starts.end(), 1) - begin);
  int highest = layers;
  while (highest >= 0 && !starts[highest]) --highest;
  std::vector<char> ends(starts.size(), 0);
  const int last = layers - (problem.stages() - 1 - stage);
  for (int end = lowest + 1; end <= last; ++end) {
    for (int first = std::min(end - 1, highest); first >= lowest; --first) {
      if (problem.beyond(device, stage, first, end, limit)) break;
      if (!starts[first] || !problem.fitting(device, stage, first, end, limit)) continue;
      ends[end] = 1;
      break;
    }
  }
  return ends;
}

Nanoseconds longest_load(const Problem& problem) {
  Nanoseconds longest = 0;
  for (int k = 0; k < problem.costs.kinds(); ++k) {
    const LayerSums& on = problem.costs.on(k);
    const int layers = on.layers();
    longest = std::max(longest, on.time(0, layers) + (problem.may_recompute ? on.again(0, layers) : 0));
  }
  return longest + problem.stages() * problem.model.blocks() + problem.costs.shard_time();
}

std::vector<Load> loads_of(const Problem& problem, const Ends& ends) {
  std::vector<int> recomputed(problem.device_of.size(), 0);
  for (std::size_t s = 0; s < recomputed.size() && !problem.may_keep; ++s)
    recomputed[s] = ends[s] - (s == 0 ? 0 : ends[s - 1]);
  return loads_of(problem, ends, recomputed);
}

std::vector<Load> loads_of(const Problem& problem, const Ends& ends, const std::vector<int>& recomputed) {
  std::vector<Load> loads(problem.devices());
  const auto& shards = problem.costs.shards();
  std::size_t shard = 0;
  const auto add_shards = [&](int position) {
    for (; shard < shards.size() && shards[shard].position <= position; ++shard) {
      for (Load& load : loads) load = problem.add_shard(load, static_cast<int>(shard));
    }
  };
  int first = 0;
  for (int s = 0; s < problem.stages(); ++s) {
    add_shards(first);
    const int device = problem.device_of[s];
    loads[device] = problem.add_stage(loads[device], device, s, first, ends[s], recomputed[s]);
    first = ends[s];
  }
  add_shards(problem.costs.layers());
  return loads;
}

bool all_fit(const Problem& problem, const Ends& ends) {
  const std::vector<Load> loads = loads_of(problem, ends);
  for (std::size_t d = 0; d < loads.size(); ++d) {
    if (!problem.fits(loads[d], static_cast<int>(d))) return false;
  }
  return true;
}

bool may_be_cut(const Problem& problem, const Ends& ends) {
  int first = 0;
  for (int s = 0; s < problem.stages(); first = ends[s++])
    if (problem.costs.splits(first, ends[s]) || !problem.costs.allows(problem.device_of[s], first, ends[s]))
      return false;
  return true;
}

}  // namespace ostinato::chain
