#include "search/bounds/feasible.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "search/files/error.h"

namespace ostinato {
namespace {

Bytes needed(const Instance& in, int b) { return std::max<Bytes>(0, in.memory(b)) + in.workspace(b); }

/// What blocks give back on d was taken before (M4), so that no micro-batch ever holds less than nothing
/// there.
bool matched(const Instance& in, const Bounds& bounds, int d) {
  const auto blocks = in.blocks_on(d);
  return !in.limited(d) || bounds.area(d) ||
         std::none_of(blocks.begin(), blocks.end(), [&](int b) { return in.memory(b) < 0; });
}

/// I1 and I2.
void refuse_what_cannot_fit(const Instance& in, const Bounds& bounds, int micro_batches) {
  for (int d = 0; d < in.devices(); ++d) {
    if (!in.limited(d)) continue;
    const std::string& name = in.placement().devices[d].name;
    if (in.room(d) < 0) {
      throw InfeasibleError(fmt::format("device {} ({}): static memory is larger than its memory", d, name));
    }
    __int128 kept = 0;
    for (const int b : in.blocks_on(d)) {
      kept += in.memory(b);
      if (needed(in, b) <= in.room(d) || !matched(in, bounds, d)) continue;
      throw InfeasibleError(
          fmt::format("device {} ({}): block {} alone needs {} bytes, and {} are left beside static memory",
                      d, name, in.placement().blocks[b].name, needed(in, b), in.room(d)));
    }
    if (kept * micro_batches > in.room(d)) {
      throw InfeasibleError(
          fmt::format("device {} ({}): {} micro-batches keep {} bytes each when all is done, and {} are left "
                      "beside static memory",
                      d, name, micro_batches, static_cast<Bytes>(kept), in.room(d)));
    }
  }
}

/// Above so many blocks only the first order is looked at: a set of blocks that have run takes a bit for
/// each.
constexpr int kMostTried = 1 << 12;

/// Depth-first over the sets of blocks that have run; a set is visited once.
class OneMicroBatch {
 public:
  explicit OneMicroBatch(const Instance& in) : in_(in) {
    ran_.assign(static_cast<std::size_t>(in.blocks()), false);
    used_.assign(static_cast<std::size_t>(in.devices()), 0);
    for (int b = 0; b < in.blocks(); ++b) {
      waiting_.push_back(static_cast<int>(in.inputs(b).size()));
      if (waiting_.back() == 0) ready_.insert(place(b));
    }
  }

  bool find() { return in_.blocks() <= kMostTried ? descend() : run_first(); }
  const std::vector<int>& order() const { return order_; }
  bool exhausted() const { return exhausted_; }

 private:
  /// What gives back first, then what takes least.
  using Place = std::tuple<Bytes, int, int>;  ///< memory, rank, block
  Place place(int b) const { return {in_.memory(b), in_.rank(b), b}; }

  bool descend() {
    if (order_.size() == ran_.size()) return true;
    if (seen_.size() >= kFeasibleStates) {
      exhausted_ = false;
      return false;
    }
    if (!seen_.insert(ran_).second) return false;
    const std::vector<Place> next(ready_.begin(), ready_.end());
    for (const auto& [memory, rank, b] : next) {
      if (!fits(b)) continue;
      run(b);
      if (descend()) return true;
      take_back(b);
      // Running what gives back and needs nothing first is never worse.
      if (memory <= 0 && in_.workspace(b) == 0) break;
    }
    return false;
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

}  // namespace

bool memory_in_no_time(const Instance& in) {
  for (int b = 0; b < in.blocks(); ++b) {
    if (in.time(b) == 0 && in.memory(b) != 0) return true;
  }
  return false;
}

std::vector<int> fitting_order(const Instance& in, const Bounds& bounds, int micro_batches) {
  if (!in.any_limited()) return {in.topological().begin(), in.topological().end()};
  refuse_what_cannot_fit(in, bounds, micro_batches);
  OneMicroBatch one(in);
  if (one.find()) return one.order();
  if (one.exhausted() && all_matched(in, bounds) && !memory_in_no_time(in)) {
    throw InfeasibleError("one micro-batch alone fits in no order of its blocks: all orders were tried");
  }
  return {};
}

}  // namespace ostinato
