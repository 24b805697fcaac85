// SPDX-License-Identifier: Apache-2.0
#include "search/partition/chain_problem.h"
#include "search/plan/sends_ahead.h"

#include <algorithm>

#include "search/partition/inference.h"
#include "search/partition/transit.h"

namespace ostinato::chain {

void Load::add_messages(Bytes in, Bytes out) {
  gradient = std::max(gradient, held_when_sent(in));
  for (const Bytes size : {in, out}) {
    if (std::ranges::find(sizes, size) != sizes.end() || size == 0) continue;
    if (const auto free = std::ranges::find(sizes, 0); free != sizes.end()) *free = size;
    buffered += size;
  }
}

void Problem::hold(Load& load, Bytes own, Bytes above) const {
  if (least && serial && !model.graph.is_chain()) load.kept = 0;  // later stages may have run before
  load.kept += own;
  load.workspace = std::max(load.workspace, serial ? load.kept + above : above);
}

Problem::Beside Problem::beside(int stage, int first, int end) const {
  const auto same = [&](int a, int b) { return a >= 0 && b < stages() && device_of[a] == device_of[b]; };
  return {costs.shard_at(first) || same(stage - 1, stage), costs.shard_at(end) || same(stage, stage + 1)};
}

Load Problem::add(Load load, int device, int stage, int first, int end, bool recompute, Beside beside) const {
  if (model.inference) return add_forward(load, device, first, end);
  const LayerSums& on = sums(device);
  const Bytes kept = on.kept(first, end);
  Bytes workspace = on.workspace(first, end) + (recompute ? kept : 0);
  if (model.rank.buffers > 0 && costs.layer(first) == 0)  // it reads the batch
    workspace = std::max(workspace, on.first_forward(end, recompute) + on.input(first));
  load.time += on.time(first, end) + model.blocks() + (recompute ? on.again(first, end) : 0);
  load.fixed += on.fixed(first, end);
  load.together += on.step_together(first, end);
  load.alone = std::max(load.alone, on.step_alone(first, end));
  if (model.rank.buffers > 0 && !least) {
    const Bytes in = costs.read_by(first), out = costs.sent_by(end);
    load.add_messages(beside.before ? 0 : in, beside.behind ? 0 : out);
    // What is handed on without a message lies there twice while the stage runs.
    workspace += std::max(beside.before ? in : 0, beside.behind ? out : 0);
  }
  const Bytes own = ((recompute ? 0 : kept) + on.sent(end) + on.input(first)) * in_flight[stage];
  hold(load, own, workspace);
  // When a second half runs, earlier stages may hold nothing any more.
  const Bytes second = on.second_half(first, end) + (recompute ? kept : 0);
  if (serial) load.workspace = std::max(load.workspace, (least ? own : load.kept) + second);
  if (!serial && !least) load.workspace = std::max(load.workspace, second);
  return load;
}

Load Problem::add_stage(const Load& load, int device, int stage, int first, int end, int recomputed) const {
  Load result = add_parts(load, device, stage, first, end, recomputed);
  for (int other = 0; in_any_part && other <= end - first; ++other) {
    const Load with = add_parts(load, device, stage, first, end, other);
    result.time = std::min(result.time, with.time);
    result.kept = std::min(result.kept, with.kept);
    result.workspace = std::min(result.workspace, with.workspace);
  }
  return result;
}

Load Problem::add_parts(const Load& load, int device, int stage, int first, int end, int recomputed) const {
  if (recomputed == 0 || recomputed == end - first)
    return add(load, device, stage, first, end, recomputed > 0);
  const int kept_from = first + recomputed;
  const Beside outside = beside(stage, first, end);
  return add(add(load, device, stage, first, kept_from, true, {outside.before, true}), device, stage,
             kept_from, end, false, {true, outside.behind});
}

Load Problem::add_forward(Load load, int device, int first, int end) const {
  const LayerSums& on = sums(device);
  load.time += on.time(first, end) + model.blocks();
  load.fixed += on.fixed(first, end) + messages_ahead(on.input(first), least ? 0 : costs.sent_by(end));
  load.workspace = std::max(load.workspace, on.input(first) + on.workspace(first, end));
  return load;
}

Load Problem::add_shard(Load load, int shard, Beside beside) const {
  const StageCost& cost = costs.shards()[shard].cost;
  Bytes workspace = cost.peak(false, model.split);
  load.time += cost.forward + cost.backward;
  load.fixed += cost.fixed;
  load.together += cost.step_together;
  load.alone = std::max(load.alone, cost.step_alone);
  if (model.rank.buffers > 0 && !least) {
    load.add_messages(beside.before ? 0 : cost.received, beside.behind ? 0 : cost.handed_on);
    workspace += std::max(cost.received, cost.handed_on);  // on some device, and a block counts one number
  }
  hold(load, cost.in_flight(false) * shard_in_flight[shard], workspace);
  return load;
}

Bytes Problem::needed(const Load& load) const {
  const Bytes running = load.workspace + (serial ? 0 : load.kept);
  return load.fixed + model.rank.buffers * load.buffered + load.gradient + model.rank.held +
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
  const auto position = [&] { return costs.shards()[shard].position; };
  for (; shard < shards && position() <= first; ++shard)
    load = add_shard(load, shard, {.behind = position() == first});
  load = add_stage(load, device, stage, first, end, recomputed);
  for (; shard < shards; ++shard) load = add_shard(load, shard, {.before = position() == end});
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
  const int parts = (problem.in_part ? 2 : 1) * problem.stages();  // that recompute, and that keep
  return longest + parts * problem.model.blocks() + problem.costs.shard_time();
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
  const auto is_on = [&](int stage, int device) {
    return stage >= 0 && stage < problem.stages() && problem.device_of[stage] == device;
  };
  const auto add_shards = [&](int stage, int position) {  // before this stage
    for (; shard < shards.size() && shards[shard].position <= position; ++shard) {
      for (int d = 0; d < problem.devices(); ++d)
        loads[d] =
            problem.add_shard(loads[d], static_cast<int>(shard), {is_on(stage - 1, d), is_on(stage, d)});
    }
  };
  int first = 0;
  for (int s = 0; s < problem.stages(); ++s) {
    add_shards(s, first);
    const int device = problem.device_of[s];
    loads[device] = problem.add_stage(loads[device], device, s, first, ends[s], recomputed[s]);
    first = ends[s];
  }
  add_shards(problem.stages(), problem.costs.layers());
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
