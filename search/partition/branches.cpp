// SPDX-License-Identifier: Apache-2.0
// 1. The downsets of the groups of layers (small layers joined if there are too many), and from them all
//    connected sets of layers that take no longer than a limit: the stages (find_stage_sets()).
// 2. solve(): for each number of devices left and each downset, from the whole model back, the stage that
//    comes next and fits, such that the busiest device is least; ties by the sum of squared loads. Sharded
//    groups are separate stages between these, on all devices.
// 3. Memory is judged with at most `cap` micro-batches in flight, from the largest cap down, as for a chain
//    (chain.cpp); a stage that does not fit otherwise may recompute. If nothing fits, the limit doubles.
// The cost is the number of stage sets (at most kMostStageSets) times devices, for each cap and limit.
#include "search/partition/branches.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/partition/contraction.h"
#include "search/partition/downsets.h"
#include "search/partition/stage_cost.h"
#include "search/partition/transit.h"

namespace ostinato {
namespace {

using namespace chain;

[[noreturn]] void refuse(const std::string& message) { throw InputError("", 0, message); }

/// Every layer alone, but neighbouring sharded ones together.
std::vector<std::vector<int>> groups_of(const Model& model, const std::vector<int>& sharded) {
  std::vector<std::vector<int>> groups;
  bool before = false;
  for (int l = 0; l < model.graph.layers(); ++l) {
    const bool shard = std::binary_search(sharded.begin(), sharded.end(), l);
    if (!shard || !before) groups.emplace_back();
    groups.back().push_back(l);
    before = shard;
  }
  return groups;
}

/// Of these layers on the kind that is quickest for them, a micro-batch.
Nanoseconds quickest(const Model& model, const std::vector<int>& layers) {
  Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
  for (std::size_t k = 0; k < model.on_kind.size(); ++k) {
    const StageCost cost = cost_of_run(model, static_cast<int>(k), layers);
    least = std::min(
        least, cost.forward + (model.split ? cost.backward_input + cost.backward_weight : cost.backward));
  }
  return least;
}

/// The downsets of the layers; where they are too many, of layers that are joined: first those that take no
/// time, then those that take little together, then more.
Downsets downsets_of(const Model& model, const std::vector<int>& sharded) {
  const std::vector<std::vector<int>> groups = groups_of(model, sharded);
  Downsets sets(model.graph, groups, kMostDownsets);
  if (sets.complete()) return sets;
  std::vector<Nanoseconds> times;
  std::vector<bool> fixed;
  Nanoseconds total = 0;
  for (const std::vector<int>& group : groups) {
    times.push_back(quickest(model, group));
    fixed.push_back(std::binary_search(sharded.begin(), sharded.end(), group.front()));
    total += times.back();
  }
  const Nanoseconds share = total / model.devices();
  for (const int part : {0, 256, 128, 64, 32, 16, 8, 4, 2, 1}) {
    sets = Downsets(model.graph, contract(model.graph, groups, times, fixed, part == 0 ? 0 : share / part),
                    kMostDownsets);
    if (sets.complete()) return sets;
  }
  refuse(
      fmt::format("too many branches for stages over the graph: even with small layers joined, the layers "
                  "have more than {} sets that are closed under their inputs",
                  kMostDownsets));
}

/// What could be a stage: the layers between two downsets, or a shard.
struct StageSet {
  int from = 0, to = 0;
  bool shard = false;
  std::vector<StageCost> on_kind;  ///< empty for a shard
};

/// Time and memory of a device with one stage and all shards.
struct Fit {
  Nanoseconds time = 0;
  bool recompute = false;
};

class GraphCutter {
 public:
  GraphCutter(const Model& model, const PartitionOptions& options)
      : model_(model), options_(options), sets_(downsets_of(model, options.sharded)), all_(model.devices()) {
    std::iota(all_.begin(), all_.end(), 0);
    for (std::size_t g = 0; g < sets_.groups().size(); ++g) {
      if (!is_shard(static_cast<int>(g))) continue;
      shards_.push_back(cost_of_stage(model, {.layers = sets_.groups()[g], .devices = all_}));
    }
    if (static_cast<int>(sets_.groups().size() - shards_.size()) < model.devices()) {
      refuse(
          fmt::format("at least one unsharded layer per device is needed, that is, {}, but the model has {}",
                      model.devices(), sets_.groups().size() - shards_.size()));
    }
  }

  /// So far, where it is stopped.
  StageCuts best();
  /// Layers are joined that could be on different devices.
  bool joined() const { return sets_.groups().size() != groups_of(model_, options_.sharded).size(); }
  /// Whatever the stages are: all layers over all devices, and the longest layer.
  Nanoseconds least_busiest() const;

