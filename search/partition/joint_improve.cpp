// SPDX-License-Identifier: Apache-2.0
// What improve() does, in this order:
// 1. Where memory lacks, the best cuts are made again for less memory.
// 2. A full search of the best, before the moves, which may take most of the time.
// 3. Moves (joint_climb.h): from the best plans, and of each kind from the first; from placements that were
//    ruled out as they stand; and from the best a few random moves away, again and again (iterated local
//    search), while a model is small enough. On shared processors nothing moves: a climb judges plans as if
//    every device had a processor to itself.
// 4. Full searches of what may still win.
#include "search/partition/joint_improve.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "search/partition/joint_candidates.h"
#include "search/partition/joint_climb.h"
#include "search/plan/proved.h"

namespace ostinato::joint {
namespace {

/// Candidates with a plan that are searched with all the work.
constexpr std::size_t kSearchedWhole = 4;
/// Percent above the shortest plan, beyond which a candidate is not searched again with all the work.
constexpr Nanoseconds kWorthAll = 5;
/// Percent above the shortest plan, within which the bound of a placement lets it move.
constexpr Nanoseconds kNearest = 25;
/// Percentages of the memory, for which candidates that are short of it are cut again.
constexpr int kLessMemory[] = {90, 75, 60, 50, 35, 25};
/// Candidates that move, or are cut again, by the steps (blocks times micro-batches) of a schedule.
constexpr std::size_t kFewestMoved = 3, kMostMoved = 5, kMovedSteps = 2'000;
/// How often the best is shaken, by the same, and how many random moves are drawn for that; the share of the
/// usual work that each climb then gets.
constexpr std::size_t kMostShaken = 12, kShakenSteps = 20'000, kMostDrawn = 400;
constexpr int kShakenPart = 16;
/// The share of the time limit after which nothing moves.
constexpr double kMovesEnd = 0.75;

/// For `percent` up to 100, without leaving int64.
Nanoseconds percent_of(Nanoseconds time, Nanoseconds percent) {
  return time / 100 * percent + time % 100 * percent / 100;
}

class Improver {
 public:
  Improver(Judged& judged, Nanoseconds enough)
      : profile_(judged.profile()),
        options_(judged.options()),
        judged_(judged),
        devices_(static_cast<int>(cluster_of(options_.partition).devices.size())),
        enough_(enough) {}

  void run() {
    cut_for_less();
    search_best();
    if (!judged_.sharing()) move_best();

    search_all();
  }

 private:
  std::vector<Candidate>& list() { return judged_.list(); }
  bool stopped() { return judged_.stopped(); }
  bool out_of_time(double share) { return judged_.out_of_time(share); }

  /// A plan is as short as any of any placement.
  bool nothing_left() const { return judged_.found() != kNone && judged_.found() <= enough_; }

  bool on_all(const Candidate& c) const { return c.devices() == devices_; }

  bool is_near(const Candidate& c) const {
    return c.bound - judged_.found() <= percent_of(judged_.found(), kNearest);
  }

  /// A schedule may hold more in flight than a cut for all of the memory leaves room for: what is best in
  /// less memory is tried in all of it.
  void cut_for_less() {
    std::vector<std::size_t> order =
        judged_.sorted([&](const Candidate& c) { return c.plan && is_cut(c) && lacks_memory(c); },
                       [](const Candidate& c) { return c.value(); });
    if (order.size() > starts(order)) order.resize(starts(order));
    for (const std::size_t i : order) {
      for (const int percent : kLessMemory) {
        if (stopped() || nothing_left() || out_of_time(0.5)) return;
        cut_for_less(i, percent);
      }
    }
  }

  void cut_for_less(std::size_t index, int percent) {
    Candidate tighter = recomputing(list()[index], list()[index].options.recompute);
    tighter.name = fmt::format("{}, cut for {} % of the memory", list()[index].name, percent);
    judged_.add_placed(std::move(tighter), percent);
    if (!list().back().placement) return list().pop_back();
    const SearchOptions quick = judged_.shortly(2 * kMostMoved * std::size(kLessMemory));
    if (!judged_.drop_by(list().back(), list().back().bound, "proven bound"))
      judged_.search(list().back(), quick);
  }

