// SPDX-License-Identifier: Apache-2.0
#pragma once
// The chain that is cut, as numbers: the layers that are not sharded, in model order, with sums over runs of
// them for each kind of device; and the shards that stand between them. Private to search/partition.
//
// Positions count the layers of this chain: position i is model layer layer(i). A run is [first, end).

#include <algorithm>
#include <vector>

#include "search/partition/partition_options.h"
#include "search/partition/stage_cost.h"

namespace ostinato::chain {

inline constexpr int kMostTabulated = 2048;

/// Sums and maxima over runs on one kind of device, each in constant time after O(layers log layers). If
/// layers show memory of other layers: after O(layers^2); beyond kMostTabulated layers, in O(length).
class LayerSums {
 public:
  LayerSums(const std::vector<LayerCost>& layers, bool split_backward);

  int layers() const { return static_cast<int>(time_.size()) - 1; }
  Nanoseconds time(int first, int end) const { return time_[end] - time_[first]; }     ///< forward + backward
  Nanoseconds again(int first, int end) const { return again_[end] - again_[first]; }  ///< StageCost
  Bytes fixed(int first, int end) const { return fixed_[end] - fixed_[first]; }        ///< static memory
  /// As StageCost: without the stage's input and what was sent; first < end.
  Bytes kept(int first, int end) const {
    return kept_[end] - kept_[first] - of_run(layers_[end - 1].released, first);
  }
  Bytes input(int layer) const { return input_[layer]; }
  Bytes sent(int end) const { return sent_[end]; }  ///< StageCost, of a run that ends there
  Bytes step_together(int first, int end) const { return together_[end] - together_[first]; }
  Bytes step_alone(int first, int end) const { return largest(alone_, first, end); }  ///< first < end
  /// Peak of the forwards and backwards above what the run keeps; first < end.
  Bytes workspace(int first, int end) const {
    return std::max<Bytes>(0, peak(first, end) - kept_[first] - kept(first, end) - sent(end));
  }
  /// The same of a second half of a split backward, with what waits for it: it runs at any time after the
  /// first.
  Bytes second_half(int first, int end) const;
  /// Of the forwards alone, of the run that begins with the first layer.
  Bytes first_forward(int end, bool recompute) const {
    const Bytes above = recompute ? forward_again_[end - 1] : forward_[end - 1] - kept(0, end);
    return std::max<Bytes>(0, above - sent(end));
  }

 private:
  /// Memory of other layers that a layer shows.
  struct Shown {
    int index;  ///< in the model
    std::vector<LayerInput> passed, released;
  };
  /// Above what all layers before the run keep, as the next two.
  Bytes peak(int first, int end) const;
  Bytes peak_of(int layer, int first) const;
  Bytes of_run(const std::vector<LayerInput>& parts, int first) const;
  void tabulate();

  std::vector<Nanoseconds> time_, again_;  ///< prefix sums, as the next two
  std::vector<Bytes> fixed_, kept_;
  std::vector<Bytes> input_;                        ///< per layer
  std::vector<Bytes> sent_;                         ///< per end of a run
  using Largest = std::vector<std::vector<Bytes>>;  ///< [k][i]: of layers [i, i + 2^k)
  static Largest largest_of(std::vector<Bytes> values);
  static Bytes largest(const Largest& table, int first, int end);

  std::vector<Bytes> together_;  ///< prefix sums
  Largest alone_, weight_workspace_;
  std::vector<Bytes> waiting_;                  ///< prefix sums, as the next one
  std::vector<int> whole_;                      ///< layers whose backward is not split
  std::vector<Bytes> forward_, forward_again_;  ///< peaks of the forwards up to each layer: first_forward()
  std::vector<Shown> layers_;
  std::vector<Bytes> forward_peak_, backward_peak_;  ///< per layer, of what it shows nothing counted
  bool apart_ = true;  ///< no layer shows memory of another: its peaks do not depend on where the run begins
  Largest peak_;       ///< where they do not; where they do, [first][i]: of layers [first, first + i]
};

/// Neighbouring sharded layers, which are one stage on all devices.
struct Shard {
  int position = 0;  ///< it runs before the chain's layer of this position
  Layers layers;
  StageCost cost;

  Nanoseconds time() const { return cost.forward + cost.backward; }
};

/// Model layers that no cut may divide.
struct Undivided {
  LayerRun run;
  int device = -1;         ///< that must run them; -1: any
  bool one_stage = false;  ///< nor may one stage end and the next begin between them on one device
};

/// What restrictions ask of each stage. `spread`: layers of which it has one, at least; rising, empty: it
/// need not.
struct StageRules {
  std::vector<Undivided> undivided = {};
  std::vector<int> spread = {};

  bool empty() const { return undivided.empty() && spread.empty(); }
};

class ChainCosts {
 public:
  ChainCosts(const Model& model, const std::vector<int>& sharded, StageRules rules);

  int layers() const { return static_cast<int>(layer_.size()); }
  int layer(int position) const { return layer_[position]; }
  const LayerSums& on(int kind) const { return on_kind_[kind]; }
  /// No devices, of whatever kinds, take less for the run together: each layer where it is quickest. With
  /// `recompute` they run its forward twice.
  Nanoseconds least_time(int first, int end, bool recompute) const {
    const std::vector<Nanoseconds>& sums = recompute ? least_twice_ : least_;
    return sums[end] - sums[first];
  }
  /// Nor do they hold less static memory together.
  Bytes least_fixed(int first, int end) const { return least_fixed_[end] - least_fixed_[first]; }
  int kinds() const { return static_cast<int>(on_kind_.size()); }
  const std::vector<Shard>& shards() const { return shards_; }
  Nanoseconds shard_time() const { return shard_time_; }  ///< that every device spends on the shards
  Bytes shard_fixed() const { return shard_fixed_; }

  /// Whether a shard runs between two layers of the run, which then cannot be one stage.
  bool splits(int first, int end) const { return shards_before_[end - 1] != shards_before_[first]; }
  /// Whether the run may be a stage of this device, and the next one begin at its end.
  bool allows(int device, int first, int end) const;
  /// Whether a shard runs before this position.
  bool shard_at(int position) const {
    const int before = position == 0 ? 0 : shards_before_[position - 1];
    return before < (position == layers() ? static_cast<int>(shards_.size()) : shards_before_[position]);
  }
  /// Whether one stage may end here and the next begin on the same device.
  bool may_end(int end) const;
  /// Whether layers must lie on this device, and so not on another one of its kind.
  bool named(int device) const;
  bool any_named() const;
  Bytes bytes_at(int position) const { return bytes_at_[position]; }  ///< over a cut before this position
  Bytes sent_by(int end) const { return sent_by_[end]; }              ///< what a run that ends there hands on
  Bytes read_by(int first) const { return layer_[first] == 0 ? 0 : bytes_at_[first]; }

 private:
  void add_least();

  std::vector<int> layer_;
  StageRules rules_;
  std::vector<LayerSums> on_kind_;
  std::vector<Nanoseconds> least_{0}, least_twice_{0};  ///< prefix sums of the least over the kinds
  std::vector<Bytes> least_fixed_{0};
  std::vector<Shard> shards_;
  std::vector<int> shards_before_;  ///< per position
  std::vector<Bytes> bytes_at_;
  std::vector<Bytes> sent_by_;  ///< per end of a run
  Nanoseconds shard_time_ = 0;
  Bytes shard_fixed_ = 0;
};

}  // namespace ostinato::chain
