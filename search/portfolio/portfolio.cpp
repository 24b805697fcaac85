// SPDX-License-Identifier: Apache-2.0
// The order of run_phases(); each part ends the search if the best meets its bound or the time is up:
// 1. One micro-batch after another, and the named schedules; for the latency one micro-batch repeated;
//    windows, which raise the bound; dispatching.
// 2. Where there is little but the ends to schedule, a round of 3 without beams. Repetends with their
//    completion, then justification; sweeps where these do not meet the bound, and before them where the
//    repetends are too large for exact search.
// 3. A quick trial of all schedules, and other repetends of the same rates. If the bound is met: the same in
//    less memory (sparing). Else rounds of growing width: local search, another quick trial, the exact beam,
//    orders, beams; until a round cuts nothing off; local search again where its beams gained. Then patient
//    dispatching, which for the span comes before 2: it may prove it, and else half of the time goes to the
//    makespan first. Last, repetends of better rates with ten times the work; what they give is justified and
//    improved as before.
// Many micro-batches are searched as few (stretch.h), then repeated, and where that does not meet the bound
// named, dispatched and justified schedules of all are tried. certify() raises the bound of the final plan by
// windows and by the trial of all schedules.
#include "search/portfolio/portfolio.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "search/files/error.h"
#include "search/named/named.h"
#include "search/repetend/modulo.h"
#include "search/schedule/order_search.h"

