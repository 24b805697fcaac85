// SPDX-License-Identifier: Apache-2.0
// 1. From each end of the schedule (Side): the takers of memory with what gives it back, and the blocks on
//    the device that must follow them. Blocks that follow no taker need no memory.
// 2. At every instant at which a step may have started or ended, the most work that can have started before:
//    what needs no memory, then whatever does most work for its memory, the last of it in part. The rest of
//    the time was idle.
// 3. idle_bound() pairs an instant of one end with one of the other that leave work between them: all the
//    work and both idle times are needed.
// The cost of each side is limited by kMostIdleWork, which the search knows too.
#include "search/checker/idle.h"

#include <algorithm>
#include <numeric>

#include "search/checker/area.h"

namespace ostinato::checker {
namespace {

/// How many of some instants, which rise, lie before one that moves on.
class Count {
 public:
  void add(Nanoseconds at) { at_.push_back(at); }
  Wide before(Nanoseconds instant) {
    while (passed_ < at_.size() && at_[passed_] < instant) ++passed_;
    return static_cast<Wide>(passed_);
  }
  const std::vector<Nanoseconds>& all() const { return at_; }

 private:
  std::vector<Nanoseconds> at_;
  std::size_t passed_ = 0;
};

/// A block that takes memory, with the blocks on the device that start no more steps than it.
struct Taker {
  struct Giver {
    int block;  ///< -1: never given back
    Bytes bytes;
  };
  int block;
  std::vector<Giver> givers;
  std::vector<int> followers;
};

/// Steps of a taker that hold `bytes` each, and do `work` with their followers.
struct Piece {
  Wide steps;
  Wide work;
  Wide bytes;
};

/// By an instant no more than `work` has started, so the device idled for `idle`; with an origin, less what
/// it may have done before that one's first start.
struct Point {
  Wide work;
  Wide idle;
};

/// One device from one end of the schedule.
class Side {
 public:
  Side(const Graph& graph, const Windows& windows, int n, int device, bool backwards)
      : graph_(graph),
        on_device_(graph.on_device(device)),
        backwards_(backwards),
        started_(graph.blocks()),
        ended_(started_.size()) {
    find_takers(device);
    share_followers();
    for (const int b : on_device_) {
      for (int i = 0; i < n; ++i) {
        const Nanoseconds at = backwards ? windows.after(b, n - 1 - i) : windows.earliest(b, i);
        started_[b].add(at);
        ended_[b].add(at == kUnknown ? kUnknown : at + graph.block(b).time);
      }
    }
  }

  bool known() const { return !takers_.empty(); }

  /// Idle and work both rise from point to point.
  std::vector<Point> points() {
    std::vector<Point> result;
    const Wide k = static_cast<Wide>(on_device_.size());
    Wide left = kMostIdleWork / (k * k);
    for (const Nanoseconds instant : instants()) {
      if (left-- == 0) break;
      const Wide work = work_before(instant);
      if (!result.empty() && instant - work <= result.back().idle) continue;
      if (!result.empty() && work == result.back().work) result.pop_back();
      result.push_back({work, instant - work});
    }
    return result;
  }

 private:
  void find_takers(int device) {
    const Device& limits = graph_.placement().devices[device];
    const Matching matching = match(graph_, device);
    const bool all_given_back =
        std::all_of(matching.held.begin(), matching.held.end(), [](const Held& h) { return h.giver >= 0; });
    if (!matching.complete || (backwards_ && !all_given_back)) return;
    Bytes unit = 0, workspace = kUnlimited;
    for (const int b : on_device_) workspace = std::min(workspace, graph_.workspace(b));
    for (const Held& h : matching.held) {
      taker_of(backwards_ ? h.giver : h.taker).givers.push_back({backwards_ ? h.taker : h.giver, h.bytes});
      unit = std::gcd(unit, h.bytes);
    }
    room_ = static_cast<Wide>(limits.memory) - limits.static_memory - workspace;
    if (room_ < 0) takers_.clear();
    if (unit > 0) room_ -= room_ % unit;
  }

  Taker& taker_of(int block) {
    for (Taker& taker : takers_) {
      if (taker.block == block) return taker;
    }
    return takers_.emplace_back(Taker{block, {}, {}});
  }

