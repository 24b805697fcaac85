// SPDX-License-Identifier: Apache-2.0
// Earliest computes W1 to W5 for one direction of time; the tails come from the mirrored instance.
// 1. Once: for each block on each of its devices, the blocks that precede it there, and the bytes of a
//    micro-batch that it finds held. With an origin, also which blocks wait for that device at all.
// 2. Micro-batch by micro-batch, blocks in topological order: the previous micro-batch (W2), the inputs
//    (W1), the work that must come before on the device (W3), the memory that must have been given back
//    (W4).
// 3. After as many micro-batches as kMostWork allows (pairs of related blocks times their square), the last
//    distances repeat (W5). The checker has the same limit, so both compute the same figures.
#include "search/bounds/windows.h"

#include <algorithm>
#include <queue>
#include <set>

#include "search/bounds/one_machine.h"

namespace ostinato {
namespace {

using Wide = __int128;

constexpr Wide kMostPaths = 1 << 24;
constexpr Wide kMostSets = 1 << 22;
constexpr Wide kLongest = Wide{1} << 60;
/// K^2 * pairs of related blocks (docs/bounds.md, W).
constexpr Wide kMostWork = 1 << 24;

/// A machine that is never idle with work at hand. Whatever the order in which it is told of its tasks, it is
/// done at the largest (least head + sum of times) over all sets of them.
class Machine {
 public:
  void add(Nanoseconds head, Nanoseconds time) {
    any_ = true;
    auto gap = std::upper_bound(idle_.begin(), idle_.end(), head,
                                [](Nanoseconds at, const Idle& idle) { return at < idle.end; });
    while (time > 0 && gap != idle_.end()) {
      const Idle whole = *gap;
      const Nanoseconds begin = std::max(whole.begin, head);
      const Nanoseconds done = std::min(time, whole.end - begin);
      time -= done;
      gap = idle_.erase(gap);
      if (begin + done < whole.end) gap = idle_.insert(gap, {begin + done, whole.end});
      if (whole.begin < begin) gap = idle_.insert(gap, {whole.begin, begin}) + 1;
    }
    if (head > end_) {
      idle_.push_back({end_, head});
      end_ = head;
    }
    end_ += time;
  }

  /// When all is done; kUnknown of nothing.
  Nanoseconds end() const { return any_ ? end_ : kUnknown; }

 private:
  struct Idle {
    Nanoseconds begin, end;
  };
  std::vector<Idle> idle_;  ///< before end_, rising
  Nanoseconds end_ = 0;
  bool any_ = false;
};

/// What is known of a block on one of its devices.
struct Place {
  struct Before {
    int block;
    Nanoseconds gap;  ///< least time from its end to the start of the block
  };
  /// Of the blocks that are followed for at least `gap`.
  struct Queue {
    Nanoseconds gap;
    Machine machine;
  };
  struct Share {
    int giver;  ///< -1: never given back
    Bytes bytes;
  };
  std::vector<Before> before;
  std::vector<Queue> queues;
  std::vector<Share> shares;  ///< held when the block starts
  Wide room = -1;             ///< for the shares; negative: nothing is known
};

/// W in the direction of the instance.
class Earliest {
 public:
  Earliest(const Instance& in, const Matchings& held, int n, int origin)
      : in_(in), n_(n), origin_(origin), waits_(in.blocks(), origin == kNoDevice) {
    start_.assign(static_cast<std::size_t>(in.blocks()) * n, kUnknown);
    places_.resize(in.blocks());
    for (int b = 0; b < in.blocks(); ++b) places_[b].resize(in.devices_of(b).size());
    find_before();
    for (int d = 0; d < in.devices(); ++d) {
      if (held[d] && in.room(d) >= 0) find_shares(d, *held[d]);
    }
    if (origin != kNoDevice) find_what_waits();
    for (auto& places : places_) {
      for (Place& place : places) add_queues(place);
    }
  }

