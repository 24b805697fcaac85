// SPDX-License-Identifier: Apache-2.0
// 1. Trees: the links, and which bytes wait with each. The order of the items: blocks on several devices
//    first, then device after device. plan_steps() says for each item what it has to do with those before it.
// 2. run() places item after item: place() makes a child of every state and phase, takes the cheapest, adds
//    what the order on a device costs once it is complete, and keeps one of those that look alike from what
//    is to come. For several micro-batches, whose states are more than a beam can hold, it also adds what the
//    next devices would cost if every item there took the phase nearest to its neighbour's.
// 3. starts() follows the cheapest state back, and the trees from phases to starts.
// 4. find() makes bytes dearer where a device holds too much, and begins again. Where the price of all that
//    is held exceeds that of all room and no state was cut off, nothing fits, and it gives up; it also does
//    where far too much is held at first.
// Where a period has few phases, sets of them are bits of one word.
#include "search/repetend/sweep.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "search/repetend/list.h"
#include "search/repetend/modulo_compress.h"

namespace ostinato {
namespace {

using Cost = __int128;

/// A round may take one part in so many of the work that is left.
constexpr std::int64_t kShares = 2;
constexpr std::int64_t kLeastWidth = 16;
constexpr std::int64_t kMostWidth = 1000;
/// Rounds of prices.
constexpr int kRounds = 6;
constexpr std::int64_t kFirstPrice = 1 << 12;
constexpr std::int64_t kLeastPrice = 1 << 4;
constexpr std::int64_t kMostPrice = 1 << 20;
/// It gives up where, at first, all holds more than the room and one part in so many.
constexpr int kHopeless = 32;
/// A price rises and falls as this power of how much of its room a device holds.
constexpr int kPower = 8;
/// Devices that a look ahead goes through, where the states of all phases are too many.
constexpr std::size_t kAhead = 4;
/// Items up to which a sweep is affordable.
constexpr std::int64_t kMostSwept = 2048;
/// A period has no more phases.
constexpr std::int64_t kMostPhases = 1 << 30;
/// Bytes are rounded to units of which the largest block has about so many.
constexpr Bytes kMostUnits = 1000;

std::int64_t next_price(std::int64_t price, Bytes held, Bytes room) {
  for (int i = 0; i < kPower; ++i) {
    const __int128 next = static_cast<__int128>(price) * held / std::max<Bytes>(1, room);
    price = static_cast<std::int64_t>(std::clamp<__int128>(next, kLeastPrice, kMostPrice));
  }
  return price;
}

/// Wide blocks first, then device after device in the order in which a micro-batch first comes to them.
std::vector<int> order_of_items(const Instance& in, int unroll) {
  std::vector<int> devices;
  std::vector<char> known(in.devices(), 0);
  std::vector<int> items;
  const auto add = [&](int b) {
    for (int copy = 0; copy < unroll; ++copy) items.push_back(copy * in.blocks() + b);
  };
  for (const int b : in.topological()) {
    const auto on = in.devices_of(b);
    if (on.size() > 1) {
      add(b);
    } else if (!std::exchange(known[on.front()], 1)) {
      devices.push_back(on.front());
    }
  }
  for (const int d : devices) {
    for (const int b : in.topological()) {
      if (in.devices_of(b).size() == 1 && in.devices_of(b).front() == d) add(b);
    }
  }
  return items;
}

}  // namespace

/// The edges of the trees, and which bytes each device holds while they wait.
struct Sweeps::Trees {
  Trees(const Instance& in, const Compression& compression);

  struct Link {
    int from, to;
    Nanoseconds weight;
  };
  struct Span {
    int device;
    Bytes bytes;
  };
  std::vector<Link> links;
  std::vector<std::vector<int>> at;        ///< [block]: links that it is an end of
  std::vector<std::vector<Span>> held_by;  ///< [link]
  Bytes unit = 1;                          ///< bytes are counted in these

