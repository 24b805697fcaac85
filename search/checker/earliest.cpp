// SPDX-License-Identifier: Apache-2.0
#include "search/checker/earliest.h"

#include <algorithm>
#include <limits>
#include <set>

#include "search/checker/area.h"
#include "search/checker/backlog.h"

namespace ostinato::checker {
namespace {

/// The part of W3 and W4 that concerns one block on one of its devices.
struct Place {
  struct Before {
    int block;
    Nanoseconds gap;  ///< least time from its end to the start of the block
  };
  /// What follows the last of a set for at least `gap`.
  struct Set {
    Nanoseconds gap;
    Backlog backlog;
  };
  struct Share {
    int giver;  ///< -1: never given back
    Bytes bytes;
  };
  std::vector<Before> before;  ///< blocks of the device from which a path leads here
  std::vector<Set> sets;       ///< one for each gap
  std::vector<Share> shares;   ///< bytes that this block, and what is before it, take on the device
  Wide room = -1;              ///< for the shares; -1: not limited, or nothing is known
};

class Earliest {
 public:
  Earliest(const Graph& graph, int n, Direction direction)
      : graph_(graph),
        n_(n),
        direction_(direction),
        blocks_(graph.blocks()),
        waits_(blocks_, direction.origin == kNoDevice ? 1 : 0) {
    result_.start.assign(blocks_ * n, kUnknown);
    find_places();
    for (int d = 0; d < graph_.devices(); ++d) add_shares(d);
    if (direction.origin != kNoDevice) find_what_waits();
    for (auto& of_block : places_) {
      for (Place& here : of_block) add_sets(here);
    }
  }

  EarliestStarts run() {
    const int own = micro_batches_of_their_own();
    for (int i = 0; i < own; ++i) {
      for (int b = 0; b < graph_.blocks(); ++b) start(b, i) = after_one_before(b, i);
      graph_.walk(direction_.backwards, [&](int b, const std::vector<Graph::Edge>& edges) {
        if (waits_[b] != 0) raise(b, i, edges);
      });
    }
    if (own < n_) repeat(own);
    return std::move(result_);
  }

 private:
  Nanoseconds time(int b) const { return graph_.block(b).time; }
  Nanoseconds& start(int b, int i) { return result_.start[static_cast<std::size_t>(i) * blocks_ + b]; }
  Nanoseconds end(int b, int i) { return start(b, i) == kUnknown ? kUnknown : start(b, i) + time(b); }

  /// W2; for the first micro-batch what the origin says.
  Nanoseconds after_one_before(int b, int i) {
    if (i > 0) return end(b, i - 1);
    const auto& devices = graph_.block(b).devices;
    const bool here = direction_.origin == kNoDevice ||
                      std::find(devices.begin(), devices.end(), direction_.origin) != devices.end();
    return here ? 0 : kUnknown;
  }

  /// Who precedes whom on each device, and by how much.
  void find_places() {
    places_.resize(blocks_);
    for (int b = 0; b < graph_.blocks(); ++b) places_[b].resize(graph_.block(b).devices.size());
    for (int a = 0; a < graph_.blocks(); ++a) {
      const std::vector<Wide> distance = graph_.distances_from(a);
      for (const int d : graph_.block(a).devices) {
        for (const int c : graph_.on_device(d)) {
          if (c == a || distance[c] == Graph::kNone) continue;
          const auto gap = static_cast<Nanoseconds>(distance[c] - time(a) - time(c));
          direction_.backwards ? place(a, d).before.push_back({c, gap})
                               : place(c, d).before.push_back({a, gap});
        }
      }
    }
  }

  Place& place(int b, int d) {
    const std::vector<int>& devices = graph_.block(b).devices;
    const auto at = std::find(devices.begin(), devices.end(), d) - devices.begin();
    return places_[b][at];
  }

  /// What is surely held on d when a block starts (W4).
  void add_shares(int d) {
    const Device& device = graph_.placement().devices[d];
    const Wide room = static_cast<Wide>(device.memory) - device.static_memory;
    if (device.memory == kUnlimited || room < 0) return;
    const Matching matching = match(graph_, d);
    const auto& held = matching.held;
    const bool all_given_back =
        std::all_of(held.begin(), held.end(), [](const Held& h) { return h.giver >= 0; });
    if (!matching.complete || (direction_.backwards && !all_given_back)) return;
    for (const int b : graph_.on_device(d)) {
      Place& here = place(b, d);
      here.room = room - graph_.workspace(b);
      for (const Held& h : held) {
        const int taker = direction_.backwards ? h.giver : h.taker;
        const bool taken =
            taker == b || std::any_of(here.before.begin(), here.before.end(),
                                      [&](const Place::Before& x) { return x.block == taker; });
        if (taken) here.shares.push_back({direction_.backwards ? h.taker : h.giver, h.bytes});
      }
    }
  }

