#include "search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "search/beam.h"
#include "search/bounds.h"
#include "search/error.h"
#include "search/feasible.h"
#include "search/incumbent.h"
#include "search/named.h"
#include "search/steady.h"

namespace ostinato {
namespace {

using Clock = std::chrono::steady_clock;

class Search {
 public:
  Search(const Placement& placement, const SearchOptions& options)
      : placement_(placement),
        options_(options),
        in_(placement),
        bounds_(in_),
        bound_(bounds_.of(options.objective, options.micro_batches)),
        best_(in_, options.micro_batches, options.objective) {}

  Plan run() {
    if (options_.method != "auto") {
      only_named();
      return plan();
    }
    const std::vector<int> one = fitting_order(in_, bounds_, options_.micro_batches);
    named();
    if (!one.empty()) sequential(one);
    if (!proved()) beams();
    if (best_.empty())
      throw std::runtime_error("no order was found that fits the memory, and no proof that there is none");
    return plan();
  }

 private:
  bool proved() const { return !best_.empty() && best_.score().objective <= bound_; }

  bool stopped() {
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const bool now = (options_.stop && options_.stop->load(std::memory_order_relaxed)) ||
                     (options_.time_limit_seconds > 0 && seconds > options_.time_limit_seconds);
    cut_ = cut_ || now;
    return cut_;
  }

  void report(const char* phase) {
    if (!options_.progress || best_.empty()) return;
    options_.progress({best_.score().objective, bound_,
                       std::chrono::duration<double>(Clock::now() - began_).count(), phase});
  }

  void only_named() {
    const NamedSchedule named = named_schedule(options_.method, placement_, options_.micro_batches);
    if (!named.orders) throw InputError("", 0, fmt::format("{}: {}", options_.method, named.why_not));
    if (!best_.offer(*named.orders, options_.method)) {
      throw InputError("", 0, fmt::format("{} does not fit the memory of this placement", options_.method));
    }
  }

  void named() {
    for (const std::string& name : named_schedules()) {
      const NamedSchedule schedule = named_schedule(name, placement_, options_.micro_batches);
      if (schedule.orders) best_.offer(*schedule.orders, name);
    }
    report("named schedules");
  }

  void sequential(const std::vector<int>& one) {
    std::vector<int> all;
    for (int i = 0; i < options_.micro_batches; ++i) all.insert(all.end(), one.begin(), one.end());
    best_.offer(all, "one micro-batch after another");
    report("one micro-batch after another");
  }

  void beams() {
    const Instance mirror = in_.reversed();
    for (const int width : {8, 64}) {
      for (int flavour = 0; flavour < kBeamFlavours; ++flavour) {
        for (const bool backwards : {false, true}) {
          if (stopped() || proved()) return;
          beam(backwards ? mirror : in_, backwards, width, flavour);
        }
      }
    }
  }

  void beam(const Instance& in, bool backwards, int width, int flavour) {
    BeamOptions options;
    options.width = width;
    options.flavour = flavour;
    options.stop = [this] { return stopped(); };
    BeamResult found = beam_search(in, whole_horizon(in, options_.micro_batches), options);
    if (found.order.empty()) return;
    if (backwards) std::reverse(found.order.begin(), found.order.end());
    best_.offer(found.order, "beam search");
    report("beam search");
  }

  Plan plan() {
    Plan plan;
    plan.placement_name = placement_.name;
    plan.micro_batches = options_.micro_batches;
    plan.objective = options_.objective;
    plan.schedule = best_.schedule();
    plan.makespan = best_.score().makespan;
    plan.span = best_.score().span;
    plan.peak_memory = best_.peaks();
    plan.lower_bound.makespan = bounds_.makespan(options_.micro_batches);
    plan.optimal.makespan = plan.lower_bound.makespan == plan.makespan;
    plan.steady_state = find_steady_state(in_, options_.micro_batches, plan.schedule);
    if (plan.steady_state.count > 0) {
      plan.lower_bound.period = bounds_.period(plan.steady_state.unroll);
      plan.optimal.period = plan.lower_bound.period == plan.steady_state.period;
    }
    plan.search = {best_.method(), options_.seed, cut_};
    return plan;
  }

  const Placement& placement_;
  const SearchOptions& options_;
  const Clock::time_point began_ = Clock::now();
  const Instance in_;
  const Bounds bounds_;
  const Nanoseconds bound_;
  Incumbent best_;
  bool cut_ = false;
};

void check(const Placement& placement, const SearchOptions& options) {
  if (options.micro_batches < 1) throw InputError("", 0, "there must be at least one micro-batch");
  const auto& names = named_schedules();
  if (options.method != "auto" && std::find(names.begin(), names.end(), options.method) == names.end()) {
    throw InputError("", 0, fmt::format("unknown method \"{}\"", options.method));
  }
  if (topological_order(placement).size() != placement.blocks.size() || placement.blocks.empty()) {
    throw InputError("", 0, "the blocks of the placement are not an acyclic graph");
  }
}

}  // namespace

Plan search(const Placement& placement, const SearchOptions& options) {
  check(placement, options);
  return Search(placement, options).run();
}

}  // namespace ostinato
