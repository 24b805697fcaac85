// SPDX-License-Identifier: Apache-2.0
// 1. The blocks on several devices take their phases first, in one of the orders of wide_orders().
// 2. All other items follow in the order of their earliest starts, the longest tail first: each takes the
//    earliest start that has a free phase (slots.h), and never moves again. Micro-batches begin evenly
//    spread, and where that leads to nothing, a beat (schedule/beat.h) apart.
// 3. From the last block back, whatever gives no memory back moves later by whole periods, as far as its
//    followers allow, so that memory is held for a shorter time.
// list_repetend() tries every order forwards and backwards in time, renumbers the micro-batches so that each
// block runs them in order, and keeps the result that fits and holds the least memory. listable() bounds the
// cost: the cube of the items of a device, summed over the devices.
#include "search/repetend/list.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "search/numbers/random.h"
#include "search/repetend/slots.h"
#include "search/schedule/beat.h"

namespace ostinato {
namespace {

/// With a seed one item in so many waits, by a part of the period.
constexpr int kOneWaits = 64;
constexpr int kParts = 16;
/// Of this many orders of wide blocks a seed takes one.
constexpr std::int64_t kSeededOrders = 16;

/// One pass over all items; item = copy * blocks + block.
class ListScheduler {
 public:
  /// The micro-batches begin `apart`.
  ListScheduler(const Instance& in, int unroll, Nanoseconds period, Nanoseconds apart, std::uint64_t seed)
      : in_(in),
        unroll_(unroll),
        period_(period),
        apart_(apart),
        seed_(seed),
        random_(seed),
        slots_(in, unroll, period),
        start_(in.blocks() * unroll, 0),
        phase_(start_.size(), -1),
        waiting_(start_.size(), 0) {}

  /// Starts of all items, or nothing. The blocks of `wide` take their phases first, in this order.
  std::optional<std::vector<Nanoseconds>> run(const std::vector<int>& wide) {
    for (int x = 0; x < items(); ++x) {
      waiting_[x] = static_cast<int>(in_.inputs(block(x)).size());
      start_[x] = copy(x) * apart_;
      if (waiting_[x] == 0) ready_.emplace(start_[x], -in_.tail(block(x)), x);
    }
    for (int copy = 0; copy < unroll_; ++copy) {
      for (const int b : wide) {
        const std::optional<Nanoseconds> phase = slots_.earliest(b, 0);
        if (!phase) return std::nullopt;
        phase_[copy * in_.blocks() + b] = *phase;
        slots_.take(b, *phase);
      }
    }
    while (!ready_.empty()) {
      const int x = std::get<2>(ready_.top());
      ready_.pop();
      if (!place(x)) return std::nullopt;
    }
    take_later();
    return start_;
  }

 private:
  using Ready = std::tuple<Nanoseconds, Nanoseconds, int>;  ///< when, what follows (negative), item

  int items() const { return static_cast<int>(start_.size()); }
  int block(int x) const { return x % in_.blocks(); }
  int copy(int x) const { return x / in_.blocks(); }

  bool place(int x) {
    const int b = block(x);
    if (phase_[x] >= 0) {
      start_[x] += modulo(phase_[x] - start_[x], period_);
    } else {
      const std::optional<Nanoseconds> start = slots_.earliest(b, start_[x]);
      if (!start) return false;
      start_[x] = *start;
      slots_.take(b, modulo(*start, period_));
    }
    for (const Edge& e : in_.followers(b)) {
      const int y = x - b + e.block;
      start_[y] = std::max(start_[y], start_[x] + in_.time(b) + e.transfer);
      if (--waiting_[y] > 0) continue;
      if (seed_ > 0 && random_.below(kOneWaits) == 0) start_[y] += random_.below(kParts) * period_ / kParts;
      ready_.emplace(start_[y], -in_.tail(e.block), y);
    }
    return true;
  }

  /// What gives no memory back runs as many periods later as what follows allows.
  void take_later() {
    const auto order = in_.topological();
    for (auto b = order.rbegin(); b != order.rend(); ++b) {
      if (in_.memory(*b) < 0 || in_.followers(*b).empty()) continue;
      for (int first = 0; first < items(); first += in_.blocks()) {
        Nanoseconds spare = std::numeric_limits<Nanoseconds>::max();
        for (const Edge& e : in_.followers(*b)) {
          spare = std::min(spare, start_[first + e.block] - e.transfer - start_[first + *b] - in_.time(*b));
        }
        start_[first + *b] += spare / period_ * period_;
      }
    }
  }

