// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/whole_steps.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace ostinato {
namespace {

class WholeSteps {
 public:
  WholeSteps(const Instance& in, int n) : in_(in), n_(n), follows_(in.blocks()) {
    for (int b = 0; b < in.blocks(); ++b) {
      first_.push_back(grid_.size());
      grid_.resize(grid_.size() + in.devices_of(b).size());
    }
    waits_.resize(grid_.size());
    least_.resize(grid_.size());
    for (int x = 0; x < in.blocks(); ++x) {
      find_followers(x);
      for (std::size_t k = 0; k < in.devices_of(x).size(); ++k)
        grid_[first_[x] + k] = grid_before(in.devices_of(x)[k]);
    }
    for (int d = 0; d < in.devices(); ++d) add_waits(d);
  }

  /// False: no schedule has a span of at most that.
  bool allow(Nanoseconds span) {
    for (const int x : in_.topological()) {
      for (std::size_t k = 0; k < in_.devices_of(x).size(); ++k) {
        const Nanoseconds idle = span - n_ * in_.load(in_.devices_of(x)[k]);
        const std::size_t at = first_[x] + k;
        Nanoseconds start = 0;
        for (const Wait& wait : waits_[at]) start = std::max(start, least_[wait.from] + wait.time);
        const auto [unit, most] = grid_[at];
        const Nanoseconds work = unit == 0 ? 0 : std::min(start / unit * unit, most);
        if (start - work > idle) {
          if (idle < 0 || unit == 0 || work + unit > most) return false;
          start = work + unit;
        }
        least_[at] = start;
      }
    }
    return true;
  }

 private:
  /// Work that can stand before the first step of a block: multiples of `unit` up to `most`.
  struct Grid {
    Nanoseconds unit = 0, most = 0;
  };
  struct Wait {
    std::size_t from;
    Nanoseconds time;
  };

  void find_followers(int x) {
    std::fill(follows_.begin(), follows_.end(), 0);
    follows_[x] = 1;
    for (std::size_t i = in_.rank(x); i < follows_.size(); ++i) {
      const int b = in_.topological()[i];
      for (const Edge& e : in_.inputs(b))
        if (follows_[e.block] != 0) follows_[b] = 1;
    }
  }

  /// Of the block last given to find_followers().
  Grid grid_before(int device) const {
    Grid grid;
    Bytes kept = 0;
    bool takes = in_.limited(device);
    __int128 by_memory = 0;
    for (const int a : in_.blocks_on(device)) {
      kept += in_.memory(a);
      if (follows_[a] != 0) continue;
      grid.unit = std::gcd(grid.unit, in_.time(a));
      grid.most += n_ * in_.time(a);
      takes = takes && (in_.memory(a) > 0 || (in_.memory(a) == 0 && in_.time(a) == 0));
      if (takes && in_.time(a) > 0)
        by_memory =
            std::max(by_memory, static_cast<__int128>(in_.room(device)) * in_.time(a) / in_.memory(a));
    }
    if (takes && kept == 0 && by_memory < grid.most) grid.most = static_cast<Nanoseconds>(by_memory);
    if (grid.unit > 0) grid.most = grid.most / grid.unit * grid.unit;
    return grid;
  }

  /// The times by which blocks on the device start after their inputs do, each from its device's first start.
  void add_waits(int device) {
    std::vector<Nanoseconds> from(in_.blocks(), -1);
    for (const int b : in_.topological()) {
      const auto on = in_.devices_of(b);
      if (std::binary_search(on.begin(), on.end(), device)) from[b] = 0;
      for (const Edge& e : in_.inputs(b))
        if (from[e.block] >= 0) from[b] = std::max(from[b], from[e.block] + in_.time(e.block) + e.transfer);
    }
    for (const int x : in_.blocks_on(device)) {
      const auto on = in_.devices_of(x);
      const std::size_t k = std::lower_bound(on.begin(), on.end(), device) - on.begin();
      for (const Edge& e : in_.inputs(x)) {
        for (std::size_t j = 0; j < in_.devices_of(e.block).size(); ++j) {
          const auto others = in_.blocks_on(in_.devices_of(e.block)[j]);
          const int first = *std::min_element(others.begin(), others.end(),
                                              [&](int a, int b) { return from[a] < from[b]; });
          if (from[first] >= 0)
            waits_[first_[x] + k].push_back(
                {first_[e.block] + j, from[first] + in_.time(e.block) + e.transfer});
        }
      }
    }
  }

  const Instance& in_;
  const int n_;
  std::vector<std::size_t> first_;  ///< per block: where its devices begin in what follows
  std::vector<Grid> grid_;
  std::vector<std::vector<Wait>> waits_;
  std::vector<Nanoseconds> least_;  ///< from the device's first start to the first step of the block
  std::vector<char> follows_;
};

}  // namespace

Nanoseconds whole_steps_bound(const Instance& in, int n, Nanoseconds at_least, Nanoseconds enough) {
  WholeSteps steps(in, n);
  while (at_least < enough) {
    const Nanoseconds middle = at_least + (enough - at_least) / 2;
    steps.allow(middle) ? enough = middle : at_least = middle + 1;
  }
  return at_least;
}

}  // namespace ostinato
