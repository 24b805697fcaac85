// SPDX-License-Identifier: Apache-2.0
#include "search/partition/joint.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "search/bounds/bounds.h"
#include "search/files/error.h"
#include "search/named/references.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/even_split.h"
#include "search/partition/joint_candidates.h"
#include "search/partition/latency.h"
#include "search/partition/stages.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::max();
/// Nodes of branch and bound for one candidate with several chunks.
constexpr long kNodes = 300'000;

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

class Chooser {
 public:
  Chooser(const Profile& profile, const JointOptions& options, const Searcher& searcher)
      : profile_(profile), options_(options), searcher_(searcher) {}

  JointChoice choose() {
    check_partition(profile_, options_.partition);
    for (Candidate& candidate : joint::list_candidates(profile_, options_)) add(std::move(candidate));
    place_all();
    choice_.devices = static_cast<int>(cluster_of(options_.partition).devices.size());
    choice_.all_devices = options_.fewer_devices == FewerDevices::none && choice_.devices > 1;
    if (!choice_.all_devices) add_fewer();
    search_all();
    choice_.winner = best();
    return std::move(choice_);
  }

 private:
  std::vector<Candidate>& list() { return choice_.candidates; }

  void add(Candidate candidate) {
    candidate.options.nodes = std::min(candidate.options.nodes, kNodes);
    list().push_back(std::move(candidate));
  }

