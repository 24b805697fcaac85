// SPDX-License-Identifier: Apache-2.0
#include "search/partition/joint_moves.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ostinato::joint {
namespace {

/// A stage that is divided is cut behind its first layer, in the middle, and before its last.
std::vector<std::size_t> places_to_divide(std::size_t layers) {
  std::vector<std::size_t> places = {1, layers / 2, layers - 1};
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  std::erase_if(places, [&](std::size_t place) { return place == 0 || place >= layers; });
  return places;
}

class Neighbours {
 public:
  Neighbours(const Stages& stages, int devices) : stages_(stages), devices_(devices), on_(devices, 0) {
    for (const Stage& stage : stages_)
      for (const int d : stage.devices) ++on_[d];
  }

  std::vector<Stages> all(bool may_recompute, bool unlike) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (is_shard(i)) continue;
      give_layers(i);
      exchange_devices(i);
      move(i);
      join(i);
      divide(i);
      if (!may_recompute) continue;
      change(i).recompute = !stages_[i].recompute;
      recompute_in_part(i);
    }
    if (unlike) exchange_all();
    return std::move(found_);
  }

 private:
  bool is_shard(std::size_t i) const { return stages_[i].sharded(); }
  int device(std::size_t i) const { return stages_[i].devices.front(); }
  bool last_of_its_device(std::size_t i) const { return on_[device(i)] == 1; }

  Stages& add() { return found_.emplace_back(stages_); }
  Stage& change(std::size_t i) { return add()[i]; }

  /// One layer more for every other stage up to the next shards, one less for this one.
  void give_layers(std::size_t i) {
    if (stages_[i].layers.size() < 2) return;
    for (std::size_t j = i + 1; j < stages_.size() && !is_shard(j); ++j) {
      Stages& next = add();
      for (std::size_t s = i; s < j; ++s) {
        next[s + 1].layers.add(next[s].layers.split(next[s].layers.size() - 1));
      }
    }
    for (std::size_t j = i; j > 0 && !is_shard(j - 1); --j) {
      Stages& next = add();
      for (std::size_t s = i; s > j - 1; --s) {
        Layers rest = next[s].layers.split(1);
        next[s - 1].layers.add(std::exchange(next[s].layers, std::move(rest)));
      }
    }
  }

  void exchange_devices(std::size_t i) {
    for (std::size_t j = i + 1; j < stages_.size(); ++j) {
      if (is_shard(j) || device(i) == device(j)) continue;
      Stages& next = add();
      std::swap(next[i].devices, next[j].devices);
    }
  }

  /// Two devices exchange all of their stages: one by one, they would not fit between.
  void exchange_all() {
    for (int a = 0; a < devices_; ++a) {
      for (int b = a + 1; b < devices_; ++b) {
        for (Stage& stage : add()) {
          if (stage.sharded()) continue;
          int& d = stage.devices.front();
          d = d == a ? b : d == b ? a : d;
        }
      }
    }
  }

  void move(std::size_t i) {
    if (last_of_its_device(i)) return;
    for (int d = 0; d < devices_; ++d)
      if (d != device(i)) change(i).devices = {d};
  }

  void join(std::size_t i) {
    const std::size_t j = i + 1;
    if (j == stages_.size() || is_shard(j)) return;
    for (const std::size_t kept : {i, j}) {
      const std::size_t lost = kept == i ? j : i;
      if (last_of_its_device(lost) && device(i) != device(j)) continue;
      Stages& next = add();
      next[i].devices = stages_[kept].devices;
      next[i].recompute = stages_[kept].recompute;
      next[i].layers.add(next[j].layers);
      next.erase(next.begin() + static_cast<std::ptrdiff_t>(j));
      if (device(i) == device(j) && stages_[i].recompute == stages_[j].recompute) return;
    }
  }

  void divide(std::size_t i) {
    for (const std::size_t place : places_to_divide(stages_[i].layers.size())) {
      for (int d = 0; d < devices_; ++d) {
        if (d == device(i)) continue;
        for (const bool second : {true, false}) divide(i, place, d, second);
      }
    }
  }

  /// The first or the second part goes to device `d`.
  void divide(std::size_t i, std::size_t place, int d, bool second) {
    Stages& next = add();
    Stage rest = next[i];
    rest.layers = next[i].layers.split(place);
    (second ? rest : next[i]).devices = {d};
    next.insert(next.begin() + static_cast<std::ptrdiff_t>(i) + 1, std::move(rest));
  }

  /// The first or the second part recomputes, on the device of both.
  void recompute_in_part(std::size_t i) {
    for (const std::size_t place : places_to_divide(stages_[i].layers.size())) {
      for (const bool second : {false, true}) {
        divide(i, place, device(i), second);
        Stages& next = found_.back();
        next[i].recompute = !second;
        next[i + 1].recompute = second;
      }
    }
  }

  const Stages& stages_;
  const int devices_;
  std::vector<int> on_;  ///< stages of each device
  std::vector<Stages> found_;
};

}  // namespace

std::vector<Stages> neighbours(const Stages& stages, int devices, bool may_recompute, bool unlike) {
  return Neighbours(stages, devices).all(may_recompute, unlike);
}

}  // namespace ostinato::joint
