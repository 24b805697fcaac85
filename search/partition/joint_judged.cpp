// SPDX-License-Identifier: Apache-2.0
#include "search/partition/joint_judged.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "search/bounds/bounds.h"
#include "search/files/error.h"
#include "search/leaner.h"
#include "search/named/references.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/even_split.h"
#include "search/partition/joint_candidates.h"
#include "search/partition/latency.h"
#include "search/partition/stages.h"
#include "search/partition/usual_cut.h"
#include "search/placement/quantity.h"
#include "search/plan/proved.h"
#include "search/robust.h"
#include "search/shortest.h"
#include "search/simulate/simulate.h"

namespace ostinato::joint {
namespace {

/// Nodes of branch and bound for one candidate with several chunks.
constexpr long kNodes = 300'000;
/// A replay on shared processors is good to one part in this many.
constexpr Nanoseconds kReplayed = 100;
/// Percent of a search's usual work, by which a candidate is judged first.
constexpr int kShortEffort = 5;
/// The largest part of the time left that one candidate's cuts take; and the cuts of the best stages with one
/// chunk per device.
constexpr double kCutShare = 1.0 / 16, kUsualShare = 1.0 / 2;

bool recomputes(const Candidate& candidate) {
  return std::ranges::any_of(candidate.cuts->stages, &Stage::recompute);
}

bool is_past(std::optional<Judged::Clock::time_point> end) { return end && Judged::Clock::now() > *end; }

double seconds_since(Judged::Clock::time_point began) {
  return std::chrono::duration<double>(Judged::Clock::now() - began).count();
}

}  // namespace

Judged::Judged(const Profile& profile, const JointOptions& options, const Searcher& searcher,
               Nanoseconds below)
    : profile_(profile),
      options_(options),
      searcher_(searcher),
      sharing_(objective() == Objective::makespan &&
               !cluster_of(options.partition).hosts(profile.rank.computing).empty()),
      below_(below),
      found_(below) {}

void Judged::add(Candidate candidate) {
  candidate.options.nodes = std::min(candidate.options.nodes, kNodes);
  list_.push_back(std::move(candidate));
}

void Judged::add_placed(Candidate candidate, int percent) {
  add(std::move(candidate));
  place(list_.size() - 1, percent);
}

void Judged::add_planned(Candidate candidate) {
  found_ = std::min(found_, candidate.value());
  add(std::move(candidate));
}

/// The latency of one micro-batch does not grow with its devices' work for other micro-batches.
Nanoseconds Judged::first_bound(const Candidate& candidate) const {
  return objective() == Objective::latency ? 0 : simple_bound(profile_, candidate, micro_batches());
}

bool Judged::short_of_memory(const Candidate& candidate) const {
  if (!candidate.cuts) return candidate.infeasible && too_few_layers(profile_, candidate).empty();
  return candidate.cuts->in_flight <
         std::min<long>(micro_batches(), static_cast<long>(candidate.cuts->stages.size()));
}

bool Judged::needed(const Candidate& c) const {
  if (below_ != kNone) return false;
  if (c.placement ? found_ == kNone : !any_fits()) return true;
  // What 1F1B runs on is without lanes.
  const bool shown = c.options.lanes == LanesOf::none || !has_lanes(profile_, options_.partition);
  return shown && is_usual(c, options_.partition) && (c.placement || c.even);
}

/// Of some candidate there is an order that fits: cuts by memory leave room for one micro-batch.
bool Judged::any_fits() const {
  if (upper_ != kNone) return true;
  return std::any_of(list_.begin(), list_.end(), [](const Candidate& c) { return c.placement && !c.even; });
}

StageCuts Judged::cut(const Candidate& candidate, int percent, std::function<bool()> stop) const {
  PartitionOptions options = in_part_of_memory(candidate.options, percent);
  options.stop = std::move(stop);
  if (candidate.even) return cut_evenly(profile_, options);
  if (candidate.usual)
    return cut_for_usual(profile_, options, options_.restrictions, objective(),
                         usual_sizes(options.recompute, options.lanes), options.stop);
  if (candidate.graph) return cut_graph(profile_, options);
  if (candidate.quick)
    return cut_for_latency(profile_, options, options_.fewer_devices != FewerDevices::every);
  return cut_chain(profile_, options);
}

/// Numbers of layers of the stages that are known: of the run, and of other candidates with no more
/// recomputation, and the same lanes. Throws InfeasibleError where there are none.
std::vector<std::vector<int>> Judged::usual_sizes(Recompute most, LanesOf lanes) const {
  std::vector<std::vector<int>> list;
  const std::vector<int>& own = profile_.run.layers;
  if (own.size() == cluster_of(options_.partition).devices.size() && std::ranges::min(own) > 0)
    list.push_back(own);
  for (const Candidate& other : list_) {
    if (!is_usual(other, options_.partition, most) || other.options.lanes != lanes) continue;
    if (other.infeasible && !other.even && most == Recompute::never) throw InfeasibleError(other.why_not);
    if (!other.cuts) continue;
    std::vector<int>& sizes = list.emplace_back();
    for (const Stage& stage : other.cuts->stages) sizes.push_back(static_cast<int>(stage.layers.size()));
  }
  return list;
}

const Candidate* Judged::with_the_same_stages(const Candidate& candidate) const {
  for (const Candidate& other : list_) {
    if (&other == &candidate || !other.placement || other.cuts->stages != candidate.cuts->stages) continue;
    const auto with = [](const Candidate& c) { return c.options.lanes != LanesOf::none; };
    const bool as_many_lanes = other.options.lanes == candidate.options.lanes ||
                               (with(other) && with(candidate) && !recomputes(candidate));
    if (other.idle == candidate.idle && other.options.split_backward == candidate.options.split_backward &&
        as_many_lanes)
      return &other;
  }
  return nullptr;
}

void Judged::place(std::size_t index, int percent) {
  Candidate& candidate = list_[index];
  const std::string missing = too_few_layers(profile_, candidate);
  if (!missing.empty()) return refuse(candidate, missing, true);
  const bool usual = is_usual(candidate, options_.partition);
  const std::optional<Clock::time_point> end = after_a_part(usual ? kUsualShare : kCutShare);
  const bool must = needed(candidate);
  const auto stop = [&] { return stop_asked() || (!must && is_past(end)); };
  try {
    if (!candidate.cuts) candidate.cuts = cut(candidate, percent, stop);
  } catch (const StoppedError&) {
    candidate.too_late = !stop_asked();
    return refuse(candidate, candidate.too_late ? "not tried: the time limit" : "not tried: interrupted",
                  false);
  } catch (const InfeasibleError& error) {
    return refuse(candidate, error.what(), true);
  } catch (const InputError& error) {
    candidate.wrong_input = true;
    return refuse(candidate, error.what(), false);
  }
  if (const Candidate* same = with_the_same_stages(candidate)) {
    candidate.no_shorter = true;
    return refuse(candidate, "the same stages as " + same->name, false);
  }
  Placement placed = place_stages(profile_, candidate.options, candidate.cuts->stages);
  if (!step_fits(facts_of(profile_, candidate.options, candidate.cuts->stages), placed))
    return refuse(candidate, "the optimizer's step needs more memory than a device has", true);
  candidate.bound = Bounds(Instance(placed)).of(objective(), micro_batches());
  if (sharing_) candidate.bound = std::max(candidate.bound, shared_work(placed, micro_batches()));
  if (const Restriction* broken =
          first_broken(options_.restrictions, candidate.cuts->stages,
                       static_cast<int>(cluster_of(options_.partition).devices.size()),
                       candidate.options.split_backward)) {
    candidate.forbidden = broken->rule;
    return refuse(candidate, "not allowed: " + words_of(*broken), false);
  }
  candidate.placement = std::move(placed);
  take_named(index, end);
}

/// Those that may be less than what is known; when the time is over, what every plan is shown beside.
void Judged::take_named(std::size_t index, std::optional<Clock::time_point> end) {
  if (options_.search.method != "auto" || sharing_) return;  // that alone is never behind them
  const Candidate& candidate = list_[index];
  if (candidate.bound >= upper_) return;
  const std::string usual = usual_schedule(candidate.options);
  const auto wanted = [&](const std::string& name) {
    return name == usual || !(stop_asked() || is_past(end));
  };
  for (const Reference& named : references(*candidate.placement, micro_batches(), objective(), wanted)) {
    if (!named.fits || named.value >= upper_) continue;
    upper_ = named.value;
    upper_of_ = {index, named.name};
  }
}

bool Judged::drop_by(Candidate& candidate, Nanoseconds bound, const std::string& what) const {
  if (wanted(bound)) return false;
  candidate.bound = bound;
  candidate.no_shorter = true;
  refuse(candidate,
         fmt::format("{} {}; {} is already reached", what, format_time(bound), format_time(reached())),
         false);
  return true;
}

void Judged::refuse(Candidate& candidate, const std::string& reason, bool infeasible) {
  candidate.why_not = reason;
  candidate.infeasible = infeasible;
}

void Judged::search(Candidate& candidate, const SearchOptions& options) {
  const auto began = Clock::now();
  const auto give_up = [&](const std::string& why, bool infeasible) {
    if (!candidate.plan) refuse(candidate, why, infeasible);
  };
  try {
    Plan plan = searcher_ ? searcher_(*candidate.placement, options, candidate.name)
                          : shortest_plan(*candidate.placement, options);
    candidate.cut |= plan.search.cut_by_limit;
    consider(candidate, std::move(plan));
    if (sharing_) consider_1f1b(candidate, options);
    candidate.why_not.clear();
    found_ = std::min(found_, candidate.value());
  } catch (const InfeasibleError& error) {
    give_up(error.what(), true);
  } catch (const InputError& error) {
    candidate.wrong_input = true;
    give_up(error.what(), false);
  } catch (const std::runtime_error& error) {  // no order found, and no proof that there is none
    candidate.cut |= options.time_limit_seconds > 0 && seconds_since(began) >= options.time_limit_seconds;
    give_up(error.what(), false);
  }
  candidate.seconds += seconds_since(began);
}

void Judged::take_upper() {
  if (upper_ >= found_) return;
  Candidate& candidate = list_[upper_of_.candidate];
  SearchOptions options = within_a_part(1);
  options.method = upper_of_.schedule;
  search(candidate, options);
  candidate.cut = true;
}

/// Keeps the plan where it is shorter than the candidate's, or as short and more of it proved.
void Judged::consider(Candidate& candidate, Plan plan) const {
  const Placement& placement = *candidate.placement;
  const Nanoseconds shared = sharing_ ? replayed_makespan(placement, micro_batches(), plan.schedule) : 0;
  const Nanoseconds value = sharing_ ? shared : objective_value(plan, placement);
  if (candidate.plan && value > candidate.value()) return;
  if (candidate.plan && value == candidate.value() && bound_of(plan) <= bound_of(*candidate.plan)) return;
  candidate.plan = std::move(plan);
  candidate.shared = shared;
}

/// On shared processors an order that keeps devices busier gains less, and may lose.
void Judged::consider_1f1b(Candidate& candidate, SearchOptions options) const {
  options.method = "1f1b";
  try {
    consider(candidate, shortest_plan(*candidate.placement, options));
  } catch (const std::runtime_error&) {  // these stages have none, or it does not fit the memory
    return;
  }
}

Nanoseconds Judged::whole_value(const Candidate& c) const {
  if (objective() != Objective::makespan) return c.value();
  const std::vector<Nanoseconds> times = facts_of(profile_, c.options, c.cuts->stages).step_time;
  if (times.empty()) return c.value();
  const auto step = [&](const std::vector<Nanoseconds>& of) {
    return whole_step(*c.placement, micro_batches(), c.plan->schedule, of);
  };
  return c.value() + step(times) - step({});
}

void Judged::hold_less(Candidate& candidate) const {
  const Candidate before = candidate;
  candidate.plan = in_less_memory(*candidate.placement, within_a_part(1), *candidate.plan);
  if (sharing_)
    candidate.shared = replayed_makespan(*candidate.placement, micro_batches(), candidate.plan->schedule);
  if (whole_value(candidate) > whole_value(before)) candidate = before;
  if (options_.search.robust_ppm > 0)
    candidate.plan = in_variation(*candidate.placement, within_a_part(1), {*before.plan, *candidate.plan});
}

Nanoseconds Judged::least_usual() const {
  Nanoseconds least = kNone;
  for (const Candidate& c : list_) {
    const Nanoseconds value = c.plan ? c.value() : c.bound;
    if (is_usual(c, options_.partition) && value > 0) least = std::min(least, value);
  }
  return least;
}

std::size_t Judged::best() const {
  std::size_t best = list_.size();
  const Nanoseconds as_short = sharing_ && found_ != kNone
                                   ? std::max(found_, std::min(found_ + found_ / kReplayed, least_usual()))
                                   : 0;
  const auto key = [&](const Candidate& c) {
    return std::tuple(whole_value(c) + std::max<Nanoseconds>(0, as_short - c.value()),
                      c.placement->blocks.size(), c.value());
  };
  decltype(key(list_.front())) least;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!list_[i].plan) continue;
    const auto its = key(list_[i]);
    if (best == list_.size() || its < least) std::tie(best, least) = std::pair(i, its);
  }
  return best;
}