  /// By what is known before a partition; the sooner a good placement is known, the more are dropped.
  void place_all() {
    const std::size_t count = list().size();
    std::vector<Nanoseconds> bounds;
    for (const Candidate& candidate : list()) bounds.push_back(first_bound(candidate));
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return bounds[a] < bounds[b]; });
    for (const std::size_t i : order) {
      if (drop_by(list()[i], bounds[i], "its busiest device needs at least")) continue;
      place(i);
      recompute_too(i);
    }
  }

  void recompute_too(std::size_t index) {
    if (!options_.recompute || options_.partition.inference || !short_of_memory(list()[index])) return;
    add(joint::recomputing(list()[index]));
    place(list().size() - 1);
  }

  /// The latency of one micro-batch does not grow with what a device does for the others.
  Nanoseconds first_bound(const Candidate& candidate) const {
    if (objective() == Objective::latency) return 0;
    return joint::simple_bound(profile_, candidate, micro_batches());
  }

  bool short_of_memory(const Candidate& candidate) const {
    if (!candidate.cuts) return candidate.infeasible && joint::too_few_layers(profile_, candidate).empty();
    return candidate.cuts->in_flight <
           std::min<long>(micro_batches(), static_cast<long>(candidate.cuts->stages.size()));
  }

  /// While what the first d devices take at least leaves room.
  void add_fewer() {
    const int all = choice_.devices;
    for (const int devices : joint::fewer_counts(profile_, options_)) {
      Candidate candidate = joint::on_fewer(options_, devices);
      Candidate even = candidate;
      even.even = true;
      even.name = fmt::format("even split on {} of {} devices", devices, all);
      const Nanoseconds bound = first_bound(candidate);
      if (!wanted(bound)) {
        if (devices > 1) candidate.name = fmt::format("1 chunk on 1 to {} of {} devices", devices, all);
        drop_by(candidate, bound, "the busiest device needs at least");
        list().push_back(std::move(candidate));
        return;
      }
      for (Candidate* one : {&candidate, &even}) {
        add(std::move(*one));
        place(list().size() - 1);
      }
      recompute_too(list().size() - 2);
    }
  }

  /// Partitions, and bounds from both sides.
  void place(std::size_t index) {
    Candidate& candidate = list()[index];
    const std::string missing = joint::too_few_layers(profile_, candidate);
    if (!missing.empty()) return refuse(candidate, missing, true);
    try {
      candidate.cuts = candidate.even    ? cut_evenly(profile_, candidate.options)
                       : candidate.graph ? cut_graph(profile_, candidate.options)
                       : candidate.quick ? cut_for_latency(profile_, candidate.options,
                                                           options_.fewer_devices != FewerDevices::every)
                                         : cut_chain(profile_, candidate.options);
    } catch (const InfeasibleError& error) {
      return refuse(candidate, error.what(), true);
    } catch (const InputError& error) {
      return refuse(candidate, error.what(), false);
    }
    for (const Candidate& other : list()) {
      if (&other == &candidate || !other.placement || other.cuts->stages != candidate.cuts->stages) continue;
      if (other.placement->devices.size() != cluster_of(candidate.options).devices.size()) continue;
      candidate.no_shorter = true;
      return refuse(candidate, "the same stages as " + other.name, false);
    }
    Placement placed = place_stages(profile_, candidate.options, candidate.cuts->stages);
    if (!step_fits(facts_of(profile_, candidate.options, candidate.cuts->stages), placed))
      return refuse(candidate, "the optimizer's step needs more memory than a device has", true);
    candidate.placement = std::move(placed);
    candidate.bound = Bounds(Instance(*candidate.placement)).of(objective(), micro_batches());
    if (options_.search.method != "auto") return;  // which alone is never behind them
    for (const Reference& named : references(*candidate.placement, micro_batches(), objective())) {
      if (named.fits) upper_ = std::min(upper_, named.value);
    }
  }

  /// In the order of their bounds, so that the first plans drop most of the others.
  void search_all() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < list().size(); ++i) {
      if (list()[i].placement) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return list()[a].bound < list()[b].bound; });
    const auto began = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < order.size(); ++i) {
      Candidate& candidate = list()[order[i]];
      if (drop_by(candidate, candidate.bound, "proven bound")) continue;
      if (options_.search.stop != nullptr && options_.search.stop->load(std::memory_order_relaxed)) {
        choice_.interrupted = true;
        refuse(candidate, "not tried: interrupted", false);
        continue;
      }
      SearchOptions search = options_.search;
      if (search.time_limit_seconds > 0) {
        const double left = search.time_limit_seconds - seconds_since(began);
        search.time_limit_seconds = std::max(0.001, left / static_cast<double>(wanted_from(order, i)));
      }
      search_one(candidate, search);
    }
  }

  std::size_t wanted_from(const std::vector<std::size_t>& order, std::size_t first) {
    return static_cast<std::size_t>(std::count_if(order.begin() + static_cast<std::ptrdiff_t>(first),
                                                  order.end(),
                                                  [&](std::size_t i) { return wanted(list()[i].bound); }));
  }

  void search_one(Candidate& candidate, const SearchOptions& options) {
    const auto began = std::chrono::steady_clock::now();
    try {
      candidate.plan = searcher_ ? searcher_(*candidate.placement, options, candidate.name)
                                 : search(*candidate.placement, options);
      candidate.seconds = seconds_since(began);
      found_ = std::min(found_, candidate.value());
    } catch (const InfeasibleError& error) {
      refuse(candidate, error.what(), true);
    } catch (const InputError& error) {
      refuse(candidate, error.what(), false);
    } catch (const std::runtime_error& error) {  // no order found, and no proof that there is none
      refuse(candidate, error.what(), false);
    }
  }

  /// Whether a candidate with this bound may still win: a plan of this value was not found yet, and no named
  /// schedule is below it.
  bool wanted(Nanoseconds bound) const { return bound < found_ && bound <= upper_; }

  /// True if the bound leaves no room: the candidate then says so.
  bool drop_by(Candidate& candidate, Nanoseconds bound, const std::string& what) {
    if (wanted(bound)) return false;
    candidate.bound = bound;
    candidate.no_shorter = true;
    refuse(candidate,
           fmt::format("{} {}, {} reached", what, format_time(bound), format_time(std::min(found_, upper_))),
           false);
    return true;
  }

  static void refuse(Candidate& candidate, const std::string& reason, bool infeasible) {
    candidate.why_not = reason;
    candidate.infeasible = infeasible;
  }

  std::size_t best() {
    std::size_t best = list().size();
    for (std::size_t i = 0; i < list().size(); ++i) {
      if (!list()[i].plan) continue;
      if (best == list().size() || list()[i].value() < list()[best].value()) best = i;
    }
    if (best < list().size()) return best;
    std::string reasons;
    for (const Candidate& c : list()) reasons += fmt::format("\n  {}: {}", c.name, c.why_not);
    const std::string message = "no placement that was tried has a plan:" + reasons;
    if (std::all_of(list().begin(), list().end(), [](const Candidate& c) { return c.infeasible; }))
      throw InfeasibleError(message);
    throw InputError("", 0, message);
  }

  int micro_batches() const { return options_.search.micro_batches; }
  Objective objective() const { return options_.search.objective; }

  const Profile& profile_;
  const JointOptions& options_;
  const Searcher& searcher_;
  JointChoice choice_;
  Nanoseconds upper_ = kNone;  ///< a named schedule of some candidate takes this long
  Nanoseconds found_ = kNone;  ///< a plan takes this long
};

}  // namespace

Nanoseconds Candidate::value() const { return objective_value(*plan, *placement); }

int Candidate::devices() const { return static_cast<int>(cluster_of(options).devices.size()); }

JointChoice choose_plan(const Profile& profile, const JointOptions& options, const Searcher& searcher) {
  return Chooser(profile, options, searcher).choose();
}

}  // namespace ostinato
