// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/feasible.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

Bytes needed(const Instance& in, int b) { return std::max<Bytes>(0, in.memory(b)) + in.workspace(b); }

/// What blocks give back on d was taken before (M3), so that no micro-batch ever holds less than nothing
/// there.
bool matched(const Instance& in, const Bounds& bounds, int d) { return !in.limited(d) || bounds.held()[d]; }

/// The blocks from which a path leads to `to`, itself included. O(edges).
std::vector<bool> leading_to(const Instance& in, int to) {
  std::vector<bool> leads(in.blocks(), false);
  leads[to] = true;
  for (int rank = in.rank(to); rank >= 0; --rank) {
    const int b = in.topological()[rank];
    for (const Edge& e : in.inputs(b)) leads[e.block] = leads[e.block] || leads[b];
  }
  return leads;
}

/// I1 on one device: the first block during which one micro-batch holds more than the room, or "".
std::string too_much_at_once(const Instance& in, const std::vector<Held>& held, int d) {
  std::vector<__int128> needed(in.blocks(), 0);
  for (const int b : in.blocks_on(d)) needed[b] = in.workspace(b);
  for (const Held& h : held) {
    const std::vector<Nanoseconds> after = distances_from(in, h.taker);
    const std::vector<bool> before =
        h.giver < 0 ? std::vector<bool>(after.size(), true) : leading_to(in, h.giver);
    for (const int b : in.blocks_on(d)) needed[b] += after[b] >= 0 && before[b] ? h.bytes : 0;
  }
  for (const int b : in.blocks_on(d)) {
    // What takes and gives back at one instant holds nothing after it.
    if (in.time(b) == 0 || needed[b] <= in.room(d)) continue;
    const auto [wanted, left] = format_apart(static_cast<Bytes>(needed[b]), in.room(d));
    return fmt::format(
        "while block {} runs, its micro-batch alone needs {}, but static memory leaves only {}",
        in.placement().blocks[b].name, wanted, left);
  }
  return "";
}

/// Above this many blocks only the first order is looked at: a set of blocks that have run takes a bit for
/// each.
constexpr int kMostTried = 1 << 12;

/// Depth-first over the sets of blocks that have run; a set is visited once.
class OneMicroBatch {
 public:
  explicit OneMicroBatch(const Instance& in) : in_(in) {
    ran_.assign(in.blocks(), false);
    used_.assign(in.devices(), 0);
    for (int b = 0; b < in.blocks(); ++b) {
      waiting_.push_back(static_cast<int>(in.inputs(b).size()));
      if (waiting_.back() == 0) ready_.insert(place(b));
    }
  }

  bool find() { return in_.blocks() <= kMostTried ? try_all() : run_first(); }
  const std::vector<int>& order() const { return order_; }
  bool exhausted() const { return exhausted_; }

 private:
  /// What gives back first, then what takes least.
  using Place = std::tuple<Bytes, int, int>;  ///< memory, rank, block
  Place place(int b) const { return {in_.memory(b), in_.rank(b), b}; }

  /// What may run after a set of blocks has; those before `tried` were.
  struct Choices {
    std::vector<Place> blocks;
    std::size_t tried = 0;
  };

  /// The path is kept here: it is as long as there are blocks, more than a thread's stack may hold.
  bool try_all() {
    std::vector<Choices> path;
    if (enter()) path.push_back(choices());
    while (!path.empty() && order_.size() < ran_.size()) {
      if (const int b = next(path.back()); b < 0) {
        path.pop_back();
        if (!path.empty()) take_back(order_.back());
      } else {
        run(b);
        if (order_.size() == ran_.size()) break;
        if (enter())
          path.push_back(choices());
        else
          take_back(b);
      }
    }
    return order_.size() == ran_.size();
  }

  /// False: no order is to be looked for from here.
  bool enter() {
    if (seen_.size() >= kFeasibleStates) {
      exhausted_ = false;
      return false;
    }
    return seen_.insert(ran_).second;
  }

  Choices choices() const { return {{ready_.begin(), ready_.end()}}; }

  /// The next one that fits; -1: none is left.
  int next(Choices& choices) const {
    while (choices.tried < choices.blocks.size()) {
      const auto [memory, rank, b] = choices.blocks[choices.tried++];
      if (!fits(b)) continue;
      // Running what gives back and needs nothing first is never worse.
      if (memory <= 0 && in_.workspace(b) == 0) choices.tried = choices.blocks.size();
      return b;
    }
    return -1;
  }