std::size_t Judged::shortest() const {
  std::size_t shortest = best();
  for (std::size_t i = 0; i < list_.size(); ++i)
    if (list_[i].plan && whole_value(list_[i]) < whole_value(list_[shortest])) shortest = i;
  return shortest;
}

bool Judged::late(double share) const {
  const double limit = options_.search.time_limit_seconds;
  return limit > 0 && seconds_since(began_) > share * limit;
}

bool Judged::out_of_time(double share) {
  const bool is_late = late(share);
  cut_short_ |= is_late;
  return is_late;
}

bool Judged::stopped() {
  const bool asked = stop_asked();
  interrupted_ |= asked;
  return asked;
}

bool Judged::stop_asked() const {
  return options_.search.stop != nullptr && options_.search.stop->load(std::memory_order_relaxed);
}

std::optional<Judged::Clock::time_point> Judged::at_share(double share) const {
  const double limit = options_.search.time_limit_seconds;
  if (limit <= 0) return std::nullopt;
  return began_ + std::chrono::milliseconds(static_cast<long>(limit * share * 1000));
}

/// When so small a part of the time that is left is over; nullopt: there is no limit.
std::optional<Judged::Clock::time_point> Judged::after_a_part(double part) const {
  const double limit = options_.search.time_limit_seconds;
  if (limit <= 0) return std::nullopt;
  const double left = std::max(0.0, limit - seconds_since(began_));
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(left * part));
}

SearchOptions Judged::within_a_part(std::size_t parts) const {
  SearchOptions search = left_after(options_.search, Clock::now() - began_);
  if (search.time_limit_seconds > 0)
    search.time_limit_seconds = std::max(1e-3, search.time_limit_seconds / static_cast<double>(parts));
  return search;
}

SearchOptions Judged::shortly(std::size_t parts) const {
  SearchOptions search = within_a_part(parts);
  search.effort = kShortEffort;
  return search;
}

}  // namespace ostinato::joint
