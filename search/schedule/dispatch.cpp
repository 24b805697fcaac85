#include "search/schedule/dispatch.h"

#include <algorithm>
#include <tuple>

#include "search/placement/phases.h"
#include "search/schedule/dispatch_clock.h"

namespace ostinato {
namespace {

class Dispatcher {
 public:
  Dispatcher(const Instance& in, int micro_batches, const DispatchRule& rule)
      : in_(in), rule_(rule), clock_(in, micro_batches) {
    left_.assign(static_cast<std::size_t>(micro_batches), in.blocks());
    class_.assign(static_cast<std::size_t>(in.blocks()), 0);
    if (rule.phases) set_classes();
    for (int b = 0; b < in.blocks(); ++b) {
      if (in.inputs(b).empty()) sources_.push_back(b);
    }
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

  /// Smaller is sooner.
  std::tuple<int, Nanoseconds, Nanoseconds> urgency(int b) const {
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

  bool admitted(int b) const {
    if (clock_.ended(b)) return false;
    if (rule_.in_flight > 0 && in_.inputs(b).empty() && clock_.count(b) - finished_ >= rule_.in_flight)
      return false;
    return clock_.fits(b);
  }

  void serve(int d, Nanoseconds now) {
    int best = -1;
    for (const int b : in_.blocks_on(d)) {
      if (!admitted(b)) continue;
      const Nanoseconds at = clock_.arrival(b);
      if (at == DispatchClock::kNever || at > now) continue;
      if (best < 0 || std::tuple(urgency(b), b) < std::tuple(urgency(best), best)) best = b;
    }
    if (best >= 0 && clock_.start_when_free(best, d, now)) {
      started(clock_.count(best) - 1, now + in_.time(best));
    }
  }

  void started(int micro_batch, Nanoseconds end) {
    --left_[static_cast<std::size_t>(micro_batch)];
    while (finished_ < clock_.micro_batches() && left_[static_cast<std::size_t>(finished_)] == 0) {
      ++finished_;
      if (rule_.in_flight == 0) continue;
      for (const int s : sources_) clock_.wake(in_.devices_of(s).front(), end);
    }
  }

  const Instance& in_;
  const DispatchRule rule_;
  DispatchClock clock_;
  std::vector<int> class_;    ///< per block: lower ones go first, whatever the priority
  std::vector<int> sources_;  ///< blocks without inputs
  std::vector<int> left_;     ///< per micro-batch: blocks that have not started
  int finished_ = 0;          ///< micro-batches of which all blocks have started
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

std::vector<int> dispatch(const Instance& in, int micro_batches, const DispatchRule& rule) {
  return Dispatcher(in, micro_batches, rule).run();
}

}  // namespace ostinato
