// SPDX-License-Identifier: Apache-2.0
#include "search/partition/any_placement.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "search/partition/joint_candidates.h"
#include "search/partition/packing.h"
#include "search/partition/stage_cost.h"

namespace ostinato {
namespace {

/// Steps of the packing for one length, and for all of them.
constexpr long kWorkOfOne = 200'000, kWork = 3'000'000;
/// Of memory times time: rounding to less keeps products within 128 bits.
constexpr __int128 kMostHeld = __int128{1} << 50;
/// Layers of D4; it tries this many prices times the square of the number of layers.
constexpr std::size_t kMostStaged = 4096;

PartitionOptions with_halves(const Profile& profile, const JointOptions& options) {
  PartitionOptions partition = options.partition;
  partition.split_backward = joint::splits(profile, options).back();
  return partition;
}

/// Of a micro-batch on a device of this kind, its backward whole or in halves.
Nanoseconds work_on(const chain::Model& model, std::size_t kind, std::size_t layer) {
  const LayerCost& cost = model.on_kind[kind][layer];
  const Nanoseconds whole = cost.backward.median;
  const Nanoseconds halves = cost.backward_input.median + cost.backward_weight.median;
  return cost.forward.median + (model.split ? std::min(whole, halves) : whole);
}

/// w(l) of D1.
std::vector<Nanoseconds> least_works(const chain::Model& model) {
  std::vector<Nanoseconds> works(model.on_kind.front().size(), std::numeric_limits<Nanoseconds>::max());
  for (std::size_t kind = 0; kind < model.on_kind.size(); ++kind)
    for (std::size_t l = 0; l < works.size(); ++l) works[l] = std::min(works[l], work_on(model, kind, l));
  return works;
}

class AnyPlacementBound {
 public:
  AnyPlacementBound(const Profile& profile, const JointOptions& options)
      : options_(options),
        model_(profile, with_halves(profile, options)),
        devices_(model_.devices()),
        divided_(profile.layers.size(), false) {
    for (const int l : options.shardable) divided_[l] = true;
    any_.devices = devices_;
    any_.sharded = options.shardable;
    any_.split = model_.split;
    any_.zero_ranks = profile.zero.ranks;
    add_works();
    add_speeds();
    add_idle();
    add_held();
  }

  AnyPlacement below(Nanoseconds reached) {
    if (options_.search.objective == Objective::latency) return any_;
    partition::Packing packing(whole_);
    Nanoseconds refuted = -1, open = std::min(reached, std::numeric_limits<Nanoseconds>::max() / 2);
    for (long left = kWork; refuted + 1 < open && left > 0;) {
      const Nanoseconds length = refuted + (open - refuted) / 2;
      long work = std::min(kWorkOfOne, left);
      left -= work;
      (impossible(packing, length, work) ? refuted : open) = length;
      left += work;
    }
    any_.lower_bound =
        std::max({refuted + 1, std::min(by_memory(), reached), std::min(by_stages(), reached), path_});
    return any_;
  }

 private:
  template <class Time>
  Nanoseconds least_over_kinds(Time time) const {
    Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
    for (std::size_t kind = 0; kind < model_.on_kind.size(); ++kind) least = std::min(least, time(kind));
    return least;
  }

  void add_works() {
    works_ = least_works(model_);
    for (std::size_t l = 0; l < divided_.size(); ++l) {
      sum_ += works_[l];
      if (!divided_[l]) whole_.push_back(works_[l]);
    }
  }

  /// What each layer takes on a kind is no less than `times` / `per` of the least.
  void add_speeds() {
    for (std::size_t kind = 0; kind < model_.on_kind.size(); ++kind) {
      Slowness least{0, 0};
      for (std::size_t l = 0; l < works_.size(); ++l) {
        if (works_[l] == 0) continue;
        const Slowness here{work_on(model_, kind, l), works_[l]};
        const bool less =
            static_cast<__int128>(here.times) * least.per < static_cast<__int128>(least.times) * here.per;
        if (least.per == 0 || less) least = here;
      }
      slowness_.push_back(least.per == 0 ? Slowness{1, 1} : least);
    }
  }

  /// A device is idle until the forwards before the first of its layers have run, and, where backwards are
  /// whole, while the backwards of those layers run at the end. D devices begin with D different layers; with
  /// one layer several times where it may be divided.
  void add_idle() {
    idle_.assign(devices_, 0);
    if (options_.search.objective == Objective::span || model_.cluster.kinds.size() > 1) return;
    std::vector<Nanoseconds> before;  // by layer
    std::vector<Nanoseconds> all;
    for (std::size_t l = 0; l < works_.size(); ++l) {
      Nanoseconds longest = 0;
      for (const LayerInput& input : model_.graph.inputs(static_cast<int>(l)))
        longest = std::max(longest, before[input.layer] + passing(input.layer));
      before.push_back(longest);
      all.insert(all.end(), divided_[l] ? idle_.size() : 1, longest);
    }
    std::sort(all.begin(), all.end());
    for (std::size_t d = 0; d < idle_.size(); ++d) idle_[d] = all[std::min(d, all.size() - 1)];
  }

