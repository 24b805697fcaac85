// SPDX-License-Identifier: Apache-2.0
#include "search/profile/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "search/files/counted.h"
#include "search/files/error.h"

namespace ostinato {
namespace {

/// Links are compared by the time that they take for this.
constexpr Bytes kProbe = Bytes{1} << 20;

std::int64_t lower_median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Whether a link moves 1 MiB in a time more than a quarter away from what the default takes.
bool differs(const Link& link, const Link& usual) {
  const __int128 expected = usual.time(kProbe);
  const __int128 gap = link.time(kProbe) - expected;
  return 4 * (gap < 0 ? -gap : gap) > expected;
}

/// Times the ratio of two positive numbers, rounded up.
void stretch(Nanoseconds& time, std::int64_t by, std::int64_t of) {
  const __int128 scaled = (static_cast<__int128>(time) * by + of - 1) / of;
  time = static_cast<Nanoseconds>(std::min<__int128>(scaled, std::numeric_limits<Nanoseconds>::max()));
}

/// What a layer's passes take.
void stretch(LayerCost& layer, std::int64_t by, std::int64_t of) {
  for (Spread* spread : {&layer.forward, &layer.backward, &layer.backward_input, &layer.backward_weight})
    for (Nanoseconds* time : {&spread->median, &spread->low, &spread->high}) stretch(*time, by, of);
  if (layer.recompute) stretch(*layer.recompute, by, of);
}

/// A step is a sum of many blocks: it takes as long as they do on average, which on a machine that is now and
/// then slower is longer than they do mostly.
void take_averages(std::vector<LayerCost>& layers, std::int64_t average) {
  constexpr std::int64_t kMedians = 1'000'000;
  if (average == 0) return;
  for (LayerCost& layer : layers) stretch(layer, average, kMedians);
}

void check_same_model(const DeviceKind& kind, const Profile& profile) {
  const Profile& own = *kind.profile;
  if (own.layers.size() == profile.layers.size() && own.model_sha256 == profile.model_sha256) {
    if (own.micro_batch_size == profile.micro_batch_size) return;
    throw InputError(kind.profile_path, 0,
                     fmt::format("the profile of kind {} was measured with micro-batches of {}, the main "
                                 "profile with {}: their times are not comparable",
                                 kind.name, own.micro_batch_size, profile.micro_batch_size));
  }
  throw InputError(kind.profile_path, 0,
                   fmt::format("the profile of kind {} is of another model: {} of {}, the main profile "
                               "has {} of {}",
                               kind.name, counted(own.layers.size(), "layer"), own.model,
                               counted(profile.layers.size(), "layer"), profile.model));
}

}  // namespace

/// A device whose ranks lie on several nodes is on the fullest of them, where all ranks of that node count.
std::vector<Host> Cluster::hosts(std::int64_t computing) const {
  std::vector<int> ranks(nodes.size(), 0);
  for (const ClusterDevice& device : devices)
    for (const int n : device.nodes()) ++ranks[n];
  const auto less_full = [&](int a, int b) {
    const std::int64_t of_a = nodes[a].cores, of_b = nodes[b].cores;
    return of_b > 0 && (of_a == 0 || ranks[a] * of_b < ranks[b] * of_a);
  };
  std::vector<std::vector<int>> on(nodes.size());
  for (std::size_t d = 0; d < devices.size(); ++d)
    on[std::ranges::max(devices[d].nodes(), less_full)].push_back(static_cast<int>(d));
  std::vector<Host> shared;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (on[n].empty()) continue;
    const std::int64_t cores = computing > 0 ? nodes[n].cores * kUsualSpeed / computing : nodes[n].cores;
    Host host{.devices = on[n],
              .cores = static_cast<int>(std::min<std::int64_t>(cores, std::numeric_limits<int>::max()))};
    const int count = static_cast<int>(on[n].size());
    host.ranks = (ranks[n] + count - 1) / count;
    const bool fewer = host.cores > 0 && host.cores < ranks[n];
    if (fewer) shared.push_back(std::move(host));
  }
  return shared;
}

Cluster Cluster::only(const std::vector<int>& positions) const {
  Cluster part = *this;
  part.devices.clear();
  for (const int d : positions) part.devices.push_back(devices[d]);
  return part;
}

const Link& slower(const Link& a, const Link& b) { return a.time(kProbe) < b.time(kProbe) ? b : a; }

Cluster alike(int devices, Bytes memory) {
  Cluster cluster;
  cluster.kinds.emplace_back().memory = memory;
  cluster.nodes.emplace_back();
  cluster.devices.resize(devices);
  return cluster;
}

LinkTable::LinkTable(const Profile& profile, const Cluster& cluster) {
  const bool described = cluster.within || cluster.between ||
                         std::any_of(cluster.nodes.begin(), cluster.nodes.end(),
                                     [](const Node& n) { return n.link.has_value(); });
  if (described) {
    describe(cluster);
  } else {
    measure(profile, static_cast<int>(cluster.devices.size()));
  }
}