  /// Empty if stopped.
  std::vector<Nanoseconds> run(std::int64_t& work, const std::function<bool()>& stop) {
    const int own = micro_batches_of_their_own();
    for (int i = 0; i < own; ++i) {
      if (stop && stop()) return {};
      for (int b = 0; b < in_.blocks(); ++b) at(b, i) = i > 0 ? end(b, i - 1) : first(b);  // W2
      for (const int b : in_.topological()) {
        if (waits_[b]) raise(b, i);
      }
    }
    if (!repeat(own, stop)) return {};
    work += work_;
    return std::move(start_);
  }

 private:
  Nanoseconds& at(int b, int i) { return start_[static_cast<std::size_t>(i) * places_.size() + b]; }
  Nanoseconds end(int b, int i) { return at(b, i) == kUnknown ? kUnknown : at(b, i) + in_.time(b); }
  bool on(int b, int d) const {
    const auto devices = in_.devices_of(b);
    return std::binary_search(devices.begin(), devices.end(), d);
  }
  Nanoseconds first(int b) const { return origin_ == kNoDevice || on(b, origin_) ? 0 : kUnknown; }
  Place& place(int b, int d) {
    const auto devices = in_.devices_of(b);
    return places_[b][std::lower_bound(devices.begin(), devices.end(), d) - devices.begin()];
  }

  void find_before() {
    for (int a = 0; a < in_.blocks(); ++a) {
      const std::vector<Nanoseconds> distance = distances_from(in_, a);
      for (const int d : in_.devices_of(a)) {
        for (const int b : in_.blocks_on(d)) {
          if (b != a && distance[b] >= 0)
            place(b, d).before.push_back({a, distance[b] - in_.time(a) - in_.time(b)});
        }
      }
    }
  }

  void find_shares(int d, const std::vector<Held>& held) {
    for (const int b : in_.blocks_on(d)) {
      Place& here = place(b, d);
      here.room = static_cast<Wide>(in_.room(d)) - in_.workspace(b);
      for (const Held& h : held) {
        if (h.taker == b || std::any_of(here.before.begin(), here.before.end(),
                                        [&](const Place::Before& x) { return x.block == h.taker; }))
          here.shares.push_back({h.giver, h.bytes});
      }
    }
  }

  /// Blocks that wait for the origin in any micro-batch, along a path or for memory.
  void find_what_waits() {
    std::vector<int> next(in_.blocks_on(origin_).begin(), in_.blocks_on(origin_).end());
    std::vector<std::vector<int>> frees(places_.size());  // blocks that wait for the memory of each
    for (int b = 0; b < in_.blocks(); ++b) {
      for (const Place& here : places_[b]) {
        for (const Place::Share& share : here.shares) {
          if (share.giver >= 0) frees[share.giver].push_back(b);
        }
      }
    }
    while (!next.empty()) {
      const int b = next.back();
      next.pop_back();
      if (waits_[b]) continue;
      waits_[b] = true;
      for (const Edge& e : in_.followers(b)) next.push_back(e.block);
      next.insert(next.end(), frees[b].begin(), frees[b].end());
    }
  }

  void add_queues(Place& here) {
    std::erase_if(here.before, [&](const Place::Before& x) { return !waits_[x.block]; });
    std::set<Nanoseconds> gaps = {0};
    for (const Place::Before& x : here.before) gaps.insert(x.gap);
    for (const Nanoseconds gap : gaps) here.queues.push_back({gap, {}});
  }

  int micro_batches_of_their_own() const {
    Wide pairs = 0;
    for (const auto& places : places_) {
      for (const Place& here : places) pairs += static_cast<Wide>(here.before.size()) + 1;
    }
    int own = 2;
    while (own < n_ && pairs * (own + 1) * (own + 1) <= kMostWork) ++own;
    return std::min(own, n_);
  }

  void raise(int b, int i) {
    Nanoseconds& least = at(b, i);
    for (const Edge& e : in_.inputs(b)) {  // W1
      if (end(e.block, i) != kUnknown) least = std::max(least, end(e.block, i) + e.transfer);
    }
    for (Place& here : places_[b]) {
      least = std::max(least, after_work(b, i, here));
      least = after_memory(i, here, least);
    }
  }