  /// Time that nothing behind this layer, or before it in a backward, can go by without.
  Nanoseconds passing(std::size_t layer) const {
    const LayerCost& cost = model_.on_kind.front()[layer];
    const bool both = !model_.inference && !model_.split && model_.graph.is_chain();
    const Nanoseconds time = cost.forward.median + (both ? cost.backward.median : 0);
    return on_each(layer, time);
  }

  /// Sharded layers of one stage are rounded up together: each by itself counts rounded down.
  Nanoseconds on_each(std::size_t layer, Nanoseconds time) const {
    return divided_[layer] ? time / devices_ : time;
  }

  /// What is kept of layer l is held from its forward to its backward: while the layers that read from it,
  /// and those that read from them, run both.
  void add_held() {
    if (options_.search.objective != Objective::makespan) return;
    const std::vector<Bytes>& kept = kept_ = least_kept();
    std::vector<Nanoseconds> behind(works_.size(), 0);
    held_.resize(works_.size());
    paths_.resize(works_.size());
    for (std::size_t l = works_.size(); l-- > 0;) {
      for (const int reader : model_.graph.readers(static_cast<int>(l)))
        behind[l] = std::max(behind[l], behind[reader] + there_and_back(reader));
      const Nanoseconds path = behind[l] + there_and_back(l);
      path_ = std::max(path_, path);
      paths_[l] = path;
      held_[l] = static_cast<__int128>(kept[l]) * path;
    }
    const __int128 most = *std::max_element(held_.begin(), held_.end());
    while (most / unit_ > kMostHeld) unit_ *= 2;
    for (__int128& held : held_) held /= unit_;
  }

  Nanoseconds there_and_back(std::size_t layer) const {
    const Nanoseconds time = least_over_kinds(
        [&](std::size_t kind) { return model_.on_kind[kind][layer].forward.median + back(kind, layer); });
    return on_each(layer, time);
  }

  /// Until a gradient has passed through it.
  Nanoseconds back(std::size_t kind, std::size_t layer) const {
    const LayerCost& cost = model_.on_kind[kind][layer];
    return model_.split ? std::min(cost.backward.median, cost.backward_input.median) : cost.backward.median;
  }

  /// Without what the last layer of a stage gives back of it.
  std::vector<Bytes> least_kept() const {
    std::vector<Bytes> released(works_.size(), 0), kept;
    for (const std::vector<LayerCost>& layers : model_.on_kind) {
      for (const LayerCost& cost : layers)
        for (const LayerInput& part : cost.released)
          released[part.layer] = std::max(released[part.layer], part.bytes);
    }
    for (std::size_t l = 0; l < works_.size(); ++l) {
      const Bytes least = least_over_kinds([&](std::size_t kind) { return model_.on_kind[kind][l].kept; });
      kept.push_back(std::max<Bytes>(0, least - released[l]));
    }
    return kept;
  }

  /// Of all devices together, for what is kept; -1: without limit.
  __int128 room() const {
    __int128 room = 0;
    for (int d = 0; d < devices_; ++d) {
      if (model_.memory_of(d) == kUnlimited) return -1;
      room += model_.memory_of(d) - model_.rank.held;
    }
    for (std::size_t l = 0; l < works_.size(); ++l)
      room -= least_over_kinds([&](std::size_t kind) { return model_.on_kind[kind][l].least_held(); });
    return room;
  }

  /// D2: each layer either holds its room or runs its forward again, whichever costs less at a price of
  /// memory.
  Nanoseconds by_memory() const {
    const __int128 free = room();
    if (model_.inference || held_.empty() || free < 0) return 0;
    const __int128 steps = options_.search.micro_batches, capacity = (free + unit_ - 1) / unit_;
    const std::vector<Nanoseconds> again = least_again();
    __int128 best = 0;
    for (std::size_t price = 0; price < held_.size(); ++price) {
      const __int128 time = again[price], memory = held_[price];
      if (memory == 0) continue;
      __int128 needed = static_cast<__int128>(sum_) * memory;
      for (std::size_t l = 0; l < held_.size(); ++l) needed += std::min(again[l] * memory, time * held_[l]);
      const __int128 offered = devices_ * memory + time * capacity;
      best = std::max(best, (steps * needed + offered - 1) / offered);
    }
    return static_cast<Nanoseconds>(std::min<__int128>(best, std::numeric_limits<Nanoseconds>::max()));
  }

  /// Of each layer, where its forward runs again the quickest.
  std::vector<Nanoseconds> least_again() const {
    std::vector<Nanoseconds> again;
    for (std::size_t l = 0; l < held_.size(); ++l)
      again.push_back(least_over_kinds([&](std::size_t kind) { return *model_.on_kind[kind][l].recompute; }));
    return again;
  }

