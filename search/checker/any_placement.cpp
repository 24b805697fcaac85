// SPDX-License-Identifier: Apache-2.0
#include "search/checker/any_placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "search/files/counted.h"

namespace ostinato {
namespace {

using Wide = __int128;

/// A layer at its quickest, for one micro-batch.
struct Layer {
  Wide work = 0;    ///< forward and backward
  Wide pass = 0;    ///< that a device behind it waits for at least
  Wide before = 0;  ///< that it waits for itself
  bool whole = true;
  Wide again = 0;   ///< its forward, for a backward
  Wide kept = 0;    ///< bytes, from its forward to its backward
  Wide there = 0;   ///< its forward and what a gradient needs to pass back through it
  Wide behind = 0;  ///< the same of the layers that stand between the two
  Wide back = 0;    ///< of `there`, without the forward
  Wide input = 0;   ///< bytes that it reads

  Wide holds() const { return kept * (there + behind); }  ///< bytes times nanoseconds
};

class Proof {
 public:
  Proof(const Plan& plan, const Placement& placement, const Profile& profile, const Cluster& cluster)
      : plan_(plan), profile_(profile), cluster_(cluster), layers_(profile.layers.size()) {
    trains_ = std::any_of(placement.blocks.begin(), placement.blocks.end(),
                          [](const Block& block) { return block.kind != Kind::forward; });
    for (const DeviceKind& kind : cluster.kinds) {
      leave_to_lanes(on_kind_.emplace_back(layers_on(kind, profile)));
      divide(on_kind_.back(), (kind.profile ? *kind.profile : profile).zero.ranks);
    }
    for (const int l : plan.any_placement->sharded) layers_.at(l).whole = false;
    for (std::size_t l = 0; l < layers_.size(); ++l) weigh(l);
    for (std::size_t l = layers_.size(); l-- > 0;) hold(l);
  }

  /// D3: the longest way of one micro-batch.
  Nanoseconds path() const {
    Wide longest = 0;
    for (const Layer& layer : layers_) longest = std::max(longest, layer.there + layer.behind);
    return plan_.objective == Objective::makespan ? static_cast<Nanoseconds>(longest) : 0;
  }

  /// D2: no step is shorter, because what is kept for backwards needs room for as long as it is kept.
  Nanoseconds by_memory() const {
    const Wide free = free_memory();
    if (!trains_ || plan_.objective != Objective::makespan || free < 0) return 0;
    Wide unit = 1, most = 0, best = 0;  // the unit keeps products within 128 bits
    for (const Layer& layer : layers_) most = std::max(most, layer.holds());
    while (most / unit > Wide{1} << 50) unit *= 2;
    for (const Layer& price : layers_) {
      const Wide held = price.holds() / unit, again = price.again;
      if (held == 0) continue;
      Wide needed = 0;
      for (const Layer& l : layers_)
        needed += l.work * held + std::min(l.again * held, again * (l.holds() / unit));
      const Wide offered = count() * held + again * ((free + unit - 1) / unit);
      best = std::max(best, (plan_.micro_batches * needed + offered - 1) / offered);
    }
    return static_cast<Nanoseconds>(std::min<Wide>(best, std::numeric_limits<Nanoseconds>::max()));
  }

  /// D4: as D2, for a chain whose stages also keep what they read. Stages that end before a layer are known
  /// when stages that begin there are added.
  Nanoseconds by_stages() const {
    const Wide free = free_memory();
    const std::size_t n = layers_.size();
    if (!trains_ || plan_.objective != Objective::makespan || free < 0 || n > 4096) return 0;
    if (!chain() || !plan_.any_placement->sharded.empty()) return 0;
    Wide most = 0, unit = 1, idle = 0, best = 0;
    for (const Layer& layer : layers_) most = std::max(most, layer.holds());
    while (most / unit > Wide{1} << 50) unit *= 2;
    for (const Wide wait : waits()) idle += wait;
    for (std::size_t k = 0; k < n; k += 1 + n * n / 4096) {
      const Wide memory = layers_[k].holds() / unit, time = layers_[k].again;
      if (memory == 0) continue;
      const Wide needed = plan_.micro_batches * divided_at(time, memory, unit) + memory * idle;
      const Wide offered = memory * count() + time * ((free + unit - 1) / unit);
      best = std::max(best, (needed + offered - 1) / offered);
    }
    return static_cast<Nanoseconds>(std::min<Wide>(best, std::numeric_limits<Nanoseconds>::max()));
  }

