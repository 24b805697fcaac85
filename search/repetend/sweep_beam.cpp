// SPDX-License-Identifier: Apache-2.0
// 1. run() places item after item: place() makes a child of every state and phase, takes the cheapest, adds
//    what the order on a device costs once it is complete, and keeps one of the children that look alike to
//    later steps. Several micro-batches have more states than a beam can hold; for these it also adds what
//    the next devices would cost if every item there took the phase nearest to its neighbour's.
// 2. starts() follows the cheapest state back, and the trees from phases to starts.
#include "search/repetend/sweep_beam.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "search/repetend/list.h"
#include "search/repetend/sweep_steps.h"

namespace ostinato {
namespace {

/// A round may take one part in this many of the work that is left.
constexpr std::int64_t kShares = 2;
constexpr std::int64_t kLeastWidth = 16;
constexpr std::int64_t kMostWidth = 1000;
/// Children of a level that are looked at, for one that is kept.
constexpr std::size_t kLookedAt = 3;

}  // namespace

/// One period.
class SweepBeam::Rounds {
 public:
  Rounds(const Instance& in, const SweepTrees& trees, int unroll, Nanoseconds period, SweepEffort& effort)
      : in_(in),
        trees_(trees),
        unroll_(unroll),
        effort_(effort),
        plan_(in, trees, unroll, period),
        ring_(plan_.ring) {
    std::int64_t each = 0;  // work of a state in all steps
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const SweepStep& step = plan_.steps[i];
      const std::size_t phases = step.neighbours.size() + 2 * step.shared.size() + 1;
      each += ring_.on_grid() ? ring_.period : static_cast<std::int64_t>(phases);
      each += static_cast<std::int64_t>(kLookedAt * (step.ahead - i));
    }
    if (each > 0)
      width_ = static_cast<std::size_t>(
          std::clamp<std::int64_t>(effort.work / kShares / each, kLeastWidth, kMostWidth));
  }