  Bytes scaled(Bytes bytes) const { return bytes / unit; }
};

Sweeps::Trees::Trees(const Instance& in, const Compression& compression) : at(in.blocks()) {
  for (const Compression::Bridge& b : compression.bridges) {
    for (const int end : {b.from, b.to}) at[end].push_back(static_cast<int>(links.size()));
    links.push_back({b.from, b.to, b.weight});
  }
  held_by.resize(links.size());
  Bytes divisor = 0, most = 0;
  for (int b = 0; b < in.blocks(); ++b) {
    divisor = std::gcd(divisor, in.memory(b));
    most = std::max(most, std::abs(in.memory(b)));
  }
  unit = std::max({Bytes{1}, divisor, most / kMostUnits});
  std::vector<std::vector<std::size_t>> taken(in.blocks());
  for (std::size_t m = 0; m < compression.matches.size(); ++m)
    taken[compression.matches[m].take].push_back(m);
  std::vector<int> through(in.blocks());  // link from which the walk came
  std::vector<int> open;
  for (int a = 0; a < in.blocks(); ++a) {
    if (taken[a].empty()) continue;
    std::fill(through.begin(), through.end(), -1);
    open = {a};
    while (!open.empty()) {
      const int b = open.back();
      open.pop_back();
      for (const int l : at[b]) {
        if (links[l].from != b) continue;
        through[links[l].to] = l;
        open.push_back(links[l].to);
      }
    }
    for (const std::size_t m : taken[a]) {
      const Compression::Match& match = compression.matches[m];
      if (!in.limited(match.device)) continue;
      for (int c = match.give; c != a; c = links[through[c]].from)
        held_by[through[c]].push_back({match.device, scaled(match.bytes)});
    }
  }
}

/// One period.
class Sweeps::Sweep {
 public:
  Sweep(const Instance& in, const Trees& trees, int unroll, Nanoseconds period, SweepEffort& effort)
      : in_(in),
        trees_(trees),
        unroll_(unroll),
        effort_(effort),
        order_(order_of_items(in, unroll)),
        step_(period) {
    for (int b = 0; b < in.blocks(); ++b) step_ = std::gcd(step_, in.time(b));
    for (const Trees::Link& link : trees.links) step_ = std::gcd(step_, link.weight);
    period_ = period / step_;
    if (period_ > kMostPhases) return;
    if (on_grid()) all_ = (std::uint64_t{1} << period_) - 1;
    plan_steps();
    std::int64_t each = 0;  // work of a state in all steps
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const std::size_t phases = steps_[i].neighbours.size() + 2 * steps_[i].shared.size() + 1;
      each += period_ <= kGrid ? period_ : static_cast<std::int64_t>(phases);
      each += static_cast<std::int64_t>(kLookedAt * (steps_[i].ahead - i));
    }
    width_ = static_cast<std::size_t>(
        std::clamp<std::int64_t>(effort.work / kShares / each, kLeastWidth, kMostWidth));
  }