  /// Whether a step of `length` is impossible; false, too, where the work does not suffice.
  bool refutes(Nanoseconds length, std::int64_t work) const {
    const std::vector<Wide> rooms = rooms_within(length);
    Wide room = 0, needed = 0;
    for (const Wide r : rooms) room += r;
    for (const Layer& layer : layers_) needed += layer.work;
    return room < needed || one_is_too_full(rooms) || cannot_fill(rooms, work);
  }

 private:
  /// The optimizer's state over the claim's ranks, where `ranks` divide that of the profile.
  void divide(std::vector<LayerCost>& layers, Wide ranks) const {
    const Wide wanted = plan_.any_placement->zero_ranks;
    if (ranks == 0 || wanted == 0) return;
    for (LayerCost& layer : layers) {
      const Wide part = (layer.optimizer_state * ranks + wanted - 1) / wanted;
      layer.optimizer_state = static_cast<Bytes>(std::min<Wide>(part, kUnlimited));
    }
  }

  /// The least of all divisions into stages, where a nanosecond costs `memory` and a unit held costs `time`.
  Wide divided_at(Wide time, Wide memory, Wide unit) const {
    std::vector<std::optional<Wide>> ending(layers_.size() + 1);
    ending.front() = 0;
    for (std::size_t begin = 0; begin < layers_.size(); ++begin) {
      const Layer& reads = layers_[begin];
      Layer stage;  // sums
      stage.work = Wide{profile_.rank.forward} + profile_.rank.backward;
      for (std::size_t end = begin; end < layers_.size();) {
        const Layer& layer = layers_[end++];
        stage.work += layer.work;
        stage.again += layer.again;
        stage.kept += layer.kept;
        stage.back += layer.back;
        const Wide way = reads.there + reads.behind;
        const Wide keeping = memory * stage.work + time * (way * (reads.input + stage.kept) / unit);
        const Wide byte_times = reads.input * (way + stage.again) + stage.kept * (stage.again + stage.back);
        const Wide running_again = memory * (stage.work + stage.again) + time * (byte_times / unit);
        const Wide all = *ending[begin] + std::min(keeping, running_again);
        ending[end] = ending[end] ? std::min(*ending[end], all) : all;
      }
    }
    return *ending.back();
  }

  bool chain() const {
    for (std::size_t l = 1; l < layers_.size(); ++l) {
      const auto& after = profile_.layers[l].after;
      if (after && (after->size() != 1 || after->front().layer != static_cast<int>(l) - 1)) return false;
    }
    return layers_.empty() || !profile_.layers.front().after || profile_.layers.front().after->empty();
  }

  Wide work_of(const LayerCost& cost) const {
    if (!trains_) return cost.forward.median;
    Nanoseconds backward = cost.backward.median;
    if (plan_.any_placement->split && cost.halves())
      backward = std::min(backward, cost.backward_input.median + cost.backward_weight.median);
    return Wide{cost.forward.median} + backward;
  }

  void weigh(std::size_t l) {
    Layer& layer = layers_[l];
    for (std::size_t k = 0; k < on_kind_.size(); ++k) {
      const Wide here = work_of(on_kind_[k][l]);
      layer.work = k == 0 ? here : std::min(layer.work, here);
    }
    const LayerCost& cost = on_kind_.front()[l];
    const bool backwards_end_it = trains_ && !plan_.any_placement->split && chain();
    layer.pass = Wide{cost.forward.median} + (backwards_end_it ? cost.backward.median : 0);
    if (!layer.whole) layer.pass /= count();
    for (const int from : read_by(l)) {
      const Layer& input = layers_[from];
      layer.before = std::max(layer.before, input.before + input.pass);
    }
  }