  /// Which blocks have to wait for the origin in any micro-batch: along a path, or for memory.
  void find_what_waits() {
    for (const int b : graph_.on_device(direction_.origin)) waits_[b] = 1;
    for (bool more = true; more;) {
      more = false;
      graph_.walk(direction_.backwards, [&](int b, const std::vector<Graph::Edge>& edges) {
        if (waits_[b] != 0) return;
        const auto waits = [&](const Graph::Edge& edge) { return waits_[edge.block] != 0; };
        const auto for_memory = [&](const Place& here) {
          const auto& shares = here.shares;
          return std::any_of(shares.begin(), shares.end(), [&](const Place::Share& share) {
            return share.giver >= 0 && waits_[share.giver] != 0;
          });
        };
        if (std::any_of(edges.begin(), edges.end(), waits) ||
            std::any_of(places_[b].begin(), places_[b].end(), for_memory)) {
          waits_[b] = 1;
          more = true;
        }
      });
    }
  }

  /// Only with blocks that something will be known of.
  void add_sets(Place& here) {
    std::erase_if(here.before, [&](const Place::Before& x) { return waits_[x.block] == 0; });
    std::set<Nanoseconds> gaps = {0};  // of the block's own micro-batches
    for (const Place::Before& x : here.before) gaps.insert(x.gap);
    for (const Nanoseconds gap : gaps) here.sets.push_back({gap, {}});
  }

  /// W3 and W4 may cost the square of the micro-batches; those beyond follow from W5.
  int micro_batches_of_their_own() const {
    Wide pairs = 0;
    for (const auto& of_block : places_) {
      for (const Place& here : of_block) pairs += static_cast<Wide>(here.before.size()) + 1;
    }
    int own = 2;
    while (own < n_ && pairs * (own + 1) * (own + 1) <= kMostEarliestWork) ++own;
    return std::min(own, n_);
  }

  void raise(int b, int i, const std::vector<Graph::Edge>& edges) {
    Nanoseconds& least = start(b, i);
    for (const Graph::Edge& edge : edges) {  // W1
      const Nanoseconds ended = end(edge.block, i);
      if (ended != kUnknown) least = std::max(least, ended + static_cast<Nanoseconds>(edge.transfer));
    }
    for (Place& here : places_[b]) {
      least = std::max(least, after_work(b, i, here));
      least = std::max(least, after_memory(i, here, least));
    }
  }

  /// W3: what the device must do before. Tasks of micro-batch i join the earlier ones'.
  Nanoseconds after_work(int b, int i, Place& here) {
    Nanoseconds latest = kUnknown;
    for (Place::Set& set : here.sets) {
      if (i > 0 && set.gap == 0) set.backlog.add(start(b, i - 1), time(b));
      for (const Place::Before& x : here.before) {
        if (x.gap >= set.gap) set.backlog.add(start(x.block, i), time(x.block));
      }
      const Nanoseconds busy = set.backlog.close_round();
      if (busy != kUnknown) latest = std::max(latest, busy + set.gap);
      result_.work += set.backlog.open() + 1;
    }
    return latest;
  }

  /// W4: the instant from which on the bytes that are surely held leave room. Goes back in time from the last
  /// end.
  Nanoseconds after_memory(int i, const Place& here, Nanoseconds least) {
    if (here.room < 0) return least;
    Wide held = 0;
    for (const Place::Share& share : here.shares) {
      if (share.giver < 0) held += static_cast<Wide>(share.bytes) * (i + 1);
    }
    if (held > here.room) return least;
    next_.assign(here.shares.size(), i);
    for (;; ++result_.work) {
      std::size_t last = here.shares.size();
      Nanoseconds at = least;
      for (std::size_t s = 0; s < here.shares.size(); ++s) {
        const int giver = here.shares[s].giver;
        if (giver < 0 || next_[s] < 0 || end(giver, next_[s]) <= at) continue;
        at = end(giver, next_[s]);
        last = s;
      }
      if (last == here.shares.size()) return least;
      held += here.shares[last].bytes;
      if (held > here.room) return at;
      --next_[last];
    }
  }

  /// W5: without its first `step` micro-batches a schedule is one of fewer, which starts later.
  void repeat(int own) {
    const int step = own - 1;
    const Nanoseconds later = least_start(step);
    for (int i = own; i < n_; ++i) {
      for (int b = 0; b < graph_.blocks(); ++b) {
        const Nanoseconds before = start(b, i - step);
        start(b, i) = std::max(end(b, i - 1), before == kUnknown ? kUnknown : later + before);
      }
    }
  }

  /// The least start of micro-batch i, on the origin if there is one.
  Nanoseconds least_start(int i) {
    Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
    const auto look = [&](int b) { least = std::min(least, start(b, i)); };
    if (direction_.origin != kNoDevice) {
      for (const int b : graph_.on_device(direction_.origin)) look(b);
    } else {
      for (int b = 0; b < graph_.blocks(); ++b) look(b);
    }
    return least;
  }

  const Graph& graph_;
  int n_;
  Direction direction_;
  std::size_t blocks_;
  std::vector<char> waits_;  ///< of each block: the start of some of its steps is known
  EarliestStarts result_;
  std::vector<std::vector<Place>> places_;  ///< of each block, by its devices
  std::vector<int> next_;                   ///< scratch: of each share the last micro-batch not looked at
};

}  // namespace

EarliestStarts earliest_starts(const Graph& graph, int n, Direction direction) {
  return Earliest(graph, n, direction).run();
}

}  // namespace ostinato::checker