  std::optional<std::vector<Nanoseconds>> run(const std::vector<std::int64_t>& price) {
    if (plan_.steps.empty()) return std::nullopt;
    price_links(price);
    price_ = price;
    ++round_;
    cut_off_ = false;
    levels_.clear();
    Level level;
    level.cost = {0};
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const bool stopped = effort_.stop && effort_.stop();
      cut_off_ = cut_off_ || stopped;
      if (stopped || !place(i, level)) return std::nullopt;
    }
    return starts();
  }

  bool cut_off() const { return cut_off_; }

 private:
  using Cost = __int128;
  using Phase = SweepPhase;
  struct Came {
    std::int32_t from;  ///< state of the level before
    Phase phase;        ///< of the item that was placed
  };
  struct Level {
    std::vector<Cost> cost;
    std::vector<Phase> phases;  ///< [state * live + i]: of the live items
  };
  struct Child {
    Cost cost;
    Cost value;
    std::uint32_t lot;  ///< which of equals comes first
    std::int32_t state;
    Phase phase;
  };
  struct Event {
    Phase at;
    int takes;
    Bytes change;
    friend auto operator<=>(const Event&, const Event&) = default;
  };

  int block(int x) const { return x % in_.blocks(); }

  /// The order of children of equal value: another one in each round.
  std::uint32_t lot(std::size_t state, Phase phase) const {
    std::uint64_t mixed =
        (round_ << 48) + (static_cast<std::uint64_t>(state) << 32) + static_cast<std::uint64_t>(phase) + 1;
    mixed *= 0x9E3779B97F4A7C15ULL;
    mixed ^= mixed >> 31;
    return static_cast<std::uint32_t>((mixed * 0xBF58476D1CE4E5B9ULL) >> 32);
  }

  /// Of the phases of live items.
  std::uint64_t free_phases(const SweepStep& step, const Phase* phases) const {
    std::uint64_t taken = 0;
    for (const SweepStep::Shared& y : step.shared) taken |= ring_.turned(y.blocked, phases[y.live]);
    return ~taken & ring_.all;
  }

  /// The phase of a copy of the first block: evenly spread at first, a little off in later rounds.
  Phase apart(int copy, Phase time) const {
    if (copy == 0) return 0;
    const std::int64_t spare = ring_.on_grid() ? ring_.period / unroll_ - time : 0;
    const std::int64_t off = static_cast<std::int64_t>(round_ / 2) * (round_ % 2 == 0 ? 1 : -1);
    return ring_.ring(ring_.period * copy / unroll_ + std::clamp(off, -spare, spare));
  }

  void price_links(const std::vector<std::int64_t>& price) {
    cost_of_link_.assign(trees_.links.size(), 0);
    for (std::size_t l = 0; l < trees_.links.size(); ++l) {
      for (const SweepTrees::Span& span : trees_.held_by[l])
        cost_of_link_[l] += span.bytes * price[span.device];
    }
  }

  /// Phases that the item may take: all of a coarse grid, else where something begins or ends.
  void candidates(const SweepStep& step, const Phase* phases) {
    found_.clear();
    if (step.copy >= 0) {
      found_.push_back(apart(step.copy, step.time));
      return;
    }
    if (ring_.on_grid()) {
      for (std::uint64_t left = free_phases(step, phases); left != 0; left &= left - 1)
        found_.push_back(std::countr_zero(left));
      return;
    }
    for (const SweepStep::Neighbour& n : step.neighbours) found_.push_back(undelayed(n, phases));
    for (const SweepStep::Shared& y : step.shared) {
      found_.push_back(ring_.ring(std::int64_t{phases[y.live]} + y.time));
      found_.push_back(ring_.ring(std::int64_t{phases[y.live]} - step.time));
    }
    if (found_.empty()) found_.push_back(0);
    std::sort(found_.begin(), found_.end());
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    for (const SweepStep::Shared& y : step.shared) {
      std::size_t kept = 0;
      for (const Phase p : found_) {
        const Phase after = ring_.near(p - phases[y.live]);
        if (after >= y.time && after + step.time <= ring_.period) found_[kept++] = p;
      }
      found_.resize(kept);
    }
  }

  /// The phase at which the link to a neighbour does not wait.
  Phase undelayed(const SweepStep::Neighbour& n, const Phase* phases) const {
    return ring_.near(n.before ? phases[n.live] - static_cast<Phase>(ring_.period) + n.weight
                               : phases[n.live] - n.weight);
  }

  Cost waiting(const SweepStep& step, const Phase* phases, Phase phase) const {
    Cost cost = 0;
    for (const SweepStep::Neighbour& n : step.neighbours) {
      const Phase apart = ring_.near(n.before ? phase - phases[n.live] : phases[n.live] - phase);
      cost += cost_of_link_[n.link] * ring_.near(apart - n.weight);
    }
    return cost;
  }

  /// Where an item waits least for its first neighbour: after it, or before. Absent: nowhere.
  std::optional<Phase> nearest(const SweepStep& step, const Phase* phases) const {
    const bool later = step.neighbours.empty() || step.neighbours.front().before;
    Phase phase = step.neighbours.empty() ? 0 : undelayed(step.neighbours.front(), phases);
    if (ring_.on_grid()) {
      const std::uint64_t free = free_phases(step, phases);
      if (free == 0) return std::nullopt;
      const auto last = static_cast<Phase>(ring_.period - 1);
      if (later)
        return ring_.ring(phase + std::countr_zero(ring_.turned(free, phase == 0 ? 0 : last + 1 - phase)));
      return ring_.ring(phase + 63 - std::countl_zero(ring_.turned(free, last - phase)) - last);
    }
    for (std::size_t tries = 0; tries <= step.shared.size(); ++tries) {
      const auto met = std::find_if(step.shared.begin(), step.shared.end(), [&](const SweepStep::Shared& y) {
        const Phase after = ring_.near(phase - phases[y.live]);
        return after < y.time || after + step.time > ring_.period;
      });
      if (met == step.shared.end()) return phase;
      phase = ring_.ring(std::int64_t{phases[met->live]} + (later ? met->time : -step.time));
    }
    return std::nullopt;
  }

  /// What the next devices cost, each item where it waits least.
  Cost look_ahead(std::size_t i, const std::vector<Phase>& live) {
    Cost cost = 0;
    ahead_ = live;
    for (std::size_t next = i + 1; next < plan_.steps[i].ahead; ++next) {
      const SweepStep& step = plan_.steps[next];
      const std::optional<Phase> phase = nearest(step, ahead_.data());
      if (phase) {
        cost += waiting(step, ahead_.data(), *phase);
      } else if (!step.neighbours.empty()) {
        cost += cost_of_link_[step.neighbours.front().link] * ring_.period;
      }
      next_ahead_.clear();
      for (const int j : step.kept) next_ahead_.push_back(j < 0 ? phase.value_or(0) : ahead_[j]);
      std::swap(ahead_, next_ahead_);
    }
    return cost;
  }

  /// Every state with every phase.
  void list_children(const SweepStep& step, const Level& level) {
    children_.clear();
    for (std::size_t s = 0; s < level.cost.size(); ++s) {
      const Phase* phases = level.phases.data() + s * step.live.size();
      candidates(step, phases);
      effort_.work -= static_cast<std::int64_t>(found_.size());
      for (const Phase phase : found_) {
        const Cost cost = level.cost[s] + waiting(step, phases, phase);
        children_.push_back({cost, cost, lot(s, phase), static_cast<std::int32_t>(s), phase});
      }
    }
  }

  /// What a device that is complete costs by its order, and what is to come.
  void value_children(std::size_t i, const Level& level) {
    const SweepStep& step = plan_.steps[i];
    for (Child& child : children_) {
      const Phase* phases = level.phases.data() + child.state * step.live.size();
      for (const int d : step.done) {
        if (in_.limited(d)) child.cost += price_[d] * above_mean(step, phases, child.phase, d);
      }
      live_.clear();
      for (const int j : step.kept) live_.push_back(j < 0 ? child.phase : phases[j]);
      child.value = child.cost + look_ahead(i, live_);
    }
    effort_.work -= static_cast<std::int64_t>(children_.size() * (step.ahead - i));
  }

  /// The first of those with the same phases, relative to each other, until the beam is full.
  bool keep_cheapest(const SweepStep& step, Level& level) {
    Level next;
    std::vector<Came> came;
    std::unordered_set<std::uint64_t> known;
    for (const Child& child : children_) {
      const Phase* phases = level.phases.data() + child.state * step.live.size();
      const std::size_t begin = next.phases.size();
      for (const int j : step.kept) next.phases.push_back(j < 0 ? child.phase : phases[j]);
      std::uint64_t hash = 0;
      for (std::size_t j = begin; j < next.phases.size(); ++j) {
        hash ^= static_cast<std::uint64_t>(ring_.near(next.phases[j] - next.phases[begin])) + 1;
        hash *= 0x9E3779B97F4A7C15ULL;
        hash ^= hash >> 29;
      }
      if (!known.insert(hash).second) {
        next.phases.resize(begin);
        continue;
      }
      next.cost.push_back(child.cost);
      came.push_back({child.state, child.phase});
      if (came.size() < width_) continue;
      cut_off_ = true;
      break;
    }
    level = std::move(next);
    levels_.push_back(std::move(came));
    return !level.cost.empty();
  }

  bool place(std::size_t i, Level& level) {
    const SweepStep& step = plan_.steps[i];
    const auto cheaper = [](const Child& a, const Child& b) {
      return std::tie(a.value, a.lot, a.state, a.phase) < std::tie(b.value, b.lot, b.state, b.phase);
    };
    list_children(step, level);
    const std::size_t looked_at = std::min<std::size_t>(children_.size(), kLookedAt * width_);
    if (looked_at < children_.size())
      std::nth_element(children_.begin(), children_.begin() + looked_at, children_.end(), cheaper);
    cut_off_ = cut_off_ || looked_at < children_.size();
    children_.resize(looked_at);
    value_children(i, level);
    std::sort(children_.begin(), children_.end(), cheaper);
    return keep_cheapest(step, level);
  }

  /// By how much the most that device d holds is above the mean, times the period.
  Cost above_mean(const SweepStep& step, const Phase* phases, Phase phase, int d) {
    events_.clear();
    const auto add = [&](int item, Phase at) {
      const Bytes change = trees_.scaled(in_.memory(block(item)));
      if (change > 0) events_.push_back({at, 1, change});
      if (change < 0)
        events_.push_back({ring_.ring(at + in_.time(block(item)) / plan_.unit - 1) + 1, 0, change});
    };
    add(step.item, phase);
    for (const SweepStep::Shared& y : step.shared) {
      const auto on = in_.devices_of(block(step.live[y.live]));
      if (std::find(on.begin(), on.end(), d) != on.end()) add(step.live[y.live], phases[y.live]);
    }
    std::sort(events_.begin(), events_.end());
    Cost held = 0, most = 0, sum = 0;
    for (const Event& e : events_) {
      held += e.change;
      most = std::max(most, held);
      sum += e.change * (ring_.period - e.at);
    }
    return most * ring_.period - sum;
  }

  std::vector<Nanoseconds> starts() const {
    std::vector<Nanoseconds> phase(plan_.steps.size());
    std::int32_t at = 0;
    for (std::size_t i = plan_.steps.size(); i > 0; --i) {
      const Came& came = levels_[i - 1][at];
      phase[plan_.steps[i - 1].item] = came.phase * plan_.unit;
      at = came.from;
    }
    const Nanoseconds period = ring_.period * plan_.unit;
    std::vector<Nanoseconds> start = phase;
    std::vector<char> known(plan_.steps.size(), 0);
    for (std::size_t root = 0; root < plan_.steps.size(); ++root) {
      if (std::exchange(known[root], 1)) continue;
      std::vector<int> open = {static_cast<int>(root)};
      while (!open.empty()) {
        const int x = open.back();
        open.pop_back();
        for (const int l : trees_.at[block(x)]) {
          const SweepTrees::Link& link = trees_.links[l];
          const bool forwards = link.from == block(x);
          const int y = x - block(x) + (forwards ? link.to : link.from);
          if (std::exchange(known[y], 1)) continue;
          const Nanoseconds apart = forwards ? phase[y] - phase[x] : phase[x] - phase[y];
          const Nanoseconds total = link.weight + modulo(apart - link.weight, period);
          start[y] = forwards ? start[x] + total : start[x] - total;
          open.push_back(y);
        }
      }
    }
    return start;
  }

  const Instance& in_;
  const SweepTrees& trees_;
  const int unroll_;
  SweepEffort& effort_;
  const SweepSteps plan_;
  const SweepRing& ring_;
  std::size_t width_ = 0;
  std::uint64_t round_ = 0;
  bool cut_off_ = false;
  std::vector<Cost> cost_of_link_;
  std::vector<std::int64_t> price_;
  std::vector<std::vector<Came>> levels_;
  std::vector<Child> children_;
  std::vector<Phase> found_, live_, ahead_, next_ahead_;
  std::vector<Event> events_;
};

SweepBeam::SweepBeam(const Instance& in, const SweepTrees& trees, int unroll, Nanoseconds period,
                     SweepEffort& effort)
    : rounds_(std::make_unique<Rounds>(in, trees, unroll, period, effort)) {}
SweepBeam::~SweepBeam() = default;

std::optional<std::vector<Nanoseconds>> SweepBeam::run(const std::vector<std::int64_t>& price) {
  return rounds_->run(price);
}
bool SweepBeam::cut_off() const { return rounds_->cut_off(); }

}  // namespace ostinato