  /// Layers come from the last to the first: this one's readers are known.
  void hold(std::size_t l) {
    Layer& layer = layers_[l];
    for (std::size_t k = 0; k < on_kind_.size(); ++k) {
      const LayerCost& cost = on_kind_[k][l];
      Nanoseconds back = trains_ ? cost.backward.median : 0;
      if (trains_ && plan_.any_placement->split && cost.halves())
        back = std::min(back, cost.backward_input.median);
      const Wide forward = cost.forward.median, kept = cost.kept + cost.labels;
      const Wide again = *cost.recompute;
      layer.back = k == 0 ? Wide{back} : std::min<Wide>(layer.back, back);
      layer.again = k == 0 ? again : std::min(layer.again, again);
      layer.there = k == 0 ? forward + back : std::min(layer.there, forward + back);
      layer.kept = k == 0 ? kept : std::min(layer.kept, kept);
    }
    Wide given_back = 0;
    for (const std::vector<LayerCost>& layers : on_kind_) {
      for (const LayerCost& cost : layers)
        for (const LayerInput& part : cost.released)
          if (part.layer == static_cast<int>(l)) given_back = std::max<Wide>(given_back, part.bytes);
    }
    layer.kept = std::max<Wide>(0, layer.kept - given_back);
    layer.input = profile_.layers[l].input_bytes;
    if (!layer.whole) layer.there /= count();
    for (const int from : read_by(l)) {
      Wide& behind = layers_[from].behind;
      behind = std::max(behind, layer.behind + layer.there);
    }
  }

  /// Of all devices together, above what they hold throughout; -1: without limit.
  Wide free_memory() const {
    Wide free = 0;
    for (const ClusterDevice& device : cluster_.devices) {
      const Bytes memory = cluster_.kinds[device.kind].memory;
      if (memory == kUnlimited) return -1;
      free += memory - profile_.rank.held;
    }
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      Wide least = -1;
      for (const std::vector<LayerCost>& layers : on_kind_) {
        const Wide here =
            Wide{layers[l].parameters} + layers[l].gradients + layers[l].optimizer_state - layers[l].tied;
        least = least < 0 ? here : std::min(least, here);
      }
      free -= std::max<Wide>(least, 0);
    }
    return free;
  }

  std::vector<int> read_by(std::size_t l) const {
    std::vector<int> from;
    if (!profile_.layers[l].after) {
      if (l > 0) from.push_back(static_cast<int>(l) - 1);
    } else {
      for (const LayerInput& input : *profile_.layers[l].after) from.push_back(input.layer);
    }
    return from;
  }

  Wide count() const { return static_cast<Wide>(cluster_.devices.size()); }

  /// Of each device, the least that it is idle at the ends of a step; rising.
  std::vector<Wide> waits() const {
    const std::size_t devices = cluster_.devices.size();
    if (plan_.objective != Objective::makespan || cluster_.kinds.size() > 1)
      return std::vector<Wide>(devices, 0);
    std::vector<Wide> waits;
    for (const Layer& layer : layers_)
      for (Wide i = 0; i < (layer.whole ? 1 : count()); ++i) waits.push_back(layer.before);
    std::sort(waits.begin(), waits.end());
    waits.resize(devices, waits.back());
    return waits;
  }

  /// What each device has for one micro-batch, in time of the quickest kind; falling.
  std::vector<Wide> rooms_within(Nanoseconds length) const {
    const std::vector<Wide> idle = waits();
    std::vector<Wide> rooms;
    for (std::size_t d = 0; d < cluster_.devices.size(); ++d) {
      const Wide wait = idle[d];
      const Wide blocks = Wide{profile_.rank.forward} + (trains_ ? profile_.rank.backward : 0);
      const Wide time = std::max<Wide>(0, std::max<Wide>(0, length - wait) / plan_.micro_batches - blocks);
      rooms.push_back(in_quickest_time(time, cluster_.devices[d].kind));
    }
    std::sort(rooms.rbegin(), rooms.rend());
    return rooms;
  }

  /// The most work, counted at its quickest, that a kind of device does in this time.
  Wide in_quickest_time(Wide time, std::size_t kind) const {
    Wide most = -1;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Wide here = work_of(on_kind_[kind][l]);
      if (layers_[l].work > 0) most = std::max(most, time * layers_[l].work / here);
    }
    return most < 0 ? time : most;
  }