  /// W3.
  Nanoseconds after_work(int b, int i, Place& here) {
    Nanoseconds latest = kUnknown;
    for (Place::Queue& queue : here.queues) {
      const auto add = [&](int x, int j) {
        if (at(x, j) != kUnknown) queue.machine.add(at(x, j), in_.time(x));
        ++work_;
      };
      if (i > 0 && queue.gap == 0) add(b, i - 1);
      for (const Place::Before& x : here.before) {
        if (x.gap >= queue.gap) add(x.block, i);
      }
      if (queue.machine.end() != kUnknown) latest = std::max(latest, queue.machine.end() + queue.gap);
    }
    return latest;
  }

  /// W4: back from the last end to the one without which there is no room.
  Nanoseconds after_memory(int i, const Place& here, Nanoseconds least) {
    Wide held = 0;
    std::priority_queue<std::pair<Nanoseconds, std::pair<int, int>>> ends;  // end, (share, micro-batch)
    const auto look = [&](int share, int j) {
      const int giver = here.shares[share].giver;
      if (j >= 0 && end(giver, j) > least) ends.push({end(giver, j), {share, j}});
      ++work_;
    };
    for (int s = 0; s < static_cast<int>(here.shares.size()); ++s) {
      const Place::Share& share = here.shares[s];
      share.giver < 0 ? void(held += static_cast<Wide>(share.bytes) * (i + 1)) : look(s, i);
    }
    if (here.room < 0 || held > here.room) return least;
    while (!ends.empty()) {
      const auto [at, which] = ends.top();
      ends.pop();
      held += here.shares[which.first].bytes;
      if (held > here.room) return at;
      look(which.first, which.second - 1);
    }
    return least;
  }

  /// W5. False if stopped.
  bool repeat(int own, const std::function<bool()>& stop) {
    Nanoseconds later = std::numeric_limits<Nanoseconds>::max();
    for (int b = 0; b < in_.blocks(); ++b) {
      if (origin_ == kNoDevice || on(b, origin_)) later = std::min(later, at(b, own - 1));
    }
    for (int i = own; i < n_; ++i) {
      if (stop && stop()) return false;
      for (int b = 0; b < in_.blocks(); ++b) {
        const Nanoseconds before = at(b, i - own + 1);
        at(b, i) = std::max(end(b, i - 1), before == kUnknown ? kUnknown : later + before);
      }
    }
    return true;
  }

  const Instance& in_;
  const int n_;
  const int origin_;
  std::vector<bool> waits_;
  std::vector<std::vector<Place>> places_;  ///< of each block, by its devices
  std::vector<Nanoseconds> start_;
  std::int64_t work_ = 0;
};

}  // namespace

bool Windows::affordable(const Instance& in, int n) {
  Wide longest = 0, sets = 0;
  for (int b = 0; b < in.blocks(); ++b) {
    longest += in.time(b);
    for (const Edge& e : in.inputs(b)) longest += e.transfer;
  }
  for (int d = 0; d < in.devices(); ++d) {
    const Wide here = static_cast<Wide>(in.blocks_on(d).size());
    sets += here * here * here;
  }
  return sets <= kMostSets && longest <= kLongest / n && static_cast<Wide>(in.blocks()) * n <= kMostSteps &&
         static_cast<Wide>(in.blocks()) * in.size() <= kMostPaths;
}

Windows::Windows(const Instance& in, const Instance& mirror, const Matchings& held, int n, int origin,
                 const std::function<bool()>& stop)
    : n_(n), origin_(origin), blocks_(in.blocks()) {
  if (!affordable(in, n)) return;
  tail_ = Earliest(mirror, mirrored(held), n, origin).run(work_, stop);
  if (!tail_.empty()) head_ = Earliest(in, held, n, origin).run(work_, stop);
}

Nanoseconds least_end_of(const Instance& in, const Windows& windows, int device) {
  std::vector<Task> tasks;
  for (const int b : in.blocks_on(device)) {
    for (int i = 0; i < windows.micro_batches(); ++i) {
      if (windows.earliest(b, i) == kUnknown || windows.after(b, i) == kUnknown) continue;
      tasks.push_back({windows.earliest(b, i), in.time(b), windows.after(b, i)});
    }
  }
  return least_end(std::move(tasks));
}

}  // namespace ostinato
