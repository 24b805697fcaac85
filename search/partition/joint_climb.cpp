// SPDX-License-Identifier: Apache-2.0
// From the best stages so far, step by step:
// 1. Their neighbours, and if none is shorter and they are few, the neighbours of these, ring by ring.
// 2. promising(): neighbours that were not judged before and that leave their busiest device room, the least
//    busy first; of the first ones the placement is made and bounded, and what its bound rules out goes.
// 3. try_one(): a short search that only wants plans below the best. The first that is found becomes the
//    best.
// It ends when no ring has a shorter plan, when the searches are used up (a number that falls with the size
// of the placement), or when time is.
#include "search/partition/joint_climb.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "search/bounds/bounds.h"
#include "search/files/error.h"
#include "search/named/references.h"
#include "search/partition/joint_candidates.h"
#include "search/partition/joint_moves.h"
#include "search/partition/stage_cost.h"
#include "search/partition/stages.h"
#include "search/shortest.h"

namespace ostinato::joint {
namespace {

/// Steps (blocks times micro-batches) that all short searches of a climb may schedule, and how many searches
/// that is at least and at most.
constexpr std::int64_t kSteps = 400'000;
constexpr std::int64_t kFewestSearches = 8, kMostSearches = 300;
/// A search of this many steps counts for several, unless a proof ends it before it begins: where memory is
/// short, it meets no bound, and takes all the work that it may.
constexpr std::int64_t kLongSteps = 150, kLongSearch = 3;
/// Blocks of all placements of one round that are bounded.
constexpr std::size_t kBoundedBlocks = 40'000;
/// Where no neighbour is shorter, theirs are tried as well, while that makes no more than this many.
constexpr std::size_t kTried = 40'000;

/// Random moves of a candidate that is shaken.
constexpr unsigned kFewestShakes = 2, kMostShakes = 4;

struct Neighbour {
  Stages stages;
  Nanoseconds busiest = 0;
  Nanoseconds bound = 0;
  std::optional<Placement> placement = {};
};

/// Places and bounds it, unless a restriction or memory forbids that.
void bound(const Profile& profile, const JointOptions& options, const PartitionOptions& how, int devices,
           Neighbour& next) {
  if (first_broken(options.restrictions, next.stages, devices, how.split_backward) != nullptr) return;
  Placement placed = place_stages(profile, how, next.stages);
  if (!step_fits(facts_of(profile, how, next.stages), placed)) return;
  try {
    next.bound = Bounds(Instance(placed)).of(options.search.objective, options.search.micro_batches);
    next.placement = std::move(placed);
  } catch (const InfeasibleError&) {
    // Its memory holds no order.
  }
}

/// No search of what it was before counts for it.
void go_to(Candidate& candidate, Neighbour next) {
  candidate.cuts = StageCuts{.stages = std::move(next.stages), .busiest = next.busiest};
  candidate.placement = std::move(next.placement);
  candidate.bound = next.bound;
  candidate.whole = candidate.cut = false;
}

bool may_recompute(const JointOptions& options) { return options.recompute && !options.partition.inference; }

/// It matters which of the devices a stage is on.
bool unlike(const PartitionOptions& options) {
  return options.cluster && (options.cluster->kinds.size() > 1 || options.cluster->nodes.size() > 1);
}

class Climb {
 public:
  Climb(const Profile& profile, const JointOptions& options, const Candidate& start, int part,
        std::optional<std::chrono::steady_clock::time_point> until)
      : profile_(profile),
        options_(options),
        part_(static_cast<std::size_t>(part)),
        until_(until),
        model_(profile, start.options),
        best_(start),
        value_(start.value()) {
    const std::int64_t steps = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(start.placement->blocks.size()) * micro_batches());
    searches_ = std::max(std::clamp(kSteps / steps, kFewestSearches, kMostSearches) / part, kFewestSearches);
    cost_ = steps >= kLongSteps ? std::min(kLongSearch, searches_ / kFewestSearches) : 1;
    seen_.insert(key_of(start.cuts->stages));
  }

  std::optional<Candidate> run() {
    const Nanoseconds began = value_;
    while (step()) {
    }
    if (value_ >= began) return std::nullopt;
    return std::move(best_);
  }

 private:
  using Key = std::vector<int>;

  int micro_batches() const { return options_.search.micro_batches; }

  bool ended() const {
    const std::atomic<bool>* stop = options_.search.stop;
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) return true;
    return searches_ <= 0 || (until_ && std::chrono::steady_clock::now() >= *until_);
  }

  static Key key_of(const Stages& stages) {
    Key key;
    for (const Stage& stage : stages) {
      key.insert(key.end(), {stage.layers.front(), stage.devices.front(), stage.recompute ? 1 : 0});
    }
    return key;
  }

  /// Of the stage on each of its devices, a micro-batch.
  Nanoseconds time_of(const Stage& stage) {
    const int kind = stage.sharded() ? -1 : model_.kind_of(stage.devices.front());
    const auto [known, is_new] =
        times_.try_emplace({stage.layers.front(), stage.layers.back(), kind, stage.recompute}, 0);
    if (is_new) {
      const chain::StageCost cost = cost_of_stage(model_, stage);
      known->second = cost.forward + (model_.split && kind >= 0 ? cost.backward_input + cost.backward_weight
                                                                : cost.backward);
    }
    return known->second;
  }

  Nanoseconds busiest_of(const Stages& stages) {
    std::vector<Nanoseconds> busy(model_.devices(), 0);
    for (const Stage& stage : stages) {
      const Nanoseconds time = time_of(stage);
      for (const int d : stage.devices) busy[d] += time;
    }
    return *std::max_element(busy.begin(), busy.end());
  }