 private:
  /// The best way to run what is not in a downset on the last `k` devices.
  struct Rest {
    Nanoseconds busiest = -1;  ///< -1: there is none
    __int128 squares = 0;
    int set = -1;  ///< of stage_sets_: the next stage
    bool recompute = false;

    bool better_than(const Rest& other) const {
      return busiest >= 0 &&
             (other.busiest < 0 || std::tie(busiest, squares) < std::tie(other.busiest, other.squares));
    }
  };

  bool is_shard(int group) const {
    return std::binary_search(options_.sharded.begin(), options_.sharded.end(),
                              sets_.groups()[group].front());
  }
  Nanoseconds time_of(const StageCost& cost) const {
    return cost.forward + (model_.split ? cost.backward_input + cost.backward_weight : cost.backward);
  }
  std::vector<int> layers_of(const std::vector<int>& groups) const;
  bool connected(const std::vector<int>& layers) const;
  Nanoseconds first_limit() const;
  Nanoseconds critical_path() const;
  void look();
  void check_stop() const {
    if (options_.stop && options_.stop()) throw StoppedError();
  }
  void find_stage_sets(Nanoseconds limit);
  void grow(int from, Nanoseconds limit);
  std::optional<Fit> fitting(const StageSet& set, int behind, int cap) const;
  void solve(int cap);
  Nanoseconds least_at(int cap);
  Rest rest_behind(int downset, int k, int cap) const;
  std::vector<Stage> stages() const;

  const Model& model_;
  const PartitionOptions& options_;
  const Downsets sets_;
  std::vector<int> all_;  ///< devices
  std::vector<StageCost> shards_;
  std::vector<StageSet> stage_sets_;
  std::vector<std::vector<int>> from_;    ///< stage sets by their smaller downset
  std::vector<std::vector<Rest>> table_;  ///< by stages left, then downset
  bool least_ = false;  ///< counts only what every placement needs: no messages, what is surely in flight
  StageCuts best_;
};

std::vector<int> GraphCutter::layers_of(const std::vector<int>& groups) const {
  std::vector<int> layers;
  for (const int g : groups) layers.insert(layers.end(), sets_.groups()[g].begin(), sets_.groups()[g].end());
  std::sort(layers.begin(), layers.end());
  return layers;
}

bool GraphCutter::connected(const std::vector<int>& layers) const {
  std::vector<int> reached = {layers.front()};
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const auto visit = [&](int l) {
      if (std::binary_search(layers.begin(), layers.end(), l) &&
          std::find(reached.begin(), reached.end(), l) == reached.end())
        reached.push_back(l);
    };
    for (const LayerInput& input : model_.graph.inputs(reached[i])) visit(input.layer);
    for (const int reader : model_.graph.readers(reached[i])) visit(reader);
  }
  return reached.size() == layers.size();
}

/// A limit that most models meet: an equal share, and the longest layer above it.
Nanoseconds GraphCutter::first_limit() const {
  Nanoseconds total = 0, longest = 0;
  for (std::size_t g = 0; g < sets_.groups().size(); ++g) {
    if (is_shard(static_cast<int>(g))) continue;
    Nanoseconds slowest = 0;
    for (std::size_t k = 0; k < model_.on_kind.size(); ++k) {
      const StageCost cost = cost_on_kind(model_, static_cast<int>(k), sets_.groups()[g]);
      slowest = std::max(slowest, time_of(cost) + (options_.recompute == Recompute::never ? 0 : cost.again));
    }
    total += slowest;
    longest = std::max(longest, slowest);
  }
  return total / model_.devices() + longest + 1;
}

/// The longest path of layers, there and back, on the fastest kind of device.
Nanoseconds GraphCutter::critical_path() const {
  std::vector<Nanoseconds> until(model_.graph.layers(), 0);
  Nanoseconds longest = 0;
  for (int l = 0; l < model_.graph.layers(); ++l) {
    if (std::binary_search(options_.sharded.begin(), options_.sharded.end(), l)) continue;
    const Nanoseconds own = quickest(model_, {l});
    for (const LayerInput& input : model_.graph.inputs(l)) until[l] = std::max(until[l], until[input.layer]);
    until[l] += own;
    longest = std::max(longest, until[l]);
  }
  return longest;
}

Nanoseconds GraphCutter::least_busiest() const {
  Nanoseconds total = 0, longest = 0, shards = 0;
  for (const StageCost& shard : shards_) shards += shard.forward + shard.backward;
  for (int l = 0; l < model_.graph.layers(); ++l) {
    if (std::binary_search(options_.sharded.begin(), options_.sharded.end(), l)) continue;
    const Nanoseconds own = quickest(model_, {l});
    total += own;
    longest = std::max(longest, own);
  }
  return std::max((total + model_.devices() - 1) / model_.devices(), longest) + shards;
}

/// Every stage that takes at most `limit` on some kind of device, and the shards.
void GraphCutter::find_stage_sets(Nanoseconds limit) {
  stage_sets_.clear();
  from_.assign(sets_.size(), {});
  for (int downset = 0; downset < sets_.size(); ++downset) {
    check_stop();
    grow(downset, limit);
  }
}

void GraphCutter::grow(int from, Nanoseconds limit) {
  std::vector<int> reached = {from};
  std::vector<char> seen(sets_.size(), 0);
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (const Downsets::Step& step : sets_.steps(reached[i])) {
      if (seen[step.to]) continue;
      seen[step.to] = 1;
      if (is_shard(step.group)) {
        if (reached[i] != from) continue;
        from_[from].push_back(static_cast<int>(stage_sets_.size()));
        stage_sets_.push_back({from, step.to, true, {}});
        continue;
      }
      const std::vector<int> layers = layers_of(sets_.between(from, step.to));
      StageSet set{from, step.to, false, {}};
      Nanoseconds quickest = std::numeric_limits<Nanoseconds>::max();
      for (std::size_t k = 0; k < model_.on_kind.size(); ++k) {
        set.on_kind.push_back(cost_on_kind(model_, static_cast<int>(k), layers));
        quickest = std::min(quickest, time_of(set.on_kind.back()));
      }
      if (quickest > limit) continue;
      reached.push_back(step.to);
      if (!connected(layers)) continue;
      if (static_cast<int>(stage_sets_.size()) == kMostStageSets)
        refuse(
            fmt::format("too many branches: more than {} sets of layers could be a stage", kMostStageSets));
      from_[from].push_back(static_cast<int>(stage_sets_.size()));
      stage_sets_.push_back(std::move(set));
    }
  }
}

