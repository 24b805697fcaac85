// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/idle.h"

#include <algorithm>
#include <numeric>

namespace ostinato {
namespace {

using Wide = __int128;

/// Instants * k^2 that are looked at on each side.
constexpr std::int64_t kMostInstants = 1 << 16;

/// By an instant no more than `work` has been started, so the device idled for `idle`.
struct Point {
  Wide work;
  Wide idle;
};

/// One end of the schedule, in the direction of the instance.
class Side {
 public:
  Side(const Instance& in, const std::optional<std::vector<Held>>& held, const Windows& windows, int d)
      : in_(in), d_(d), starts_(in.blocks()), ends_(starts_.size()) {
    for (const int b : in.blocks_on(d)) {
      for (int i = 0; i < windows.micro_batches(); ++i) {
        const Nanoseconds at = windows.start(b, i, in.mirrored());
        starts_[b].push_back(at);
        ends_[b].push_back(at == kUnknown ? kUnknown : at + in.time(b));
      }
    }
    if (held) find_groups(*held);
    find_rest();
  }

  bool known() const { return !groups_.empty(); }

  std::vector<Point> points() const {
    std::vector<Nanoseconds> instants = {0};
    for (const int b : in_.blocks_on(d_)) {
      instants.insert(instants.end(), starts_[b].begin(), starts_[b].end());
      instants.insert(instants.end(), ends_[b].begin(), ends_[b].end());
    }
    std::sort(instants.begin(), instants.end());
    instants.erase(std::unique(instants.begin(), instants.end()), instants.end());
    if (instants.front() == kUnknown) instants.erase(instants.begin());
    const auto blocks = static_cast<std::int64_t>(in_.blocks_on(d_).size());
    const std::size_t most = kMostInstants / (blocks * blocks);
    if (instants.size() > most) instants.resize(most);
    std::vector<Point> result;
    for (const Nanoseconds instant : instants) {
      const Wide work = most_work(instant);
      const Point point{work, instant - work};
      if (!result.empty() && point.idle <= result.back().idle) continue;
      if (!result.empty() && point.work == result.back().work) result.pop_back();
      result.push_back(point);
    }
    return result;
  }

 private:
  struct Share {
    int giver;  ///< -1: never given back
    Bytes bytes;
  };
  /// A block that takes, with blocks that take nothing and run no more often.
  struct Group {
    int taker;
    std::vector<Share> shares;
    std::vector<int> others;
  };
  /// Steps of a group, of each the work and the bytes.
  struct Piece {
    Wide steps;
    Wide work;
    Wide bytes;
  };

  void find_groups(const std::vector<Held>& held) {
    Bytes unit = 0, workspace = kUnlimited;
    for (const int b : in_.blocks_on(d_)) workspace = std::min(workspace, in_.workspace(b));
    room_ = static_cast<Wide>(in_.room(d_)) - workspace;
    if (room_ < 0) return;
    for (const Held& h : held) {
      auto group =
          std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.taker == h.taker; });
      if (group == groups_.end()) group = groups_.insert(group, {h.taker, {}, {}});
      group->shares.push_back({h.giver, h.bytes});
      unit = std::gcd(unit, h.bytes);
    }
    if (unit > 0) room_ -= room_ % unit;
  }

  /// Each block that takes nothing goes with the first group that a path leads from.
  void find_rest() {
    std::vector<bool> grouped(starts_.size(), false);
    for (const Group& group : groups_) grouped[group.taker] = true;
    for (Group& group : groups_) {
      const std::vector<Nanoseconds> distance = distances_from(in_, group.taker);
      for (const int b : in_.blocks_on(d_)) {
        if (grouped[b] || distance[b] < 0) continue;
        grouped[b] = true;
        group.others.push_back(b);
      }
    }
    for (const int b : in_.blocks_on(d_)) {
      if (!grouped[b]) rest_.push_back(b);
    }
  }

  static Wide before(const std::vector<Nanoseconds>& all, Nanoseconds instant) {
    return std::lower_bound(all.begin(), all.end(), instant) - all.begin();
  }
  Wide started(int b, Nanoseconds instant) const { return before(starts_[b], instant); }
  Wide ended(int b, Nanoseconds instant) const { return b < 0 ? 0 : before(ends_[b], instant); }

  Wide most_work(Nanoseconds instant) const {
    Wide work = 0;
    for (const int b : rest_) work += in_.time(b) * started(b, instant);
    std::vector<Piece> pieces;
    for (const Group& group : groups_) work += split(group, instant, pieces);
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.work * b.bytes > b.work * a.bytes; });
    Wide room = room_;
    for (const Piece& piece : pieces) {
      const Wide held = std::min(piece.steps * piece.bytes, room);
      work += piece.work * held / piece.bytes;
      room -= held;
    }
    return work;
  }

  /// The steps of a group, cut where their work or what they hold changes; returns the work of steps that
  /// hold nothing.
  Wide split(const Group& group, Nanoseconds instant, std::vector<Piece>& pieces) const {
    const Wide most = started(group.taker, instant);
    std::vector<Wide> cuts = {most};
    for (const Share& s : group.shares) cuts.push_back(std::min(most, ended(s.giver, instant)));
    for (const int b : group.others) cuts.push_back(std::min(most, started(b, instant)));
    std::sort(cuts.begin(), cuts.end());
    Wide begin = 0, free = 0;
    for (const Wide end : cuts) {
      if (end == begin) continue;
      Piece piece{end - begin, in_.time(group.taker), 0};
      for (const Share& s : group.shares) piece.bytes += ended(s.giver, instant) <= begin ? s.bytes : 0;
      for (const int b : group.others) piece.work += started(b, instant) > begin ? in_.time(b) : 0;
      piece.bytes > 0 ? pieces.push_back(piece) : void(free += piece.steps * piece.work);
      begin = end;
    }
    return free;
  }

  const Instance& in_;
  const int d_;
  Wide room_ = 0;
  std::vector<std::vector<Nanoseconds>> starts_, ends_;  ///< of each block on the device
  std::vector<Group> groups_;
  std::vector<int> rest_;
};

}  // namespace

Nanoseconds idle_bound(const Instance& in, const Instance& mirror, const Matchings& held,
                       const Windows& windows, int d) {
  if (!in.limited(d)) return 0;
  const Side front(in, held[d], windows, d), back(mirror, mirrored(held)[d], windows, d);
  if (!front.known() && !back.known()) return 0;
  const Wide load = static_cast<Wide>(in.load(d)) * windows.micro_batches();
  Wide bound = 0;
  std::vector<Point> after = back.points();
  for (const Point& first : front.points()) {  // the more is done before, the less may be done after
    while (!after.empty() && first.work + after.back().work >= load) after.pop_back();
    if (!after.empty()) bound = std::max(bound, load + first.idle + after.back().idle);
  }
  return static_cast<Nanoseconds>(bound);
}

}  // namespace ostinato