namespace ostinato {

using namespace techniques;

namespace {

/// The method of a plan for the span that was found as one for the makespan.
constexpr char kOfMakespan[] = "shortest makespan";
/// Pairs of steps up to which a round is worth its beginning, before there are repetends.
constexpr std::int64_t kFirstPairs = 1'000'000;

Nanoseconds objective_of(const Hunt& hunt) { return hunt.best.empty() ? 0 : hunt.best.score().objective; }

}  // namespace

void Portfolio::run_named() {
  const std::string& method = hunt_.options.method;
  const NamedSchedule named = named_schedule(method, hunt_.in.placement(), hunt_.micro_batches);
  if (!named.orders) throw InputError("", 0, named.why_not);
  if (!hunt_.best.offer(*named.orders, method)) {
    throw InputError("", 0, fmt::format("{} does not fit the memory of this placement", method));
  }
}

void Portfolio::run() {
  if (!of_span()) return run_for_objective();
  const std::vector<int> shortest = hunt_.few() ? shortest_in_all() : std::vector<int>{};
  run_for_objective();
  if (!hunt_.few() && !shortest.empty() && hunt_.best.offer(shortest, kOfMakespan) && !hunt_.stopped())
    run(kLocalSearch);
}

/// No device's span is longer than the makespan: a search for that, which has more techniques, in half of the
/// time limit. {} where it finds nothing.
std::vector<int> Portfolio::shortest_in_all() {
  SearchOptions options = hunt_.options;
  options.objective = Objective::makespan;
  options.below = 0;
  options.time_limit_seconds /= 2;
  options.progress = {};
  options.contributions = nullptr;
  Portfolio whole(hunt_.in, hunt_.bounds, options);
  whole.run();
  return whole.best().empty() ? std::vector<int>{} : whole.best().sequence();
}

void Portfolio::run_for_objective() {
  const bool repeated = hunt_.few();
  run_phases();
  if (!repeated) return;
  const bool found = !hunt_.best.empty();
  hunt_.take_all();
  if (!found) return run_phases();
  if (hunt_.proved()) return;
  run(kNamed);  // never worse than what repeats nothing
  run(kWindows);
  if (of_span()) run(kPatience);
  if (hunt_.proved() || hunt_.stopped()) return;
  run(kDispatch);  // what repeats nothing may have a better rate, or lose less at its ends
  run(kJustification);
  if (!of_span()) run_patiently();
}

void Portfolio::run_phases() {
  if (hunt_.pointless()) return;
  for (const Technique* technique : {&kSequential, &kNamed}) run(*technique);
  for (const Technique* technique : {&kRepeated, &kWindows})
    if (!hunt_.stopped()) run(*technique);
  run(kDispatch);
  if (of_span()) run(kPatience);
  if (hunt_.stopped() || hunt_.pointless()) return;
  if (of_span() && !hunt_.few() && !hunt_.proved()) {
    const std::vector<int> shortest = shortest_in_all();
    if (!shortest.empty()) hunt_.best.offer(shortest, kOfMakespan);
    if (hunt_.stopped()) return;
  }
  if (mostly_ends()) {
    run(kJustification);
    if (!hunt_.proved()) settled_by_round(kFirstWidth);
    hunt_.width = 0;
    if (hunt_.exhausted || hunt_.stopped()) return;
  }
  run(kRepetend);
  if (hunt_.stopped()) return;
  const bool large = !searchable(hunt_.in, 1);
  if (large && !hunt_.proved()) run(kSweeps);
  run(kJustification);
  if (hunt_.stopped() || hunt_.pointless()) return;
  if (!large && !hunt_.proved()) run(kSweeps);
  if (hunt_.justified < hunt_.repetends.size()) run(kJustification);
  if (hunt_.stopped() || hunt_.pointless()) return;
  for (const Technique* technique : {&kWindows, &kQuickTrial, &kOthers})
    if (!hunt_.proved()) run(*technique);
  if (hunt_.proved()) return run(kSparing);
  run_rounds();
  if (of_span() || hunt_.exhausted) return;
  run_patiently();
  if (!hunt_.stopped()) run_with_more_repetends();
}

/// The ends are most of what there is to schedule, and so little that a round may settle it sooner than a
/// repetend is found.
bool Portfolio::mostly_ends() const {
  return !hunt_.few() && !hunt_.best.empty() && hunt_.micro_batches <= 2 * hunt_.in.devices() &&
         hunt_.steps() * hunt_.steps() <= hunt_.share(kFirstPairs) &&
         orders_can_be_searched(hunt_.in, hunt_.micro_batches);
}

void Portfolio::run_rounds() {
  for (const int width : kWidths) {
    if (settled_by_round(width)) return;
    const Nanoseconds known = objective_of(hunt_);
    run(kBeams);
    if (hunt_.truncated) continue;
    if (objective_of(hunt_) < known) run(kLocalSearch);
    return;
  }
}

/// Without beams. True: more rounds are not needed, or have no time.
bool Portfolio::settled_by_round(int width) {
  hunt_.width = width;
  hunt_.truncated = false;
  for (const Technique* technique : {&kLocalSearch, &kQuickTrial}) {
    run(*technique);
    if (hunt_.proved() || hunt_.stopped()) return true;
  }
  for (const Technique* technique : {&kExact, &kOrders}) {
    run(*technique);
    if (hunt_.exhausted || hunt_.proved() || hunt_.stopped()) return true;
  }
  return false;
}

/// Last, so that what it finds beats all other techniques.
void Portfolio::run_patiently() {
  const Nanoseconds known = objective_of(hunt_);
  run(kPatience);
  if (objective_of(hunt_) == known) return;
  for (const Technique* technique : {&kJustification, &kLocalSearch})
    if (!hunt_.stopped()) run(*technique);
}

/// Where the best is far from its bound, a better rate may be what it lacks.
void Portfolio::run_with_more_repetends() {
  const std::size_t known = hunt_.repetends.size();
  run(kMoreRepetends);
  if (hunt_.repetends.size() == known) return;
  hunt_.width = kWidths[0];
  for (const Technique* technique : {&kJustification, &kOthers, &kBeams, &kLocalSearch})
    if (!hunt_.proved() && !hunt_.stopped()) run(*technique);
}

void Portfolio::certify() {
  if (hunt_.options.below > 0 && *hunt_.to_beat() >= hunt_.options.below) return;
  if (!hunt_.cut()) run(kWindows);
  if (!hunt_.best.empty() && claims().objective < hunt_.best.score().objective && !hunt_.cut()) run(kTrial);
}

void Portfolio::run(const Technique& technique) {
  measured(technique.name, [&] { technique.run(hunt_); });
}

void Portfolio::measured(const char* technique, const std::function<void()>& run) {
  const double began = hunt_.seconds();
  const Nanoseconds best = objective_of(hunt_), bound = hunt_.bound();
  run();
  hunt_.report(technique);
  if (hunt_.options.contributions == nullptr) return;
  std::vector<Contribution>& all = *hunt_.options.contributions;
  auto row = std::find_if(all.begin(), all.end(),
                          [&](const Contribution& known) { return known.technique == technique; });
  if (row == all.end()) row = all.insert(all.end(), {.technique = technique, .before = best});
  ++row->runs;
  row->seconds += hunt_.seconds() - began;
  if (objective_of(hunt_) != best) row->after = objective_of(hunt_);
  if (hunt_.bound() != bound) row->bound = hunt_.bound();
}

}  // namespace ostinato