/// As Problem::fitting() of a chain, with `behind` stages from this one on.
std::optional<Fit> GraphCutter::fitting(const StageSet& set, int behind, int cap) const {
  const int device = model_.devices() - behind;
  const Bytes memory = model_.memory_of(device);
  const StageCost& cost = set.on_kind[model_.kind_of(device)];
  const int most = std::min(cap, options_.micro_batches);
  const int shards = static_cast<int>(shards_.size());
  for (const bool recompute : {false, true}) {
    if (options_.recompute == (recompute ? Recompute::never : Recompute::always)) continue;
    Nanoseconds time = time_of(cost) + (recompute ? cost.again : 0);
    Bytes held = cost.in_flight(recompute) * std::min(most, behind + (least_ ? 0 : shards));
    Bytes messages = messages_of(model_.rank, cost.received, cost.handed_on);
    Bytes workspace = cost.peak(recompute, model_.split);
    Bytes apart = held + workspace;  // while one of them runs, the rest may hold nothing
    Bytes fixed = cost.fixed, together = cost.step_together, alone = cost.step_alone;
    for (const StageCost& shard : shards_) {
      const Bytes peak = shard.peak(false, model_.split);
      time += shard.forward + shard.backward;
      held += shard.in_flight(false) * std::min(most, model_.devices() + shards);
      messages = std::max(messages, messages_of(model_.rank, shard.received, shard.handed_on));
      workspace = std::max(workspace, peak);
      apart = std::max(apart, shard.in_flight(false) + peak);
      fixed += shard.fixed;
      together += shard.step_together;
      alone = std::max(alone, shard.step_alone);
    }
    const Bytes running = std::max(least_ ? apart : held + workspace, model_.end_of_step(together, alone));
    if (least_) messages = 0;
    if (memory == kUnlimited || fixed + messages + model_.rank.held + running <= memory)
      return Fit{time, recompute};
  }
  return std::nullopt;
}

GraphCutter::Rest GraphCutter::rest_behind(int downset, int k, int cap) const {
  Rest best;
  if (k == 0 && downset == sets_.full()) best.busiest = 0;
  for (const int index : from_[downset]) {
    const StageSet& set = stage_sets_[index];
    if (!set.shard && k == 0) continue;
    Rest rest = table_[set.shard ? k : k - 1][set.to];
    if (rest.busiest < 0) continue;
    rest.set = index;
    if (!set.shard) {
      const std::optional<Fit> fit = fitting(set, k, cap);
      if (!fit) continue;
      rest.busiest = std::max(rest.busiest, fit->time);
      rest.squares += static_cast<__int128>(fit->time) * fit->time;
      rest.recompute = fit->recompute;
    }
    if (rest.better_than(best)) best = rest;
  }
  return best;
}