  /// By memory, neither evenly nor for the latency.
  static bool is_cut(const Candidate& c) { return !c.even && !c.quick && c.cuts; }

  bool lacks_memory(const Candidate& c) const {
    return c.options.recompute != Recompute::never || judged_.short_of_memory(c);
  }

  /// Whether it may still become the best.
  bool open(const Candidate& c) const {
    if (!c.placement || c.no_shorter || c.infeasible || c.whole) return false;
    return c.bound < judged_.found() && !(c.plan && is_optimal(*c.plan));
  }

  /// The shortest first.
  std::vector<std::size_t> still_open() {
    return judged_.sorted([&](const Candidate& c) { return open(c); },
                          [](const Candidate& c) { return c.plan ? c.value() : kNone; });
  }

  void search_best() {
    const std::vector<std::size_t> order = still_open();
    if (order.empty() || stopped() || nothing_left() || !list()[order.front()].plan || out_of_time(1)) return;
    judged_.search(list()[order.front()], judged_.within_a_part(2));
    list()[order.front()].whole = true;
  }

  /// What may still become the best; of those with a plan no more than kSearchedWhole.
  void search_all() {
    const std::vector<std::size_t> order = still_open();
    for (std::size_t i = 0; i < order.size() && !stopped() && !nothing_left() && !out_of_time(1); ++i) {
      Candidate& candidate = list()[order[i]];
      if (candidate.plan && (i >= kSearchedWhole || !worth_all(candidate))) continue;
      SearchOptions all = judged_.within_a_part(order.size() - i);
      if (candidate.plan && candidate.value() > judged_.found()) all.below = judged_.found();
      if (candidate.plan ? open(candidate) : !judged_.drop_by(candidate, candidate.bound, "proven bound"))
        judged_.search(candidate, all);
    }
  }

  bool worth_all(const Candidate& candidate) const {
    return candidate.value() - judged_.found() <= percent_of(judged_.found(), kWorthAll);
  }

  /// Moves the shortest plans so far that have runs of layers as stages; each makes one more candidate.
  void move_best() {
    if (!options_.moves || judged_.objective() == Objective::latency || nothing_left()) return;
    std::vector<std::size_t> order = judged_.sorted([](const Candidate& c) { return c.plan && !c.graph; },
                                                    [](const Candidate& c) { return c.value(); });
    const std::size_t shakes =
        order.empty() ? 0 : std::min(affordable(kShakenSteps, order.front()), kMostShaken);
    keep_starts(order);
    for (const std::size_t i : order) {
      if (stopped() || nothing_left()) return;
      if (std::optional<Candidate> moved = climb(list()[i])) add_moved(std::move(*moved), list()[i]);
    }
    for (const bool split : splits(profile_, options_)) {
      move_coarsest(split);
      move_on_fewer(split);
    }
    shake(shakes);
  }

  std::optional<Candidate> climb(const Candidate& start, int part = 1) {
    std::optional<Candidate> moved =
        joint::climb(profile_, options_, start, judged_.at_share(kMovesEnd), part);
    out_of_time(kMovesEnd);
    return moved;
  }

  /// Each device that is used has a layer, a transfer then takes its time, and a slow device too.
  bool more_may_hurt() const {
    const Cluster cluster = cluster_of(options_.partition);
    return !LinkTable(profile_, cluster).free() || device_orders(cluster).size() > 1;
  }

  /// A placement with few blocks on all devices is often ruled out as it stands, and yet a few moves from the
  /// best: those from many chunks make blocks shorter, and none makes them fewer at the same time.
  void move_coarsest(bool split) {
    const Candidate* coarsest = nullptr;
    for (const Candidate& c : list()) {
      if (!c.placement || c.graph || c.options.split_backward != split) continue;
      const auto order = [](const Candidate& of) {
        return std::pair(-of.devices(), of.placement->blocks.size());
      };
      if (coarsest == nullptr || order(c) < order(*coarsest)) coarsest = &c;
    }
    if (coarsest != nullptr && coarsest->plan == std::nullopt) move_from(*coarsest);
  }