/// The default link is the median of the measured ones; a pair that differs much has its own.
void LinkTable::measure(const Profile& profile, int devices) {
  if (profile.transfers.empty()) return;
  std::vector<std::int64_t> latencies, bandwidths;
  for (const TransferCost& transfer : profile.transfers) {
    latencies.push_back(transfer.link.latency);
    bandwidths.push_back(transfer.link.bytes_per_second);
  }
  usual_ = {lower_median(std::move(latencies)), lower_median(std::move(bandwidths))};
  for (const TransferCost& transfer : profile.transfers) {
    if (transfer.from < devices && transfer.to < devices && differs(transfer.link, usual_))
      others_[{transfer.from, transfer.to}] = transfer.link;
  }
}

void LinkTable::describe(const Cluster& cluster) {
  const auto& devices = cluster.devices;
  const auto link_in = [&](int node) {
    return cluster.nodes[node].link.value_or(cluster.within.value_or(Link{}));
  };
  std::vector<std::vector<int>> nodes;
  for (const ClusterDevice& device : devices) nodes.push_back(device.nodes());
  const bool one_node = std::ranges::all_of(nodes, [&](const std::vector<int>& ranks) {
    return std::ranges::count(ranks, devices.front().node) == std::ssize(ranks);
  });
  if (one_node) {
    usual_ = link_in(devices.front().node);
    return;
  }
  usual_ = cluster.between.value_or(Link{});
  for (std::size_t a = 0; a < devices.size(); ++a) {
    for (std::size_t b = 0; b < devices.size(); ++b) {
      if (a == b) continue;
      std::optional<Link> slowest;  // of pipelines that have it within a node
      bool apart = false;
      for (std::size_t i = 0; i < nodes[a].size(); ++i) {
        if (nodes[a][i] != nodes[b][i]) {
          apart = true;
        } else {
          slowest = slowest ? slower(*slowest, link_in(nodes[a][i])) : link_in(nodes[a][i]);
        }
      }
      if (!slowest || (apart && &slower(*slowest, usual_) == &usual_)) continue;
      others_[{static_cast<int>(a), static_cast<int>(b)}] = *slowest;
    }
  }
}

const Link& LinkTable::between(int from, int to) const {
  const auto found = others_.find({from, to});
  return found == others_.end() ? usual_ : found->second;
}

bool LinkTable::free() const {
  const auto costs = [](const Link& link) { return link.latency > 0 || link.bytes_per_second > 0; };
  return !costs(usual_) &&
         std::none_of(others_.begin(), others_.end(), [&](const auto& entry) { return costs(entry.second); });
}

void LinkTable::write(Placement& placement) const {
  placement.link = usual_;
  placement.links = others_;
}

namespace {

/// The halves do all that the whole does. Where they were measured to take less, noise fell on the whole:
/// both then take as long as it, in the halves' proportion, so that no split gains what is no gain.
void add_up_to_whole(LayerCost& layer) {
  Nanoseconds &input = layer.backward_input.median, &weight = layer.backward_weight.median;
  const Nanoseconds whole = layer.backward.median, halves = input + weight;
  if (!layer.halves() || halves >= whole) return;
  const __int128 part = halves > 0 ? static_cast<__int128>(whole) * input / halves : whole;
  input = static_cast<Nanoseconds>(part);
  weight = whole - input;
}

/// Whoever runs the first layer reads the inputs of a batch; whoever runs the last reads its labels.
void add_reading(std::vector<LayerCost>& layers, Nanoseconds time) {
  if (layers.empty()) return;
  layers.front().forward.median += time;
  if (layers.size() > 1) layers.back().forward.median += time;
}

}  // namespace

void leave_to_lanes(std::vector<LayerCost>& layers) {
  for (LayerCost& layer : layers) {
    if (layer.lane.empty()) continue;
    for (Spread* time : {&layer.forward, &layer.backward, &layer.backward_input, &layer.backward_weight})
      time->median = time->low = time->high = 0;
    layer.recompute = 0;
  }
}

std::vector<LayerCost> layers_on(const DeviceKind& kind, const Profile& profile) {
  if (kind.profile) check_same_model(kind, profile);
  std::vector<LayerCost> layers = kind.profile ? kind.profile->layers : profile.layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {  // what travels is the model's, whoever measured it
    layers[l].input_bytes = profile.layers[l].input_bytes;
    layers[l].output_bytes = profile.layers[l].output_bytes;
    layers[l].lane = profile.layers[l].lane;
  }
  take_averages(layers, kind.profile ? kind.profile->rank.average : profile.rank.average);
  for (LayerCost& layer : layers)
    layer.recompute = layer.recompute.value_or(layer.forward.median);  // which reads no batch
  if (kind.speed != kUsualSpeed) {
    for (LayerCost& layer : layers) {
      stretch(layer, kUsualSpeed, kind.speed);
      stretch(layer.step_time, kUsualSpeed, kind.speed);
    }
  }
  for (LayerCost& layer : layers) add_up_to_whole(layer);
  add_reading(layers, profile.rank.read);
  return layers;
}

}  // namespace ostinato