  /// With these prices of a byte on each device.
  std::optional<std::vector<Nanoseconds>> run(const std::vector<std::int64_t>& price) {
    if (period_ > kMostPhases) return std::nullopt;
    price_links(price);
    price_ = price;
    ++round_;
    cut_off_ = false;
    levels_.clear();
    Level level;
    level.cost = {0};
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const bool stopped = effort_.stop && effort_.stop();
      cut_off_ = cut_off_ || stopped;
      if (stopped || !place(i, level)) return std::nullopt;
    }
    return starts();
  }

  /// The last run did not look at all phases: others may cost less.
  bool cut_off() const { return cut_off_; }

 private:
  using Phase = std::int32_t;
  struct Came {
    std::int32_t from;  ///< state of the level before
    Phase phase;        ///< of the item that was placed
  };
  struct Level {
    std::vector<Cost> cost;
    std::vector<Phase> phases;  ///< [state * live + i]: of the live items
  };
  struct Neighbour {
    int live;
    Phase weight;  ///< of the link; modulo the period
    int link;
    bool before;  ///< the neighbour is the input
  };
  struct Shared {
    int live;
    Phase time;
    std::uint64_t blocked = 0;  ///< phases at which they would meet, where this one has phase 0 (on a grid)
  };
  /// What placing one item looks at: indices of live items.
  struct Step {
    Phase time;
    std::vector<Neighbour> neighbours;
    std::vector<Shared> shared;  ///< live items with a device in common
    std::vector<int> kept;       ///< live items that stay so; -1: the new one
    std::vector<int> live;       ///< items, before this step
    std::vector<int> done;       ///< devices that are complete
    std::size_t ahead;           ///< a look ahead ends before this step
    int copy = -1;               ///< of the first block
  };
  struct Child {
    Cost cost;
    Cost value;
    std::uint32_t lot;  ///< which of equals comes first
    std::int32_t state;
    Phase phase;
  };

  int block(int x) const { return x % in_.blocks(); }
  Phase ring(std::int64_t value) const {
    const std::int64_t left = value % period_;
    return static_cast<Phase>(left < 0 ? left + period_ : left);
  }
  /// The same of what is between -period and period.
  Phase near(Phase value) const { return value < 0 ? value + static_cast<Phase>(period_) : value; }

  /// The order of children of equal value: another one in each round.
  std::uint32_t lot(std::size_t state, Phase phase) const {
    std::uint64_t mixed =
        (round_ << 48) + (static_cast<std::uint64_t>(state) << 32) + static_cast<std::uint64_t>(phase) + 1;
    mixed *= 0x9E3779B97F4A7C15ULL;
    mixed ^= mixed >> 31;
    return static_cast<std::uint32_t>((mixed * 0xBF58476D1CE4E5B9ULL) >> 32);
  }

  bool on_grid() const { return period_ <= kGrid; }
  /// The phases that are in a set, so much later.
  std::uint64_t turned(std::uint64_t phases, Phase by) const {
    return ((phases << by) | (phases >> (period_ - by))) & all_;
  }
  /// Starts of a block of time x that meets one of time y at phase 0.
  std::uint64_t blocked(std::int64_t x, std::int64_t y) const {
    if (!on_grid()) return 0;
    return x + y > period_ ? all_ : turned((std::uint64_t{1} << (x + y - 1)) - 1, ring(1 - x));
  }
  /// Of the phases of live items.
  std::uint64_t free_phases(const Step& step, const Phase* phases) const {
    std::uint64_t taken = 0;
    for (const Shared& y : step.shared) taken |= turned(y.blocked, phases[y.live]);
    return ~taken & all_;
  }

  bool share(int x, int y) const {
    for (const int d : in_.devices_of(block(x))) {
      for (const int e : in_.devices_of(block(y))) {
        if (d == e) return true;
      }
    }
    return false;
  }

  void plan_steps() {
    const int items = static_cast<int>(order_.size());
    std::vector<int> place(items);
    for (int i = 0; i < items; ++i) place[order_[i]] = i;
    std::vector<int> last_on(in_.devices(), -1), last_use(items, -1);
    for (int i = 0; i < items; ++i) {
      for (const int d : in_.devices_of(block(order_[i]))) last_on[d] = i;
    }
    for (int i = 0; i < items; ++i) {
      const int x = order_[i];
      for (const int d : in_.devices_of(block(x))) last_use[i] = std::max(last_use[i], last_on[d]);
      for (const int l : trees_.at[block(x)]) {
        const Trees::Link& link = trees_.links[l];
        const int other = x - block(x) + (link.from == block(x) ? link.to : link.from);
        last_use[i] = std::max(last_use[i], place[other]);
      }
    }
    std::vector<int> live;
    std::vector<std::size_t> ends;
    steps_.resize(items);
    for (int i = 0; i < items; ++i) {
      Step& step = steps_[i];
      step.live = live;
      const int x = order_[i];
      step.time = static_cast<Phase>(in_.time(block(x)) / step_);
      if (block(x) == block(order_.front())) step.copy = x / in_.blocks();
      for (std::size_t j = 0; j < live.size(); ++j) {
        const int y = live[j];
        if (share(x, y)) {
          const auto time = static_cast<Phase>(in_.time(block(y)) / step_);
          step.shared.push_back({static_cast<int>(j), time, blocked(step.time, time)});
        }
        if (y - block(y) != x - block(x)) continue;
        for (const int l : trees_.at[block(x)]) {
          const Trees::Link& link = trees_.links[l];
          if (link.from != block(y) && link.to != block(y)) continue;
          step.neighbours.push_back(
              {static_cast<int>(j), ring(link.weight / step_), l, link.from == block(y)});
        }
      }
      std::vector<int> next;
      for (std::size_t j = 0; j < live.size(); ++j) {
        if (last_use[place[live[j]]] <= i) continue;
        step.kept.push_back(static_cast<int>(j));
        next.push_back(live[j]);
      }
      if (last_use[i] > i) {
        step.kept.push_back(-1);
        next.push_back(x);
      }
      for (const int d : in_.devices_of(block(x))) {
        if (last_on[d] == i) step.done.push_back(d);
      }
      if (!step.done.empty()) ends.push_back(i + 1);
      live = std::move(next);
    }
    for (int i = 0; i < items; ++i) {
      const auto end = std::upper_bound(ends.begin(), ends.end(), static_cast<std::size_t>(i + 1));
      const auto left = static_cast<std::size_t>(ends.end() - end);
      const std::size_t far = std::min<std::size_t>(left, unroll_ > 1 ? kAhead : 0);
      steps_[i].ahead = far == 0 ? i + 1 : *(end + (far - 1));
    }
  }

  /// The phase of a copy of the first block: evenly spread at first, a little off in later rounds.
  Phase apart(int copy, Phase time) const {
    if (copy == 0) return 0;
    const std::int64_t spare = on_grid() ? period_ / unroll_ - time : 0;
    const std::int64_t off = static_cast<std::int64_t>(round_ / 2) * (round_ % 2 == 0 ? 1 : -1);
    return ring(period_ * copy / unroll_ + std::clamp(off, -spare, spare));
  }

  void price_links(const std::vector<std::int64_t>& price) {
    cost_of_link_.assign(trees_.links.size(), 0);
    for (std::size_t l = 0; l < trees_.links.size(); ++l) {
      for (const Trees::Span& span : trees_.held_by[l]) cost_of_link_[l] += span.bytes * price[span.device];
    }
  }

  /// Phases that the item may take: all of a coarse grid, else where something begins or ends.
  void candidates(const Step& step, const Phase* phases) {
    found_.clear();
    if (step.copy >= 0) {
      found_.push_back(apart(step.copy, step.time));
      return;
    }
    if (on_grid()) {
      for (std::uint64_t left = free_phases(step, phases); left != 0; left &= left - 1)
        found_.push_back(std::countr_zero(left));
      return;
    }
    for (const Neighbour& n : step.neighbours) found_.push_back(undelayed(n, phases));
    for (const Shared& y : step.shared) {
      found_.push_back(ring(std::int64_t{phases[y.live]} + y.time));
      found_.push_back(ring(std::int64_t{phases[y.live]} - step.time));
    }
    if (found_.empty()) found_.push_back(0);
    std::sort(found_.begin(), found_.end());
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    for (const Shared& y : step.shared) {
      std::size_t kept = 0;
      for (const Phase p : found_) {
        const Phase after = near(p - phases[y.live]);
        if (after >= y.time && after + step.time <= period_) found_[kept++] = p;
      }
      found_.resize(kept);
    }
  }

  /// The phase at which the link to a neighbour does not wait.
  Phase undelayed(const Neighbour& n, const Phase* phases) const {
    return near(n.before ? phases[n.live] - static_cast<Phase>(period_) + n.weight
                         : phases[n.live] - n.weight);
  }

  Cost waiting(const Step& step, const Phase* phases, Phase phase) const {
    Cost cost = 0;
    for (const Neighbour& n : step.neighbours) {
      const Phase apart = near(n.before ? phase - phases[n.live] : phases[n.live] - phase);
      cost += cost_of_link_[n.link] * near(apart - n.weight);
    }
    return cost;
  }

  /// Where an item waits least for its first neighbour: after it, or before. Absent: nowhere.
  std::optional<Phase> nearest(const Step& step, const Phase* phases) const {
    const bool later = step.neighbours.empty() || step.neighbours.front().before;
    Phase phase = step.neighbours.empty() ? 0 : undelayed(step.neighbours.front(), phases);
    if (on_grid()) {
      const std::uint64_t free = free_phases(step, phases);
      if (free == 0) return std::nullopt;
      const auto last = static_cast<Phase>(period_ - 1);
      if (later) return ring(phase + std::countr_zero(turned(free, phase == 0 ? 0 : last + 1 - phase)));
      return ring(phase + 63 - std::countl_zero(turned(free, last - phase)) - last);
    }
    for (std::size_t tries = 0; tries <= step.shared.size(); ++tries) {
      const auto met = std::find_if(step.shared.begin(), step.shared.end(), [&](const Shared& y) {
        const Phase after = near(phase - phases[y.live]);
        return after < y.time || after + step.time > period_;
      });
      if (met == step.shared.end()) return phase;
      phase = ring(std::int64_t{phases[met->live]} + (later ? met->time : -step.time));
    }
    return std::nullopt;
  }

  /// What the next devices cost, each item where it waits least.
  Cost look_ahead(std::size_t i, const std::vector<Phase>& live) {
    Cost cost = 0;
    ahead_ = live;
    for (std::size_t next = i + 1; next < steps_[i].ahead; ++next) {
      const Step& step = steps_[next];
      const std::optional<Phase> phase = nearest(step, ahead_.data());
      if (phase) {
        cost += waiting(step, ahead_.data(), *phase);
      } else if (!step.neighbours.empty()) {
        cost += cost_of_link_[step.neighbours.front().link] * period_;
      }
      next_ahead_.clear();
      for (const int j : step.kept) next_ahead_.push_back(j < 0 ? phase.value_or(0) : ahead_[j]);
      std::swap(ahead_, next_ahead_);
    }
    return cost;
  }

  bool place(std::size_t i, Level& level) {
    const Step& step = steps_[i];
    const std::size_t live = step.live.size();
    children_.clear();
    for (std::size_t s = 0; s < level.cost.size(); ++s) {
      const Phase* phases = level.phases.data() + s * live;
      candidates(step, phases);
      effort_.work -= static_cast<std::int64_t>(found_.size());
      for (const Phase phase : found_) {
        const Cost cost = level.cost[s] + waiting(step, phases, phase);
        children_.push_back({cost, cost, lot(s, phase), static_cast<std::int32_t>(s), phase});
      }
    }
    const auto cheaper = [](const Child& a, const Child& b) {
      return std::tie(a.value, a.lot, a.state, a.phase) < std::tie(b.value, b.lot, b.state, b.phase);
    };
    const std::size_t looked_at = std::min<std::size_t>(children_.size(), kLookedAt * width_);
    if (looked_at < children_.size())
      std::nth_element(children_.begin(), children_.begin() + looked_at, children_.end(), cheaper);
    cut_off_ = cut_off_ || looked_at < children_.size();
    children_.resize(looked_at);
    for (Child& child : children_) {
      const Phase* phases = level.phases.data() + child.state * live;
      for (const int d : step.done) {
        if (in_.limited(d)) child.cost += price_[d] * above_mean(step, order_[i], phases, child.phase, d);
      }
      live_.clear();
      for (const int j : step.kept) live_.push_back(j < 0 ? child.phase : phases[j]);
      child.value = child.cost + look_ahead(i, live_);
    }
    effort_.work -= static_cast<std::int64_t>(looked_at * (step.ahead - i));
    std::sort(children_.begin(), children_.end(), cheaper);
    Level next;
    std::vector<Came> came;
    std::unordered_set<std::uint64_t> known;
    for (const Child& child : children_) {
      const Phase* phases = level.phases.data() + child.state * live;
      const std::size_t begin = next.phases.size();
      for (const int j : step.kept) next.phases.push_back(j < 0 ? child.phase : phases[j]);
      std::uint64_t hash = 0;
      for (std::size_t j = begin; j < next.phases.size(); ++j) {
        hash ^= static_cast<std::uint64_t>(near(next.phases[j] - next.phases[begin])) + 1;
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

  /// By how much the most that device d holds is above the mean, times the period.
  Cost above_mean(const Step& step, int x, const Phase* phases, Phase phase, int d) {
    events_.clear();
    const auto add = [&](int item, Phase at) {
      const Bytes change = trees_.scaled(in_.memory(block(item)));
      if (change > 0) events_.push_back({at, 1, change});
      if (change < 0) events_.push_back({ring(at + in_.time(block(item)) / step_ - 1) + 1, 0, change});
    };
    add(x, phase);
    for (const Shared& y : step.shared) {
      const auto on = in_.devices_of(block(step.live[y.live]));
      if (std::find(on.begin(), on.end(), d) != on.end()) add(step.live[y.live], phases[y.live]);
    }
    std::sort(events_.begin(), events_.end());
    Cost held = 0, most = 0, sum = 0;
    for (const Event& e : events_) {
      held += e.change;
      most = std::max(most, held);
      sum += e.change * (period_ - e.at);
    }
    return most * period_ - sum;
  }

  std::vector<Nanoseconds> starts() const {
    std::vector<Nanoseconds> phase(order_.size());
    std::int32_t at = 0;
    for (std::size_t i = order_.size(); i > 0; --i) {
      const Came& came = levels_[i - 1][at];
      phase[order_[i - 1]] = came.phase * step_;
      at = came.from;
    }
    const Nanoseconds period = period_ * step_;
    std::vector<Nanoseconds> start = phase;
    std::vector<char> known(order_.size(), 0);
    for (std::size_t root = 0; root < order_.size(); ++root) {
      if (std::exchange(known[root], 1)) continue;
      std::vector<int> open = {static_cast<int>(root)};
      while (!open.empty()) {
        const int x = open.back();
        open.pop_back();
        for (const int l : trees_.at[block(x)]) {
          const Trees::Link& link = trees_.links[l];
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

  struct Event {
    Phase at;
    int takes;
    Bytes change;
    friend auto operator<=>(const Event&, const Event&) = default;
  };

  static constexpr std::int64_t kGrid = 63;
  static constexpr std::size_t kLookedAt = 3;

  const Instance& in_;
  const Trees& trees_;
  int unroll_;
  SweepEffort& effort_;
  std::size_t width_ = 0;
  std::uint64_t round_ = 0;
  bool cut_off_ = false;
  std::vector<int> order_;
  Nanoseconds step_;         ///< unit of all phases
  std::int64_t period_ = 0;  ///< in steps
  std::uint64_t all_ = 0;    ///< all phases of a grid
  std::vector<Step> steps_;
  std::vector<Cost> cost_of_link_;
  std::vector<std::int64_t> price_;
  std::vector<std::vector<Came>> levels_;
  std::vector<Child> children_;
  std::vector<Phase> found_, live_, ahead_, next_ahead_;
  std::vector<Event> events_;
};

Sweeps::Sweeps(const Instance& in) : in_(in) {
  if (!in.any_limited() || in.blocks() > kMostSwept) return;
  for (int b = 0; b < in.blocks(); ++b) {
    if (in.time(b) == 0) return;
  }
  const Compression compression = compress(in);
  const std::size_t linked = compression.bridges.size() + compression.anchors.size();
  if (compression.balanced && linked == static_cast<std::size_t>(in.blocks()))
    trees_ = std::make_unique<Trees>(in, compression);
}

Sweeps::~Sweeps() = default;

bool Sweeps::apply(int unroll) const {
  return trees_ && static_cast<std::int64_t>(in_.blocks()) * unroll <= kMostSwept;
}

Nanoseconds Sweeps::grid() const {
  Nanoseconds grid = in_.time(0);
  for (int b = 0; b < in_.blocks(); ++b) grid = std::gcd(grid, in_.time(b));
  for (const Trees::Link& link : trees_->links) grid = std::gcd(grid, link.weight);
  return grid;
}

std::optional<Repetend> Sweeps::find(int unroll, Nanoseconds period, SweepEffort& effort) const {
  Sweep sweep(in_, *trees_, unroll, period, effort);
  std::vector<std::int64_t> price(in_.devices(), kFirstPrice);
  for (int round = 0; round < kRounds && effort.work > 0 && !(effort.stop && effort.stop()); ++round) {
    std::optional<std::vector<Nanoseconds>> start = sweep.run(price);
    if (!start && sweep.cut_off()) continue;
    if (!start) return std::nullopt;
    Repetend r;
    r.period = period;
    r.unroll = unroll;
    r.start = std::move(*start);
    number_in_order(in_, r);
    const std::vector<Bytes> held = held_by(in_, r);
    bool fits = true;
    Cost room = 0, over = 0;  // by how much the price of all that is held exceeds that of all room
    for (int d = 0; d < in_.devices(); ++d) {
      if (!in_.limited(d)) continue;
      const Bytes more = held[d] - in_.room(d);
      fits = fits && more <= 0;
      room += static_cast<Cost>(in_.room(d)) * price[d];
      over += static_cast<Cost>(more) * price[d];
      price[d] = next_price(price[d], held[d], in_.room(d));
    }
    if (fits) return r;
    const bool hopeless = round == 0 && over > room / kHopeless;
    if (hopeless || (over > 0 && !sweep.cut_off())) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace ostinato