  bool has_room(Nanoseconds busiest) const {
    if (options_.search.objective != Objective::makespan) return true;
    return static_cast<__int128>(busiest) * micro_batches() < value_;
  }

  /// What the bounds leave of these, most promising first.
  std::vector<Neighbour> promising(std::vector<Stages> candidates) {
    std::vector<Neighbour> list;
    for (Stages& stages : candidates) {
      const Nanoseconds busiest = busiest_of(stages);
      if (has_room(busiest) && seen_.insert(key_of(stages)).second)
        list.push_back({.stages = std::move(stages), .busiest = busiest});
    }
    std::stable_sort(list.begin(), list.end(),
                     [](const Neighbour& a, const Neighbour& b) { return a.busiest < b.busiest; });
    const std::size_t most =
        std::max<std::size_t>(1, kBoundedBlocks / part_ / best_.placement->blocks.size());
    if (list.size() > most) list.resize(most);
    for (Neighbour& next : list)
      if (!ended()) bound(profile_, options_, best_.options, model_.devices(), next);
    std::erase_if(list, [&](const Neighbour& next) { return !next.placement || next.bound >= value_; });
    std::stable_sort(list.begin(), list.end(),
                     [](const Neighbour& a, const Neighbour& b) { return a.bound < b.bound; });
    return list;
  }

  /// Their neighbours that were not met before.
  std::vector<Stages> ring_around(const std::vector<Stages>& ring, bool recompute, std::set<Key>& met) const {
    std::vector<Stages> next;
    for (const Stages& stages : ring)
      for (Stages& neighbour : neighbours(stages, model_.devices(), recompute, unlike(best_.options)))
        if (met.insert(key_of(neighbour)).second) next.push_back(std::move(neighbour));
    return next;
  }

  /// Goes to the first neighbour that is shorter; where there is none, and neighbours are few, to one of
  /// theirs, and so on: to any division of a small model. False where none is shorter. What may recompute has
  /// more neighbours, and so fewer rings of them: those that do not are tried again, further out.
  bool step() {
    const bool recompute = may_recompute(options_);
    return step(recompute) || (recompute && step(false));
  }

  bool step(bool recompute) {
    std::vector<Stages> ring = {best_.cuts->stages};
    std::set<Key> met = {key_of(ring.front())};
    for (std::size_t near = 0; !ring.empty() && !ended(); near = std::max(near, ring.size())) {
      if (ring.size() * near > kTried / part_) return false;
      ring = ring_around(ring, recompute, met);
      if (try_all(promising(ring))) return true;
    }
    return false;
  }

  bool try_all(std::vector<Neighbour> list) {
    return std::any_of(list.begin(), list.end(), [&](Neighbour& next) { return !ended() && try_one(next); });
  }

  bool try_one(Neighbour& next) {
    SearchOptions quick = options_.search;
    quick.effort = 1;  // percent
    quick.below = value_;
    quick.time_limit_seconds = seconds_left();
    quick.progress = {};
    quick.contributions = nullptr;
    searches_ -= cost_;
    try {
      Plan plan = shortest_plan(*next.placement, quick);
      const Nanoseconds value = objective_value(plan, *next.placement);
      if (value >= value_) return false;
      take(next, std::move(plan), value);
      return true;
    } catch (const std::runtime_error&) {  // infeasible, or nothing shorter exists
      searches_ += cost_ - 1;
      return false;
    }
  }

  /// As SearchOptions::time_limit_seconds.
  double seconds_left() const {
    if (!until_) return 0;
    const std::chrono::duration<double> left = *until_ - std::chrono::steady_clock::now();
    return std::max(1e-3, left.count());
  }

  void take(Neighbour& next, Plan plan, Nanoseconds value) {
    value_ = value;
    go_to(best_, std::move(next));
    best_.plan = std::move(plan);
  }

  const Profile& profile_;
  const JointOptions& options_;
  const std::size_t part_;
  const std::optional<std::chrono::steady_clock::time_point> until_;
  const chain::Model model_;
  Candidate best_;
  Nanoseconds value_;
  std::int64_t searches_ = 0;  ///< left
  std::int64_t cost_ = 1;      ///< of a search, in searches
  std::set<Key> seen_;
  std::map<std::tuple<int, int, int, bool>, Nanoseconds>
      times_;  ///< by first and last layer, kind, recompute
};

}  // namespace

std::optional<Candidate> shaken(const Profile& profile, const JointOptions& options, const Candidate& start,
                                std::mt19937& random) {
  Neighbour next{.stages = start.cuts->stages};
  const unsigned moves = kFewestShakes + static_cast<unsigned>(random() % (kMostShakes - kFewestShakes + 1));
  for (unsigned i = 0; i < moves; ++i) {
    std::vector<Stages> all =
        neighbours(next.stages, start.devices(), may_recompute(options), unlike(start.options));
    if (all.empty()) break;
    next.stages = std::move(all[random() % all.size()]);
  }
  bound(profile, options, start.options, start.devices(), next);
  if (!next.placement) return std::nullopt;
  Candidate result = start;
  result.plan.reset();
  go_to(result, std::move(next));
  return result;
}

std::optional<Candidate> climb(const Profile& profile, const JointOptions& options, const Candidate& start,
                               std::optional<std::chrono::steady_clock::time_point> until, int part) {
  return Climb(profile, options, start, part, until).run();
}

}  // namespace ostinato::joint