  /// Sizes of the layers that lie on one device each, falling, with how many there are.
  std::map<Wide, int, std::greater<>> sizes() const {
    std::map<Wide, int, std::greater<>> result;
    for (const Layer& layer : layers_)
      if (layer.whole && layer.work > 0) ++result[layer.work];
    return result;
  }

  bool one_is_too_full(const std::vector<Wide>& rooms) const {
    std::vector<Wide> falling;
    for (const auto& [size, number] : sizes()) falling.insert(falling.end(), number, size);
    const std::size_t devices = rooms.size();
    for (std::size_t n = 0; n < falling.size(); ++n) {
      Wide together = 0;  // n / devices + 1 of the n + 1 largest share a device
      for (std::size_t i = 0; i <= n / devices; ++i) together += falling[n - i];
      if (together > rooms.front()) return true;
    }
    return false;
  }

  /// Device after device, all ways to fill it so that nothing which is left goes in as well.
  bool cannot_fill(const std::vector<Wide>& rooms, std::int64_t work) const {
    std::vector<Wide> size;
    std::vector<int> all;
    for (const auto& [s, number] : sizes()) {
      size.push_back(s);
      all.push_back(number);
    }
    std::set<std::vector<int>> open = {all};
    Wide later = 0;
    for (const Wide room : rooms) later += room;
    for (const Wide room : rooms) {
      later -= room;
      std::set<std::vector<int>> next;
      for (const std::vector<int>& left : open) {
        if (!fill(left, size, room, later, next, work)) return false;
      }
      open = std::move(next);
    }
    return open.empty();
  }

  /// False: everything may be gone, or the work is spent.
  static bool fill(std::vector<int> left, const std::vector<Wide>& size, Wide room, Wide later,
                   std::set<std::vector<int>>& next, std::int64_t& work) {
    const std::vector<int> had = left;
    std::size_t k = 0;
    for (;;) {  // the most of each size from k on, then one less of the last that can be given back
      for (; k < size.size(); ++k) {
        const int takes = static_cast<int>(std::min<Wide>(left[k], room / size[k]));
        left[k] -= takes;
        room -= takes * size[k];
      }
      if (--work < 0) return false;
      Wide sum = 0;
      bool full = true;
      for (std::size_t i = 0; i < size.size(); ++i) {
        sum += left[i] * size[i];
        full = full && (left[i] == 0 || size[i] > room);
      }
      if (sum == 0) return false;
      if (full && sum <= later) next.insert(left);
      for (k = size.size(); k > 0 && left[k - 1] == had[k - 1]; --k) {
      }
      if (k == 0) return true;
      ++left[k - 1];
      room += size[k - 1];
      for (std::size_t i = k; i < size.size(); ++i) left[i] = had[i];
    }
  }

  const Plan& plan_;
  const Profile& profile_;
  const Cluster& cluster_;
  std::vector<Layer> layers_;
  std::vector<std::vector<LayerCost>> on_kind_;
  bool trains_ = false;
};

/// Why the files cannot belong together, or why the claim has no proof; else empty.
std::string mismatch(const Plan& plan, const PlacementFile& file, const Profile& profile,
                     const Cluster& cluster) {
  const std::string& model = file.model.sha256;
  if (!model.empty() && !profile.model_sha256.empty() && model != profile.model_sha256)
    return fmt::format("the profile is of another model ({}, {:.12}) than the placement ({}, {:.12})",
                       profile.model, profile.model_sha256, file.placement.name, model);
  if (!plan.any_placement)
    return "the plan claims nothing about other placements: only `ostinato plan` writes any_placement";
  const AnyPlacement& any = *plan.any_placement;
  const auto layers = static_cast<int>(profile.layers.size());
  if (std::any_of(any.sharded.begin(), any.sharded.end(), [&](int l) { return l >= layers; }))
    return fmt::format("any_placement.sharded names a layer that the profile, of {}, does not have", layers);
  int end = 0;
  for (const Stage& stage : file.placement.stages) end = std::max(end, stage.layers.back() + 1);
  if (end > layers) return fmt::format("the placement has {}, the profile {}", counted(end, "layer"), layers);
  if (const auto given = static_cast<int>(cluster.devices.size()); any.devices != given)
    return fmt::format("any_placement is for {}, but {} are given{}", counted(any.devices, "device"), given,
                       any.devices > 0 && given % any.devices == 0
                           ? "; for the plan of one of several replicas or slices, give no devices"
                           : "");
  if (std::string why = refuted_by_plan(plan); !why.empty()) return why;
  if (any.lower_bound > 0 && plan.objective == Objective::latency)
    return "any_placement.lower_bound is for the latency, for which nothing is proved";
  return "";
}