/// From the whole model back: a downset comes before every larger one.
void GraphCutter::solve(int cap) {
  table_.assign(model_.devices() + 1, {});
  for (int k = 0; k <= model_.devices(); ++k) {
    check_stop();
    table_[k].resize(sets_.size());
    for (int downset = sets_.size() - 1; downset >= 0; --downset)
      table_[k][downset] = rest_behind(downset, k, cap);
  }
}

/// With no memory counted that a placement may not need: messages of one size to several stages are one
/// buffer, and a shard stands somewhere among the stages.
Nanoseconds GraphCutter::least_at(int cap) {
  const bool limited = std::ranges::any_of(all_, [&](int d) { return model_.memory_of(d) != kUnlimited; });
  constexpr Nanoseconds any = std::numeric_limits<Nanoseconds>::max();
  if (limited && has_lanes(model_.profile, options_)) return least_busiest();  // a stage is cut behind each
  if (!limited || (model_.rank.buffers == 0 && shards_.empty())) return any;
  least_ = true;
  solve(cap);
  least_ = false;
  return table_[model_.devices()][0].busiest;
}

std::vector<Stage> GraphCutter::stages() const {
  std::vector<Stage> result;
  int downset = 0, k = model_.devices();
  while (downset != sets_.full()) {
    const Rest& rest = table_[k][downset];
    const StageSet& set = stage_sets_[rest.set];
    const std::vector<int> layers = layers_of(sets_.between(set.from, set.to));
    if (set.shard) {
      result.push_back({.layers = layers, .devices = all_});
    } else {
      result.push_back({.layers = layers, .devices = {model_.devices() - k--}, .recompute = rest.recompute});
    }
    downset = set.to;
  }
  return result;
}

StageCuts GraphCutter::best() {
  try {
    look();
  } catch (const StoppedError&) {
    if (best_.stages.empty()) throw;
  }
  return std::move(best_);
}

void GraphCutter::look() {
  const Nanoseconds critical = critical_path();
  const int most = std::min(options_.micro_batches, model_.devices() + static_cast<int>(shards_.size()));
  Nanoseconds shard_time = 0;
  for (const StageCost& shard : shards_) shard_time += shard.forward + shard.backward;
  Nanoseconds least = 0;
  for (Nanoseconds limit = first_limit(); best_.stages.empty(); limit *= 2) {
    find_stage_sets(limit);
    const int fewest = model_.inference ? most : 1;  // an inference needs no less memory for fewer
    for (int cap = most; cap >= fewest; --cap) {
      const Nanoseconds in_turn = (critical + cap - 1) / cap;
      if (!best_.stages.empty() && in_turn >= least) break;
      solve(cap);
      const Rest& found = table_[model_.devices()][0];
      if (found.busiest < 0) continue;
      const Nanoseconds period = std::max(found.busiest, in_turn);
      if (!best_.stages.empty() && period >= least) continue;
      least = period;
      // A set left out takes more than `limit`, beside the shards.
      const Nanoseconds left_out = joined() ? least_busiest() : limit + shard_time;
      best_ = {stages(), found.busiest, std::min(found.busiest, least_busiest()), cap};
      best_.lower_bound = std::min({best_.busiest, left_out, least_at(cap)});
    }
    if (limit > first_limit() * model_.devices()) break;  // every set was a candidate
  }
}

/// Runs of layers in their order, whole stages; nothing where there are none that fit.
std::optional<StageCuts> whole_chain(const Profile& profile, PartitionOptions options) {
  options.chunks = 1;
  options.layout = ChunkLayout::looped;
  if (options.recompute == Recompute::partly) options.recompute = Recompute::needed;
  try {
    return cut_chain(profile, options);
  } catch (const InfeasibleError&) {
    return std::nullopt;
  } catch (const InputError&) {
    return std::nullopt;
  } catch (const StoppedError&) {
    return std::nullopt;
  }
}

}  // namespace

StageCuts cut_graph(const Profile& profile, const PartitionOptions& options) {
  check_partition(profile, options);
  const Model model(profile, options);
  GraphCutter cutter(model, options);
  StageCuts cuts = cutter.best();
  if (cuts.stages.empty())
    refuse("no partition into connected stages was found that fits the memory of the devices");
  if (cutter.joined()) {  // a run of layers may end between two that are joined
    std::optional<StageCuts> chain = whole_chain(profile, options);
    if (chain && chain->busiest < cuts.busiest && chain->in_flight >= cuts.in_flight) {
      cuts = *std::move(chain);
      cuts.lower_bound = std::min(cuts.busiest, cutter.least_busiest());
    }
  }
  return cuts;
}

}  // namespace ostinato
