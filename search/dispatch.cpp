#include "search/dispatch.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "search/phases.h"

namespace ostinato {
namespace {

class Dispatcher {
 public:
  Dispatcher(const Instance& in, int micro_batches, const DispatchRule& rule)
      : in_(in), n_(micro_batches), rule_(rule) {
    const auto blocks = static_cast<std::size_t>(in.blocks());
    count_.assign(blocks, 0);
    ends_.resize(blocks);
    free_.assign(static_cast<std::size_t>(in.devices()), 0);
    used_.assign(free_.size(), 0);
    left_.assign(static_cast<std::size_t>(micro_batches), in.blocks());
    class_.assign(blocks, 0);
    if (rule.phases) set_classes();
  }

  std::vector<int> run() {
    for (int d = 0; d < in_.devices(); ++d) wake_.push({0, d});
    while (!wake_.empty()) {
      const auto [now, d] = wake_.top();
      wake_.pop();
      while (!wake_.empty() && wake_.top() == std::pair{now, d}) wake_.pop();
      if (free_[d] <= now) serve(d, now);
    }
    if (sequence_.size() != count_.size() * static_cast<std::size_t>(n_)) sequence_.clear();
    return std::move(sequence_);
  }

 private:
  /// The first half of the step first (the second one where time runs backwards), wide blocks before narrow
  /// ones.
  void set_classes() {
    const std::vector<bool> second = second_half(in_.placement());
    for (int b = 0; b < in_.blocks(); ++b) {
      const int later = second[b] != in_.mirrored() ? in_.devices() : 0;
      class_[b] = later - static_cast<int>(in_.devices_of(b).size());
    }
  }

  /// Smaller is sooner.
  std::tuple<int, Nanoseconds, Nanoseconds> urgency(int b) const {
    switch (rule_.priority) {
      case Priority::oldest:
        return {class_[b], count_[b], -in_.tail(b)};
      case Priority::longest:
        return {class_[b], -in_.tail(b), count_[b]};
      case Priority::deepest:
        return {class_[b], in_.followers(b).empty() ? 1 : -in_.head(b), count_[b]};
      case Priority::due:
        return {class_[b], count_[b] * in_.heaviest_load() - in_.tail(b), count_[b]};
    }
    return {};
  }

  /// When the inputs of the next step of b have arrived; -1 while one of them has not started.
  Nanoseconds arrival(int b) const {
    Nanoseconds at = 0;
    for (const Edge& e : in_.inputs(b)) {
      if (count_[e.block] <= count_[b]) return -1;
      at = std::max(at, ends_[e.block][static_cast<std::size_t>(count_[b])] + e.transfer);
    }
    return at;
  }

  bool admitted(int b) const {
    if (count_[b] == n_) return false;
    if (rule_.in_flight > 0 && in_.inputs(b).empty() && count_[b] - finished_ >= rule_.in_flight)
      return false;
    const Bytes needed = std::max<Bytes>(0, in_.memory(b)) + in_.workspace(b);
    const auto devices = in_.devices_of(b);
    return std::all_of(devices.begin(), devices.end(),
                       [&](int d) { return !in_.limited(d) || used_[d] + needed <= in_.room(d); });
  }

  void serve(int d, Nanoseconds now) {
    int best = -1;
    for (const int b : in_.blocks_on(d)) {
      if (!admitted(b)) continue;
      const Nanoseconds at = arrival(b);
      if (at < 0 || at > now) continue;
      if (best < 0 || std::tuple(urgency(b), b) < std::tuple(urgency(best), best)) best = b;
    }
    if (best < 0) return;
    Nanoseconds all_free = now;
    for (const int e : in_.devices_of(best)) all_free = std::max(all_free, free_[e]);
    // The device waits for the others that this block needs, so that it does not starve.
    all_free > now ? wake_.push({all_free, d}) : start(best, now);
  }

  void start(int b, Nanoseconds now) {
    const Nanoseconds end = now + in_.time(b);
    sequence_.push_back(b);
    ends_[b].push_back(end);
    for (const int d : in_.devices_of(b)) {
      free_[d] = end;
      used_[d] += in_.memory(b);
      wake_.push({end, d});
    }
    --left_[static_cast<std::size_t>(count_[b]++)];
    while (finished_ < n_ && left_[static_cast<std::size_t>(finished_)] == 0) {
      ++finished_;
      for (int s = 0; rule_.in_flight > 0 && s < in_.blocks(); ++s) {
        if (in_.inputs(s).empty()) wake_.push({end, in_.devices_of(s).front()});
      }
    }
    for (const Edge& e : in_.followers(b)) wake_.push({end + e.transfer, in_.devices_of(e.block).front()});
  }

  using Wake = std::pair<Nanoseconds, int>;

  const Instance& in_;
  const int n_;
  const DispatchRule rule_;
  std::vector<int> class_;  ///< per block: lower ones go first, whatever the priority
  std::vector<int> count_;
  std::vector<std::vector<Nanoseconds>> ends_;
  std::vector<Nanoseconds> free_;
  std::vector<Bytes> used_;
  std::vector<int> left_;  ///< per micro-batch: blocks that have not started
  int finished_ = 0;       ///< micro-batches of which all blocks have started
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wake_;
  std::vector<int> sequence_;
};

}  // namespace

std::vector<DispatchRule> dispatch_rules(const Instance& in) {
  const int devices = in.devices();
  std::vector<DispatchRule> rules = {
      {Priority::due, 0, true}, {Priority::oldest, 0, true}, {Priority::deepest, 2 * devices, true}};
  for (const int in_flight :
       {0, devices, 2 * devices, devices + (devices + 1) / 2, (devices + 1) / 2, 3 * devices}) {
    for (const Priority p : {Priority::deepest, Priority::oldest, Priority::longest})
      rules.push_back({p, in_flight});
  }
  return rules;
}

std::vector<int> dispatch(const Instance& in, int micro_batches, const DispatchRule& rule) {
  return Dispatcher(in, micro_batches, rule).run();
}

}  // namespace ostinato