/// The statement that proves it; empty: none does.
std::string statement(const Proof& proof, Nanoseconds claim, std::int64_t most_work) {
  if (claim == 0) return "nothing";
  if (proof.path() >= claim) return "D3";
  if (proof.by_memory() >= claim) return "D2";
  if (proof.by_stages() >= claim) return "D4";
  return proof.refutes(claim - 1, most_work) ? "D1" : "";
}

/// Which placements the claim is of, where the profile allows more: ", if it shards no layers".
std::string within(const AnyPlacement& any, const Placement& placement, const Profile& profile) {
  const auto& layers = profile.layers;
  const auto shardable = [](const LayerCost& layer) { return layer.shardable; };
  const auto halves = [](const LayerCost& layer) { return layer.halves(); };
  const auto sharded = [](const Stage& stage) { return stage.sharded(); };
  const auto trains = [](const Block& block) { return block.kind != Kind::forward; };
  const bool divides = !any.sharded.empty() || std::any_of(layers.begin(), layers.end(), shardable) ||
                       std::any_of(placement.stages.begin(), placement.stages.end(), sharded);
  std::vector<std::string> rules;
  if (divides && any.sharded.size() < layers.size()) {
    std::vector<std::string> names;
    for (const int l : any.sharded) names.push_back(layers[l].name);
    rules.push_back("shards no layers" +
                    (names.empty() ? "" : fmt::format(" but {}", fmt::join(names, ", "))));
  }
  if (!any.split && std::any_of(layers.begin(), layers.end(), halves) &&
      std::any_of(placement.blocks.begin(), placement.blocks.end(), trains))
    rules.emplace_back("splits no backward");
  return rules.empty() ? "" : fmt::format(", if it {}", fmt::join(rules, " and "));
}

}  // namespace

std::string refuted_by_plan(const Plan& plan) {
  const Nanoseconds value = plan.objective == Objective::span ? plan.span : plan.makespan;
  if (!plan.any_placement || plan.any_placement->lower_bound <= value) return "";
  return fmt::format("any_placement.lower_bound is {} ns, but this plan takes only {} ns",
                     plan.any_placement->lower_bound, value);
}

Cluster devices_of_claim(const Plan& plan, const Placement& placement) {
  return alike(plan.any_placement ? plan.any_placement->devices : 1, placement.devices.front().memory);
}

CheckResult check_any_placement(const Plan& plan, const PlacementFile& file, const Profile& profile,
                                const Cluster& cluster, std::int64_t most_work) {
  if (std::string why = mismatch(plan, file, profile, cluster); !why.empty()) return {{std::move(why)}, {}};
  const Nanoseconds claim = plan.any_placement->lower_bound;
  const std::string by = statement(Proof(plan, file.placement, profile, cluster), claim, most_work);
  const bool alike = cluster.kinds.size() == 1;
  const std::string of = fmt::format("{} over {}{}", counted(profile.layers.size(), "layer"),
                                     counted(cluster.devices.size(), "device"), alike ? " of one kind" : "");
  if (by.empty())
    return {{fmt::format("any_placement.lower_bound is {} ns, but that is not proved for {}{}", claim, of,
                         alike ? ": is the plan for these devices?" : "")},
            {}};
  return {{},
          {fmt::format("no placement of {} has a {} below {} ns ({}){}", of, to_string(plan.objective), claim,
                       by, within(*plan.any_placement, file.placement, profile))}};
}

}  // namespace ostinato