  const Instance& in_;
  int unroll_;
  Nanoseconds period_, apart_;
  std::uint64_t seed_;
  Random random_;
  Slots slots_;
  std::vector<Nanoseconds> start_;
  std::vector<Nanoseconds> phase_;  ///< of what was placed first; -1: not yet
  std::vector<int> waiting_;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
};

/// Orders of the blocks on several devices: rotations of the circle they lie on change nothing. The last one
/// is empty: they take what they find.
std::vector<std::vector<int>> wide_orders(const Instance& in, std::int64_t most) {
  std::vector<int> wide;
  for (const int b : in.topological()) {
    if (in.devices_of(b).size() > 1) wide.push_back(b);
  }
  if (wide.empty()) return {wide};
  std::vector<int> place(wide.size());
  for (std::size_t i = 0; i < place.size(); ++i) place[i] = static_cast<int>(i);
  std::vector<std::vector<int>> orders;
  do {
    std::vector<int> order;
    for (const int i : place) order.push_back(wide[i]);
    orders.push_back(std::move(order));
  } while (static_cast<std::int64_t>(orders.size()) < most - 1 &&
           std::next_permutation(place.begin() + 1, place.end()));
  orders.emplace_back();
  return orders;
}

/// Starts of a schedule in which time runs backwards, turned round.
void turn_round(const Instance& in, std::vector<Nanoseconds>& start) {
  for (std::size_t x = 0; x < start.size(); ++x) {
    start[x] = -start[x] - in.time(static_cast<int>(x) % in.blocks());
  }
}

bool fits(const Instance& in, const Repetend& r) {
  const std::vector<Bytes> held = held_by(in, r);
  for (int d = 0; d < in.devices(); ++d) {
    if (held[d] > in.room(d)) return false;
  }
  return true;
}

}  // namespace

void number_in_order(const Instance& in, Repetend& r) {
  const int items = static_cast<int>(r.start.size());
  for (int b = 0; b < in.blocks(); ++b) {
    std::vector<Nanoseconds> phases;
    Nanoseconds at = 0;
    for (int x = b; x < items; x += in.blocks()) {
      phases.push_back(modulo(r.start[x], r.period));
      at += (r.start[x] - phases.back()) / r.period;
    }
    std::sort(phases.begin(), phases.end());
    for (int x = b; x < items; x += in.blocks(), ++at) {
      const Nanoseconds among = modulo(at, r.unroll);
      r.start[x] = phases[among] + (at - among) / r.unroll * r.period;
    }
  }
  const Nanoseconds first = *std::min_element(r.start.begin(), r.start.end());
  for (Nanoseconds& s : r.start) s -= first;
}

double list_work(const Instance& in, int unroll) {
  double work = 0;
  for (int d = 0; d < in.devices(); ++d) {
    const double items = static_cast<double>(in.blocks_on(d).size()) * unroll;
    work += items * items * items;
  }
  return work;
}

bool listable(const Instance& in, int unroll) { return list_work(in, unroll) <= 1 << 26; }

std::optional<Repetend> list_repetend(const Instance& in, int unroll, Nanoseconds period,
                                      std::uint64_t seed) {
  std::optional<Repetend> best;
  const Instance mirror = in.reversed();
  const std::int64_t items = static_cast<std::int64_t>(in.blocks()) * unroll;
  auto orders =
      wide_orders(in, seed > 0 ? kSeededOrders : std::max<std::int64_t>(2, kListedItems / (2 * items)));
  if (seed > 0) orders = {orders[seed % orders.size()]};
  const auto list = [&](Nanoseconds apart) {
    for (const std::vector<int>& wide : orders) {
      for (const bool backwards : {false, true}) {
        auto start = ListScheduler(backwards ? mirror : in, unroll, period, apart, seed).run(wide);
        if (!start) continue;
        if (backwards) turn_round(in, *start);
        Repetend r{.period = period, .unroll = unroll, .start = std::move(*start)};
        number_in_order(in, r);
        if (!fits(in, r) || (best && !(memory_of(in, r) < memory_of(in, *best)))) continue;
        best = std::move(r);
      }
    }
  };
  list(period / unroll);
  if (best || unroll == 1) return best;
  if (const Nanoseconds beat = beat_of(in); beat > 0) list(beat);
  return best;
}

}  // namespace ostinato
