// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/dispatch.h"

#include <algorithm>
#include <tuple>

#include "search/placement/phases.h"
#include "search/schedule/dispatch_clock.h"
#include "search/schedule/ready_steps.h"

namespace ostinato {
namespace {

class Dispatcher {
 public:
  Dispatcher(const Instance& in, int micro_batches, const DispatchRule& rule,
             const std::function<bool()>& stop)
      : in_(in), rule_(rule), stop_(stop), clock_(in, micro_batches), ready_(clock_, in.devices()) {
    left_.assign(micro_batches, in.blocks());
    class_.assign(in.blocks(), 0);
    if (rule.span > 0) done_by_.assign(in.devices(), kNotBegun);
    if (rule.phases) set_classes();
    most_looked_at_ = kLookedAt + kLookedAtStep * static_cast<std::int64_t>(in.blocks()) *
                                      static_cast<std::int64_t>(micro_batches);
  }

  std::vector<int> run() {
    clock_.run([this](int d, Nanoseconds now) { serve(d, now); });
    std::vector<int> sequence;
    for (const ScheduledBlock& step : clock_.take_schedule()) sequence.push_back(step.block);
    return sequence;
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

  using Urgency = std::tuple<int, Nanoseconds, Nanoseconds>;  ///< smaller is sooner

  Urgency urgency(int b) const {
    const Nanoseconds next = clock_.count(b);
    switch (rule_.priority) {
      case Priority::oldest:
        return {class_[b], next, -in_.tail(b)};
      case Priority::longest:
        return {class_[b], -in_.tail(b), next};
      case Priority::deepest:
        return {class_[b], in_.followers(b).empty() ? 1 : -in_.head(b), next};
      case Priority::due:
        return {class_[b], next * in_.heaviest_load() - in_.tail(b), next};
    }
    return {};
  }

  /// A micro-batch may not begin yet.
  bool held_back(int b) const {
    return rule_.in_flight > 0 && in_.inputs(b).empty() && clock_.count(b) - finished_ >= rule_.in_flight;
  }

  void serve(int d, Nanoseconds now) {
    if (ready_.looked_at() > most_looked_at_ || (++served_ % kServedAtOnce == 0 && stop_ && stop_()))
      return clock_.give_up();
    clock_.take_arrived(d, now, [&](int b) {
      held_back(b) ? held_.push_back({d, b, clock_.count(b)}) : add(d, b);
    });
    const int best =
        ready_.first(d, [&](int b, const Urgency&) { return clock_.fits(b) && in_time(b, now) == now; });
    if (best < 0) return wake_at_beat(d, now);
    if (waits(d, best, now)) return;
    if (clock_.start_when_free(best, d, now)) {
      if (rule_.span > 0) begin_devices(best, now);
      started(clock_.count(best) - 1, now + in_.time(best));
    }
  }

  /// When the next step of b may start, if it could from `at` on.
  Nanoseconds in_time(int b, Nanoseconds at) const {
    return rule_.beat > 0 && in_.inputs(b).empty() ? (at + rule_.beat - 1) / rule_.beat * rule_.beat : at;
  }

  void wake_at_beat(int d, Nanoseconds now) {
    if (rule_.beat == 0) return;
    for (const int b : in_.blocks_on(d)) {
      if (in_.inputs(b).empty() && !clock_.ended(b) && !held_back(b) && clock_.fits(b))
        clock_.wake(d, in_time(b, now + 1));
    }
  }

  /// The device waits for a step that the rule wants before `best` and that arrives before that one would
  /// end.
  bool waits(int d, int best, Nanoseconds now) {
    if (rule_.span == 0 || done_by_[d] == kNotBegun) return false;
    const Nanoseconds latest = done_by_[d] - left_on(d);
    Nanoseconds until = now + in_.time(best);
    int awaited = -1;
    for (const int b : in_.blocks_on(d)) {
      if (clock_.ended(b) || !clock_.fits(b)) continue;
      const Nanoseconds arrival = clock_.arrival(b);
      const Nanoseconds at = arrival == DispatchClock::kNever ? arrival : in_time(b, std::max(arrival, now));
      if (at <= now || at >= until || at > latest || urgency(b) >= urgency(best)) continue;
      until = at;
      awaited = b;
    }
    if (awaited >= 0) clock_.wake(d, until);
    return awaited >= 0;
  }

  Nanoseconds left_on(int d) const {
    Nanoseconds left = 0;
    for (const int b : in_.blocks_on(d)) left += in_.time(b) * (clock_.micro_batches() - clock_.count(b));
    return left;
  }

  void begin_devices(int b, Nanoseconds now) {
    for (const int d : in_.devices_of(b))
      if (done_by_[d] == kNotBegun) done_by_[d] = now + rule_.span;
  }

  void add(int d, int b) { ready_.add(d, urgency(b), b, clock_.count(b)); }

  void started(int micro_batch, Nanoseconds end) {
    --left_[micro_batch];
    const int before = finished_;
    while (finished_ < clock_.micro_batches() && left_[finished_] == 0) ++finished_;
    if (finished_ == before) return;
    std::erase_if(held_, [&](const Held& held) {
      if (clock_.count(held.block) != held.micro_batch) return true;
      if (held_back(held.block)) return false;
      add(held.device, held.block);
      clock_.wake(in_.devices_of(held.block).front(), end);
      return true;
    });
  }

  struct Held {
    int device;
    int block;  ///< without inputs
    int micro_batch;
  };

  /// What memory does not admit is looked at again and again; so much of it, and so much a step, is enough.
  static constexpr std::int64_t kLookedAt = 1 << 24;
  static constexpr std::int64_t kLookedAtStep = 64;
  static constexpr std::int64_t kServedAtOnce = 1 << 14;
  static constexpr Nanoseconds kNotBegun = -1;

  const Instance& in_;
  const DispatchRule rule_;
  const std::function<bool()>& stop_;
  DispatchClock clock_;
  ReadySteps<Urgency> ready_;
  std::vector<Held> held_;
  std::vector<int> class_;            ///< per block: lower ones go first, whatever the priority
  std::vector<int> left_;             ///< per micro-batch: blocks that have not started
  std::vector<Nanoseconds> done_by_;  ///< per device, where the rule has a span
  int finished_ = 0;                  ///< micro-batches with all blocks started
  std::int64_t served_ = 0;
  std::int64_t most_looked_at_;
};

}  // namespace

std::vector<DispatchRule> dispatch_rules(const Instance& in) {
  const int devices = in.devices();
  std::vector<DispatchRule> rules = {{Priority::due, 0, true}, {Priority::oldest, 0, true}};
  for (const int in_flight : {devices, 2 * devices}) {
    for (const Priority p : {Priority::due, Priority::deepest}) rules.push_back({p, in_flight, true});
  }
  for (const int in_flight :
       {0, devices, 2 * devices, devices + (devices + 1) / 2, (devices + 1) / 2, 3 * devices}) {
    for (const Priority p : {Priority::deepest, Priority::oldest, Priority::longest})
      rules.push_back({p, in_flight});
  }
  return rules;
}

std::vector<int> dispatch(const Instance& in, int micro_batches, const DispatchRule& rule,
                          const std::function<bool()>& stop) {
  return Dispatcher(in, micro_batches, rule, stop).run();
}

}  // namespace ostinato