  /// Always the first that fits. O(blocks * (log blocks + what is ready and does not fit)).
  bool run_first() {
    exhausted_ = false;
    std::int64_t looked_at = 0;
    while (order_.size() < ran_.size() && looked_at <= kMostLookedAt) {
      const auto next = std::find_if(ready_.begin(), ready_.end(), [&](const Place& p) {
        ++looked_at;
        return fits(std::get<2>(p));
      });
      if (next == ready_.end()) return false;
      run(std::get<2>(*next));
    }
    return order_.size() == ran_.size();
  }

  bool fits(int b) const {
    const auto devices = in_.devices_of(b);
    return std::all_of(devices.begin(), devices.end(),
                       [&](int d) { return !in_.limited(d) || used_[d] + needed(in_, b) <= in_.room(d); });
  }

  void run(int b) {
    ran_[b] = true;
    order_.push_back(b);
    ready_.erase(place(b));
    for (const int d : in_.devices_of(b)) used_[d] += in_.memory(b);
    for (const Edge& e : in_.followers(b)) {
      if (--waiting_[e.block] == 0) ready_.insert(place(e.block));
    }
  }

  void take_back(int b) {
    ran_[b] = false;
    order_.pop_back();
    ready_.insert(place(b));
    for (const int d : in_.devices_of(b)) used_[d] -= in_.memory(b);
    for (const Edge& e : in_.followers(b)) {
      if (waiting_[e.block]++ == 0) ready_.erase(place(e.block));
    }
  }

  static constexpr std::int64_t kMostLookedAt = 1 << 26;

  const Instance& in_;
  std::vector<bool> ran_;
  std::vector<Bytes> used_;
  std::vector<int> waiting_;
  std::set<Place> ready_;
  std::vector<int> order_;
  std::set<std::vector<bool>> seen_;
  bool exhausted_ = true;
};

bool all_matched(const Instance& in, const Bounds& bounds) {
  for (int d = 0; d < in.devices(); ++d) {
    if (!matched(in, bounds, d)) return false;
  }
  return true;
}

/// Why no schedule exists (I1, I2), or "". O(pairs of the matchings * (blocks + edges)).
std::string what_cannot_fit(const Instance& in, const Bounds& bounds, int micro_batches) {
  for (int d = 0; d < in.devices(); ++d) {
    if (!in.limited(d)) continue;
    const std::string device = fmt::format("device {} ({}): ", d, in.placement().devices[d].name);
    if (in.room(d) < 0) return device + "static memory is larger than its memory";
    if (bounds.held()[d]) {
      const std::string reason = too_much_at_once(in, *bounds.held()[d], d);
      if (!reason.empty()) return device + reason;
    }
    const __int128 kept = left_behind(in, d);
    if (kept * micro_batches <= in.room(d)) continue;
    return device + fmt::format("{}: each keeps {} to the end, but static memory leaves only {}",
                                counted(micro_batches, "micro-batch"),
                                format_memory(static_cast<Bytes>(kept)), format_memory(in.room(d)));
  }
  return "";
}

}  // namespace

__int128 left_behind(const Instance& in, int d) {
  __int128 left = 0;
  for (const int b : in.blocks_on(d)) left += in.memory(b);
  return left;
}

bool memory_in_no_time(const Instance& in) {
  for (int b = 0; b < in.blocks(); ++b) {
    if (in.time(b) == 0 && in.memory(b) != 0) return true;
  }
  return false;
}

std::vector<int> fitting_order(const Instance& in, const Bounds& bounds, int micro_batches) {
  if (!in.any_limited()) return {in.topological().begin(), in.topological().end()};
  if (const std::string reason = what_cannot_fit(in, bounds, micro_batches); !reason.empty())
    throw InfeasibleError(reason);
  OneMicroBatch one(in);
  if (one.find()) return one.order();
  if (one.exhausted() && all_matched(in, bounds) && !memory_in_no_time(in)) {
    throw InfeasibleError(
        "not even one micro-batch fits, in any order of its blocks (all orders were tried)");
  }
  return {};
}

}  // namespace ostinato
