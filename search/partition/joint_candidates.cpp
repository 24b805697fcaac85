// SPDX-License-Identifier: Apache-2.0
#include "search/partition/joint_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/files/value.h"
#include "search/partition/stage_cost.h"

namespace ostinato::joint {
namespace {

/// Runs of neighbours: what is sharded together.
std::vector<std::vector<int>> runs_of(const std::vector<int>& layers) {
  std::vector<std::vector<int>> runs;
  for (const int l : layers) {
    if (runs.empty() || runs.back().back() != l - 1) runs.emplace_back();
    runs.back().push_back(l);
  }
  return runs;
}

/// None first; then every set of runs, or each alone and all together where they are many.
std::vector<std::vector<int>> shard_sets(const std::vector<int>& shardable) {
  const std::vector<std::vector<int>> runs = runs_of(shardable);
  std::vector<std::vector<int>> sets = {{}};
  if (runs.empty()) return sets;
  if (runs.size() < 31 && (1u << runs.size()) <= kMostShardSets) {
    for (unsigned mask = 1; mask < 1u << runs.size(); ++mask) {
      std::vector<int>& set = sets.emplace_back();
      for (std::size_t r = 0; r < runs.size(); ++r) {
        if (mask >> r & 1) set.insert(set.end(), runs[r].begin(), runs[r].end());
      }
    }
    return sets;
  }
  for (std::size_t r = 0; r < runs.size() && r + 2 < kMostShardSets; ++r) sets.push_back(runs[r]);
  sets.push_back(shardable);
  return sets;
}

/// Up to this many kinds of devices pass in every order, more in two.
constexpr std::size_t kPermutedKinds = 3;

std::vector<std::vector<int>> orders_of_kinds(const Cluster& cluster) {
  std::set<int> used;
  for (const ClusterDevice& device : cluster.devices) used.insert(device.kind);
  std::vector<int> kinds(used.begin(), used.end());
  if (kinds.size() > kPermutedKinds) return {kinds, {kinds.rbegin(), kinds.rend()}};
  std::vector<std::vector<int>> orders;
  do orders.push_back(kinds);
  while (std::next_permutation(kinds.begin(), kinds.end()));
  return orders;
}

std::string shard_suffix(const Profile& profile, const std::vector<int>& sharded) {
  if (sharded.empty()) return "";
  if (sharded.size() > 3) return fmt::format(", {} sharded", counted(sharded.size(), "layer"));
  std::string names;
  for (const int l : sharded) names += (names.empty() ? "" : ", ") + profile.layers[l].name;
  return fmt::format(", {} sharded", names);
}

}  // namespace

std::vector<DeviceOrder> device_orders(const Cluster& cluster) {
  std::vector<int> listed(cluster.devices.size());
  std::iota(listed.begin(), listed.end(), 0);
  std::vector<DeviceOrder> orders = {{"", listed}};
  for (const std::vector<int>& kinds : orders_of_kinds(cluster)) {
    DeviceOrder order;
    for (const int kind : kinds) {
      order.name += (order.name.empty() ? ", " : " before ") + cluster.kinds[kind].name;
      std::copy_if(listed.begin(), listed.end(), std::back_inserter(order.devices),
                   [&](int d) { return cluster.devices[d].kind == kind; });
    }
    if (order.devices != listed) orders.push_back(std::move(order));
  }
  return orders;
}

std::vector<bool> splits(const Profile& profile, const JointOptions& options) {
  if (options.partition.inference) return {false};
  if (options.partition.split_backward) return {true};
  const bool halves = std::any_of(profile.layers.begin(), profile.layers.end(),
                                  [](const LayerCost& layer) { return layer.halves(); });
  const bool split = find_rule(options.restrictions, Rule::whole_backwards) == nullptr;
  return split && halves ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

namespace {

/// Said where whole backwards are tried too.
std::string split_suffix(const JointOptions& options, bool split) {
  return split && !options.partition.split_backward ? ", split" : "";
}

/// The candidates with these layers sharded, and backwards whole or split.
class Shapes {
 public:
  Shapes(const Profile& profile, const JointOptions& options, std::vector<Candidate>& list)
      : profile_(profile),
        options_(options),
        list_(list),
        branches_(!LayerGraph(profile).is_chain()),
        cluster_(cluster_of(options.partition)),
        orders_(device_orders(cluster_)) {}

  void add_all(const std::vector<int>& sharded, bool split) {
    const auto add = [&](const std::string& name, int chunks, ChunkLayout layout) -> Candidate& {
      return this->add(name, chunks, layout, sharded, split);
    };
    add("1 chunk per device", 1, ChunkLayout::looped);
    if (sharded.empty()) {
      add("even split of the layers", 1, ChunkLayout::looped).even = true;
      if (split == options_.partition.split_backward)
        add(options_.partition.inference ? "1 chunk per device, cut for forwards in turn"
                                         : "1 chunk per device, cut for 1F1B",
            1, ChunkLayout::looped)
            .usual = true;
    }
    if (branches_ && options_.graph) add("stages over the graph", 1, ChunkLayout::looped).graph = true;
    if (sharded.empty() && options_.search.objective == Objective::latency)
      add("stages for a short latency", 1, ChunkLayout::looped).quick = true;
    const long devices = static_cast<long>(cluster_.devices.size());
    const long layers = static_cast<long>(profile_.layers.size() - sharded.size());
    for (const int chunks : chunk_numbers(layers, devices, most_chunks(options_.restrictions))) {
      for (const DeviceOrder& order : orders_) {
        add(fmt::format("looped, {} per device{}", counted(chunks, "chunk"), order.name), chunks,
            ChunkLayout::looped)
            .options.order = order.name.empty() ? std::vector<int>{} : order.devices;
        add(fmt::format("wave, {} per device{}", counted(chunks, "chunk"), order.name), chunks,
            ChunkLayout::wave)
            .options.order = order.name.empty() ? std::vector<int>{} : order.devices;
      }
    }
  }

 private:
  Candidate& add(const std::string& name, int chunks, ChunkLayout layout, const std::vector<int>& sharded,
                 bool split) {
    Candidate& candidate = list_.emplace_back();
    candidate.name = name + shard_suffix(profile_, sharded) + split_suffix(options_, split);
    candidate.options = options_.partition;
    candidate.options.split_backward = split;
    candidate.options.chunks = chunks;
    candidate.options.layout = layout;
    candidate.options.sharded = sharded;
    candidate.options.recompute = Recompute::never;
    return candidate;
  }

  const Profile& profile_;
  const JointOptions& options_;
  std::vector<Candidate>& list_;
  const bool branches_;
  const Cluster cluster_;
  const std::vector<DeviceOrder> orders_;
};

}  // namespace

std::vector<Candidate> list_candidates(const Profile& profile, const JointOptions& options) {
  std::vector<Candidate> list;
  Shapes shapes(profile, options, list);
  for (const bool split : splits(profile, options)) {
    for (const std::vector<int>& sharded : shard_sets(options.shardable)) shapes.add_all(sharded, split);
  }
  if (!has_lanes(profile, options.partition)) return list;
  for (std::size_t i = 0, listed = list.size(); i < listed; ++i) {
    if (!is_usual(list[i], options.partition)) continue;
    Candidate computing = list[i];
    computing.name += ", without lanes";
    computing.options.lanes = LanesOf::none;
    list.push_back(std::move(computing));
  }
  return list;
}

Candidate recomputing(const Candidate& candidate, Recompute how) {
  Candidate again;
  again.name = candidate.name + (how == Recompute::partly ? ", recompute in part" : ", recompute");
  again.options = candidate.options;
  again.options.recompute = how;
  again.graph = candidate.graph;
  again.usual = candidate.usual;
  again.idle = candidate.idle;
  return again;
}

std::string moved_name(const Candidate& from, const Candidate& moved) {
  std::vector<std::vector<int>> before, after;
  for (const Stage& stage : from.cuts->stages) before.push_back(stage.devices);
  for (const Stage& stage : moved.cuts->stages) after.push_back(stage.devices);
  const std::string_view arranged = " per device";
  const std::size_t at = from.name.find(arranged);
  const std::string unmoved = from.name.substr(0, from.name.find(", moved"));
  if (before == after || at == std::string::npos) return unmoved + ", moved";
  return fmt::format("{}, at most {} per device{}, moved", counted(after.size(), "chunk"),
                     most_on_one_device(moved.cuts->stages), unmoved.substr(at + arranged.size()));
}

PartitionOptions in_part_of_memory(PartitionOptions options, int percent) {
  if (percent == 100) return options;
  const auto part = [&](Bytes memory) {
    return memory == kUnlimited ? kUnlimited : memory / 100 * percent + memory % 100 * percent / 100;
  };
  options.device_memory = part(options.device_memory);
  if (options.cluster)
    for (DeviceKind& kind : options.cluster->kinds) kind.memory = part(kind.memory);
  return options;
}

std::vector<int> fewer_counts(const Profile& profile, const JointOptions& options) {
  const Cluster cluster = cluster_of(options.partition);
  const int all = static_cast<int>(cluster.devices.size());
  std::set<int, std::greater<>> counts;
  if (options.fewer_devices == FewerDevices::every || all <= kFewDevices) {
    for (int devices = 1; devices < all; ++devices) counts.insert(devices);
  } else {
    for (int devices = all / 2; devices >= 1; devices /= 2) counts.insert(devices);
    for (int devices = 1; devices < all; ++devices)
      if (cluster.devices[devices].node != cluster.devices[devices - 1].node) counts.insert(devices);
  }
  const int layers = static_cast<int>(profile.layers.size());
  counts.erase(counts.begin(), counts.lower_bound(layers));  // more than layers
  return {counts.begin(), counts.end()};
}

Candidate on_fewer(const JointOptions& options, const DeviceOrder& order, int devices, bool split) {
  Candidate candidate;
  candidate.options = options.partition;
  candidate.options.split_backward = split;
  candidate.options.recompute = Recompute::never;
  candidate.options.chunks = 1;
  candidate.options.sharded.clear();
  candidate.name = fmt::format("1 chunk on {} of {}", devices, counted(order.devices.size(), "device")) +
                   order.name + split_suffix(options, split);
  std::vector<int> used(order.devices.begin(), order.devices.begin() + devices);
  candidate.idle.assign(order.devices.begin() + devices, order.devices.end());
  std::sort(used.begin(), used.end());
  std::sort(candidate.idle.begin(), candidate.idle.end());
  candidate.options.cluster = cluster_of(options.partition).only(used);
  return candidate;
}

Restrictions that_cut(const Profile& profile, const JointOptions& options,
                      const std::vector<Candidate>& tried) {
  const long devices = static_cast<long>(cluster_of(options.partition).devices.size());
  const long layers = static_cast<long>(profile.layers.size());
  JointOptions free = options;
  free.restrictions.clear();
  const auto cuts = [&](const Restriction& one) {
    switch (one.rule) {
      case Rule::most_chunks:
        return chunk_numbers(layers, devices, 0) != chunk_numbers(layers, devices, one.chunks);
      case Rule::whole_backwards:
        return splits(profile, free) != splits(profile, options);
      case Rule::no_shards:
        return devices > 1 && !shardable_layers(profile).empty();
      case Rule::together:
      case Rule::one_stage:
        return devices > 1;
      case Rule::spread:
        return std::ranges::any_of(tried, [](const Candidate& c) { return c.cuts && c.cuts->spread; });
      case Rule::fixed_ends:
        return false;
    }
    return false;
  };
  Restrictions cut;
  for (const Restriction& one : options.restrictions) {
    if (one.layers.empty() && find_rule(options.restrictions, one.rule) != &one) continue;
    if (cuts(one) || std::ranges::any_of(tried, [&](const Candidate& c) { return c.forbidden == one.rule; }))
      cut.push_back(one);
  }
  return cut;
}

std::string too_few_layers(const Profile& profile, const Candidate& candidate) {
  const long devices = static_cast<long>(cluster_of(candidate.options).devices.size());
  const long layers = static_cast<long>(profile.layers.size() - candidate.options.sharded.size());
  const int chunks = candidate.options.chunks;
  if (devices * chunks <= layers) return "";
  return fmt::format("{} with {} each need{} at least {} that are not sharded, the model has {}",
                     counted(devices, "device"), counted(chunks, "chunk"), devices == 1 ? "s" : "",
                     counted(devices * chunks, "layer"), layers);
}

Nanoseconds simple_bound(const Profile& profile, const Candidate& candidate, int micro_batches) {
  const chain::Model model(profile, candidate.options);
  std::vector<int> all(model.cluster.devices.size());
  for (std::size_t d = 0; d < all.size(); ++d) all[d] = static_cast<int>(d);
  Nanoseconds shards = 0, total = 0, longest = 0;
  for (const std::vector<int>& run : runs_of(candidate.options.sharded)) {
    const chain::StageCost cost = cost_of_stage(model, {.layers = run, .devices = all});
    shards += cost.forward + cost.backward;
  }
  for (int l = 0; l < model.graph.layers(); ++l) {
    const auto& sharded = candidate.options.sharded;
    if (std::binary_search(sharded.begin(), sharded.end(), l)) continue;
    Nanoseconds quickest = std::numeric_limits<Nanoseconds>::max();
    for (const std::vector<LayerCost>& layers : model.on_kind) {
      const LayerCost& cost = layers[l];
      const Nanoseconds backward =
          model.split ? cost.backward_input.median + cost.backward_weight.median : cost.backward.median;
      quickest = std::min(quickest, cost.forward.median + backward);
    }
    total += quickest;
    longest = std::max(longest, quickest);
  }
  total += static_cast<Nanoseconds>(candidate.options.chunks) * model.devices() * model.blocks();
  longest += model.blocks();
  const Nanoseconds busiest = std::max((total + model.devices() - 1) / model.devices(), longest) + shards;
  const __int128 all_batches = static_cast<__int128>(busiest) * micro_batches;
  return static_cast<Nanoseconds>(std::min<__int128>(all_batches, std::numeric_limits<Nanoseconds>::max()));
}

}  // namespace ostinato::joint

namespace ostinato {

std::vector<int> chunk_numbers(long layers, long devices, int most) {
  std::vector<int> numbers;
  for (int chunks = 2, step = 1; chunks <= (most == 0 ? kMostChunks : most) && devices * chunks <= layers;
       chunks += step) {
    numbers.push_back(chunks);
    if (chunks == 10 * step) step *= 2;
  }
  return numbers;
}

std::vector<int> find_layers(const Profile& profile, const std::string& comma_separated) {
  std::vector<int> found;
  std::vector<std::string_view> names;
  for (const LayerCost& layer : profile.layers) names.emplace_back(layer.name);
  for (std::size_t at = 0; at < comma_separated.size();) {
    const std::size_t comma = std::min(comma_separated.find(',', at), comma_separated.size());
    const std::string_view word = std::string_view(comma_separated).substr(at, comma - at);
    at = comma + 1;
    const auto named = std::find(names.begin(), names.end(), word);
    int layer = static_cast<int>(named - names.begin());
    if (named == names.end()) {
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), layer);
      const bool is_number = error == std::errc() && end == word.data() + word.size();
      if (!is_number || layer < 0 || layer >= static_cast<int>(names.size()))
        throw InputError("", 0,
                         "no layer " + in_quotes(word) + " in the profile" + did_you_mean(word, names));
    }
    found.push_back(layer);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

int most_on_one_device(const std::vector<Stage>& stages) {
  std::map<int, int> on_device;
  int most = 0;
  for (const Stage& stage : stages)
    for (const int d : stage.devices) most = std::max(most, ++on_device[d]);
  return most;
}

std::vector<int> shardable_layers(const Profile& profile) {
  std::vector<int> layers;
  for (const LayerCost& layer : profile.layers) {
    if (layer.shardable) layers.push_back(layer.index);
  }
  return layers;
}

}  // namespace ostinato