  /// So is one on fewer devices, where more of them may hurt: of each choice of them the nearest, unless one
  /// has a plan.
  void move_on_fewer(bool split) {
    if (!more_may_hurt()) return;
    const auto eligible = [&](const Candidate& c) {
      return c.placement && !c.graph && c.options.split_backward == split && !on_all(c);
    };
    std::set<std::vector<int>> known;  // devices that are idle in a plan
    for (const Candidate& c : list())
      if (eligible(c) && c.plan) known.insert(c.idle);
    std::vector<Candidate> starts;
    for (const std::size_t i : judged_.sorted(eligible, [](const Candidate& c) { return c.bound; })) {
      const Candidate& c = list()[i];
      if (starts.size() < kFewestMoved && is_near(c) && known.insert(c.idle).second) starts.push_back(c);
    }
    for (Candidate& start : starts) move_from(std::move(start));
  }

  /// The best that is known, a few random moves away: every climb so far may have ended far from the
  /// shortest. One candidate is added for all, which is shorter than the best so far, or as short in fewer
  /// blocks.
  void shake(std::size_t times) {
    std::mt19937 random(static_cast<unsigned>(options_.search.seed));
    const auto key = [&](const Candidate& c) {
      return std::pair(judged_.whole_value(c), c.placement->blocks.size());
    };
    const std::size_t listed = list().size();
    for (std::size_t drawn = 0; times > 0 && drawn < kMostDrawn; ++drawn) {
      const std::size_t best = judged_.best();
      if (best == listed || list()[best].graph) return;
      if (stopped() || nothing_left() || out_of_time(kMovesEnd)) return;
      std::optional<Candidate> start = shaken(profile_, options_, list()[best], random);
      if (!start || !is_near(*start)) continue;
      --times;
      const std::size_t before = list().size();
      move_from(std::move(*start), kShakenPart);
      if (list().size() == before) continue;
      const bool better = key(list().back()) < key(list()[best]);
      if (!better || before > listed) list().erase(list().end() - (better ? 2 : 1));
    }
  }

  void move_from(Candidate start, int part = 1) {
    if (stopped() || nothing_left()) return;
    judged_.search(start, judged_.shortly(4));
    if (!start.plan) return;
    start.no_shorter = false;
    const Candidate moved = climb(start, part).value_or(start);
    if (moved.value() <= judged_.found()) add_moved(moved, start);
  }

  /// The first few, and of each kind the first: what may be chosen beside it must not take its place.
  void keep_starts(std::vector<std::size_t>& order) {
    std::set<std::tuple<bool, bool, bool, std::vector<int>>> kinds;
    const std::size_t most = starts(order);
    std::size_t place = 0;
    std::erase_if(order, [&](std::size_t i) {
      const Candidate& c = list()[i];
      const bool first = kinds
                             .emplace(c.options.split_backward, on_all(c),
                                      c.options.recompute != Recompute::never, c.options.order)
                             .second;
      return place++ >= most && !first;
    });
  }

  /// More where a search takes no time.
  std::size_t starts(const std::vector<std::size_t>& order) {
    return order.empty() ? 0 : std::clamp(affordable(kMovedSteps, order.front()), kFewestMoved, kMostMoved);
  }

  std::size_t affordable(std::size_t steps, std::size_t candidate) {
    const std::size_t blocks = list()[candidate].placement->blocks.size();
    return steps / std::max<std::size_t>(1, blocks * static_cast<std::size_t>(judged_.micro_batches()));
  }

  void add_moved(Candidate moved, const Candidate& from) {
    for (const Candidate& other : list()) {
      if (other.moved && other.idle == moved.idle && other.cuts->stages == moved.cuts->stages &&
          other.value() <= moved.value())
        return;
    }
    moved.moved = true;
    const std::string name = moved_name(from, moved);
    moved.name = name;
    for (int i = 2; std::ranges::find(list(), moved.name, &Candidate::name) != list().end(); ++i)
      moved.name = fmt::format("{} ({})", name, i);
    judged_.add_planned(std::move(moved));
  }

  const Profile& profile_;
  const JointOptions& options_;
  Judged& judged_;
  const int devices_;
  const Nanoseconds enough_;
};

}  // namespace

void improve(Judged& judged, Nanoseconds enough) { Improver(judged, enough).run(); }

}  // namespace ostinato::joint