  /// D4: of a chain, the cheapest stages at a price of memory: each holds what it reads, and keeps the rest
  /// or runs its forward again. O(layers²) a price; the more layers, the fewer prices.
  Nanoseconds by_stages() const {
    const __int128 free = room();
    const std::size_t layers = held_.size();
    if (model_.inference || held_.empty() || layers > kMostStaged || free < 0) return 0;
    if (!model_.graph.is_chain() || !options_.shardable.empty()) return 0;
    const __int128 steps = options_.search.micro_batches, capacity = (free + unit_ - 1) / unit_;
    const std::vector<Nanoseconds> again = least_again();
    const __int128 idle = std::accumulate(idle_.begin(), idle_.end(), __int128{0});
    __int128 best = 0;
    for (std::size_t price = 0; price < layers; price += 1 + layers * layers / kMostStaged) {
      const __int128 time = again[price], memory = held_[price];
      if (memory == 0) continue;
      const __int128 needed = steps * cheapest_stages(again, time, memory) + idle * memory;
      const __int128 offered = devices_ * memory + time * capacity;
      best = std::max(best, (needed + offered - 1) / offered);
    }
    return static_cast<Nanoseconds>(std::min<__int128>(best, std::numeric_limits<Nanoseconds>::max()));
  }

  /// Of one micro-batch: `memory` for a nanosecond of a device, `time` for a unit that is held.
  __int128 cheapest_stages(const std::vector<Nanoseconds>& again, __int128 time, __int128 memory) const {
    const std::size_t layers = held_.size();
    const __int128 blocks = model_.rank.forward + model_.rank.backward;
    std::vector<__int128> best(layers + 1, 0);  // of the layers from one on
    for (std::size_t first = layers; first-- > 0;) {
      const __int128 path = paths_[first], input = model_.profile.layers[first].input_bytes;
      __int128 work = blocks, kept = 0, twice = 0, backwards = 0;
      for (std::size_t last = first; last < layers; ++last) {
        work += works_[last];
        kept += kept_[last];
        twice += again[last];
        backwards += least_over_kinds([&](std::size_t kind) { return back(kind, last); });
        const __int128 keeps = work * memory + time * ((input + kept) * path / unit_);
        const __int128 held_twice = (input * (path + twice) + kept * (twice + backwards)) / unit_;
        const __int128 stage = std::min(keeps, (work + twice) * memory + time * held_twice);
        if (last == first || stage + best[last + 1] < best[first]) best[first] = stage + best[last + 1];
      }
    }
    return best.front();
  }

  /// No step of this length.
  bool impossible(partition::Packing& packing, Nanoseconds length, long& work) const {
    std::vector<std::int64_t> rooms;
    __int128 together = 0;
    for (int d = 0; d < devices_; ++d) {
      const Nanoseconds time = std::max<Nanoseconds>(0, length - idle_[d]);
      const Nanoseconds blocks = model_.rank.forward + model_.rank.backward;  // one of each at least
      const Nanoseconds own = std::max<Nanoseconds>(0, time / options_.search.micro_batches - blocks);
      const Slowness& slow = slowness_[model_.kind_of(d)];
      const auto room = static_cast<__int128>(own) * slow.per / slow.times;
      rooms.push_back(static_cast<std::int64_t>(std::min<__int128>(room, sum_)));
      together += rooms.back();
    }
    if (together < sum_) return true;
    std::sort(rooms.rbegin(), rooms.rend());
    return packing.fits(std::move(rooms), work) == partition::Fits::no;
  }

  /// A rational number >= 1.
  struct Slowness {
    Nanoseconds times, per;
  };

  const JointOptions& options_;
  const chain::Model model_;
  const int devices_;
  std::vector<bool> divided_;
  std::vector<Nanoseconds> works_, whole_;  ///< of all layers, and of those that lie on one device
  Nanoseconds sum_ = 0;
  std::vector<Slowness> slowness_;  ///< by kind
  std::vector<Nanoseconds> idle_;   ///< rising
  std::vector<__int128> held_;      ///< by layer: bytes times nanoseconds of a micro-batch, in unit_
  __int128 unit_ = 1;
  std::vector<Bytes> kept_;         ///< by layer, as the next
  std::vector<Nanoseconds> paths_;  ///< there and back, from the layer to the end
  Nanoseconds path_ = 0;            ///< of one micro-batch
  AnyPlacement any_;
};

/// No placement is slower for them.
JointOptions with_lanes(JointOptions options) {
  options.partition.lanes = LanesOf::all;
  return options;
}

}  // namespace

AnyPlacement bound_any_placement(const Profile& profile, const JointOptions& options, Nanoseconds reached) {
  return AnyPlacementBound(profile, with_lanes(options)).below(reached);
}

std::vector<Nanoseconds> least_times(const Profile& profile, const JointOptions& options) {
  return least_works(chain::Model(profile, with_halves(profile, with_lanes(options))));
}

}  // namespace ostinato
