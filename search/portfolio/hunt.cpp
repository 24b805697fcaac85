// SPDX-License-Identifier: Apache-2.0
#include "search/portfolio/hunt.h"

#include <algorithm>

#include "search/portfolio/techniques.h"
#include "search/schedule/stretch.h"

namespace ostinato {
namespace {

/// Work (BeamResult::work) of a search that does not meet its bound: under a second of one core.
constexpr std::int64_t kWork = 15'000'000;

}  // namespace

Hunt::Hunt(const Instance& instance, const Bounds& all_bounds, const SearchOptions& wanted,
           Clock::time_point began)
    : in(instance),
      mirror(instance.reversed()),
      bounds(all_bounds),
      options(wanted),
      micro_batches(options.method == "auto" ? representative(in, options.micro_batches)
                                             : options.micro_batches),
      best(instance, micro_batches, options.objective, options.micro_batches - micro_batches),
      work_left(share(kWork)),
      began_(began),
      claims_{bounds.makespan(options.micro_batches), bounds.of(options.objective, options.micro_batches)},
      bound_(claims_.objective) {
  if (options.objective == Objective::makespan && !few() && Propagation::affordable(in, micro_batches))
    common_.emplace(in, mirror, micro_batches);
}

void Hunt::take_all() {
  best.repeat();
  micro_batches = options.micro_batches;
  justified = 0;
}

bool Hunt::proved() {
  if (!to_beat()) return false;
  const Nanoseconds value = *to_beat();
  if (value <= bound_ || !common_ || value == limit_) return value <= bound_;
  limit_ = value;
  if (!common_->run(value)) bound_ = value;
  return value <= bound_;
}

bool Hunt::pointless() {
  if (options.below <= 0 || (!best.empty() && best.score().objective < options.below)) return false;
  return proved();
}

std::optional<Nanoseconds> Hunt::to_beat() const {
  const Nanoseconds known = options.below > 0 ? options.below : std::numeric_limits<Nanoseconds>::max();
  if (!best.empty()) return std::min(known, best.score().objective);
  return options.below > 0 ? std::optional(known) : std::nullopt;
}

bool Hunt::only_in_turn() const { return best.empty() || best.method() == techniques::kSequential.name; }

bool Hunt::stopped() {
  if (is_over(options, Clock::now() - began_)) cut_ = true;
  return cut_;
}

void Hunt::report(const char* phase) const {
  if (!options.progress || best.empty()) return;
  options.progress({best.score().objective, bound_, seconds(), phase});
}

void Hunt::claim(Nanoseconds bound) {
  claims_.objective = std::max(claims_.objective, bound);
  if (options.objective == Objective::makespan) claims_.makespan = claims_.objective;
  bound_ = std::max(bound_, bound);
}

void Hunt::claim_by_exhaustion(Nanoseconds bound) {
  claims_.by_exhaustion = true;
  claim(bound);
}

BeamGoal Hunt::horizon(bool backwards) const {
  const Instance& of = backwards ? mirror : in;
  return limit_ > 0 ? whole_horizon(of, micro_batches, *common_, backwards)
                    : whole_horizon(of, micro_batches);
}

}  // namespace ostinato