  /// Each block that takes nothing goes with the first taker that a path leads from.
  void share_followers() {
    std::vector<char> shared(started_.size(), 0);
    for (const Taker& taker : takers_) shared[taker.block] = 1;
    for (Taker& taker : takers_) {
      const std::vector<char> behind = reached_from(taker.block);
      for (const int b : on_device_) {
        if (behind[b] == 0 || shared[b] != 0) continue;
        shared[b] = 1;
        taker.followers.push_back(b);
      }
    }
    for (const int b : on_device_) {
      if (shared[b] == 0) free_.push_back(b);
    }
  }

  std::vector<char> reached_from(int block) const {
    std::vector<char> reached(started_.size(), 0);
    reached[block] = 1;
    graph_.walk(backwards_, [&](int b, const std::vector<Graph::Edge>& edges) {
      for (const Graph::Edge& edge : edges) reached[b] |= reached[edge.block];
    });
    return reached;
  }

  /// Between two of these, what may have started and what may have ended do not change.
  std::vector<Nanoseconds> instants() const {
    std::vector<Nanoseconds> all = {0};
    for (const int b : on_device_) {
      all.insert(all.end(), started_[b].all().begin(), started_[b].all().end());
      all.insert(all.end(), ended_[b].all().begin(), ended_[b].all().end());
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    if (!all.empty() && all.front() == kUnknown) all.erase(all.begin());
    return all;
  }

  Wide time(int b) const { return graph_.block(b).time; }

  /// The most work that can have started before the instant: what needs no memory, and then whatever does
  /// most for its memory, the last of it in part.
  Wide work_before(Nanoseconds instant) {
    Wide work = 0;
    for (const int b : free_) work += time(b) * started_[b].before(instant);
    pieces_.clear();
    for (const Taker& taker : takers_) work += cut(taker, instant);
    std::sort(pieces_.begin(), pieces_.end(),
              [](const Piece& a, const Piece& b) { return a.work * b.bytes > b.work * a.bytes; });
    Wide room = room_;
    for (const Piece& piece : pieces_) {
      const Wide held = std::min(piece.steps * piece.bytes, room);
      work += piece.work * held / piece.bytes;
      room -= held;
    }
    return work;
  }

  /// Cuts the steps of a taker where what they hold or what follows them changes. The first ones may have
  /// given all back: returns the work of these.
  Wide cut(const Taker& taker, Nanoseconds instant) {
    const Wide most = started_[taker.block].before(instant);
    cuts_.assign(1, most);
    for (const Taker::Giver& g : taker.givers) {
      if (g.block >= 0) cuts_.push_back(std::min(most, ended_[g.block].before(instant)));
    }
    for (const int b : taker.followers) cuts_.push_back(std::min(most, started_[b].before(instant)));
    std::sort(cuts_.begin(), cuts_.end());
    Wide begin = 0, without_memory = 0;
    for (const Wide end : cuts_) {
      if (end == begin) continue;
      Piece piece{end - begin, time(taker.block), 0};
      for (const Taker::Giver& g : taker.givers) {
        if (g.block < 0 || ended_[g.block].before(instant) <= begin) piece.bytes += g.bytes;
      }
      for (const int b : taker.followers) {
        if (started_[b].before(instant) > begin) piece.work += time(b);
      }
      if (piece.bytes > 0) {
        pieces_.push_back(piece);
      } else {
        without_memory += piece.steps * piece.work;
      }
      begin = end;
    }
    return without_memory;
  }

  const Graph& graph_;
  const std::vector<int>& on_device_;
  const bool backwards_;
  Wide room_ = 0;  ///< for what the takers hold; a multiple of what they have in common
  std::vector<Taker> takers_;
  std::vector<int> free_;               ///< blocks that go with no taker
  std::vector<Count> started_, ended_;  ///< of each block on the device
  std::vector<Piece> pieces_;           ///< scratch
  std::vector<Wide> cuts_;              ///< scratch
};

}  // namespace

Wide idle_bound(const Graph& graph, const Windows& windows, int n, int device) {
  if (graph.placement().devices[device].memory == kUnlimited) return 0;
  Side front(graph, windows, n, device, false), back(graph, windows, n, device, true);
  if (!front.known() && !back.known()) return 0;
  Wide load = 0;
  for (const int b : graph.on_device(device)) load += n * static_cast<Wide>(graph.block(b).time);
  const std::vector<Point> before = front.points(), after = back.points();
  Wide bound = 0;
  std::size_t last = after.size() - 1;
  for (const Point& point : before) {  // the two must leave work between them
    while (last > 0 && point.work + after[last].work >= load) --last;
    if (point.work + after[last].work < load) bound = std::max(bound, load + point.idle + after[last].idle);
  }
  return bound;
}

}  // namespace ostinato::checker
