// SPDX-License-Identifier: Apache-2.0
// How the work is spent, each part starting from the best so far:
// 1. A proof that nothing fits, or else a lower bound; the search ends as soon as the bound is met.
// 2. The named schedules with micro-batches in the given and in sorted orders, the 1F1B family whatever the
//    work allows; then dispatching by several rules: up to 30 % of the work.
// 3. The order of entry: in the best dispatched schedule two micro-batches change places, or one moves: up
//    to 65 %.
// 4. Annealing (improve.h) until the work is used up, two rounds cool and two warm by turns; steps of at
//    most kFewSteps also start from random orders, since limited memory may separate schedules that moves
//    cannot connect.
// A schedule is only ever replaced by a shorter one, so the plan is never worse than 1F1B.
#include "search/unequal/unequal.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "search/bounds/feasible.h"
#include "search/files/error.h"
#include "search/named/named.h"
#include "search/plan/one_batch.h"
#include "search/plan/orders.h"
#include "search/portfolio/search_options.h"
#include "search/unequal/bounds.h"
#include "search/unequal/enter.h"
#include "search/unequal/improve.h"

namespace ostinato {
namespace unequal {
namespace {

using Clock = std::chrono::steady_clock;

/// How much of the work may be spent on beginnings, and how much then on the order of entry, in percent.
constexpr std::int64_t kStarts = 30, kEntry = 35;

/// Up to this many steps the local search begins in several places.
constexpr int kFewSteps = 256;

/// Schedules of search/named that are cheap to make and in common use; "1f1b" first: whatever the work
/// allows, the plan is no worse.
constexpr const char* kTemplates[] = {"1f1b",  "interleaved-1f1b", "1f1b+",  "zb-h1",
                                      "zb-h2", "interleaved-zb",   "hanayo", "chimera",
                                      "zb-v",  "v-half",           "gpipe"};

/// An order of the blocks that stays within the memory; empty: none was found.
std::vector<int> order_that_fits(const Placement& one) {
  const Instance in(one);
  try {
    return fitting_order(in, Bounds(in), 1);
  } catch (const InfeasibleError&) {
    return {};  // proved of this micro-batch alone: another might give back what it never took
  }
}

class Search {
 public:
  Search(const Placement& placement, const std::vector<MicroBatch>& sizes, const UnequalOptions& options)
      : placement_(placement),
        sizes_(sizes),
        options_(options),
        jobs_(placement, sizes, options.keep_order),
        trial_(jobs_),
        until_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(options.time_limit_seconds))) {}

  Plan run() {
    if (const std::string reason = what_cannot_fit(jobs_, placement_); !reason.empty())
      throw InfeasibleError(reason);
    bound_ = least_makespan(jobs_);
    begin();
    if (best_.empty())
      throw UndecidedError(
          "no order of these micro-batches was found that fits the memory; tried: the known schedules, and "
          "one micro-batch after another, in sorted orders");
    order_of_entry();
    anneal();
    return plan();
  }

 private:
  struct Dispatched {
    std::vector<int> entry;
    Rule rule;
    Nanoseconds makespan = kNever;
  };

  bool stopped() {
    cut_ = cut_ || (options_.stop != nullptr && *options_.stop) ||
           (options_.time_limit_seconds > 0 && Clock::now() >= until_);
    return cut_;
  }
  std::int64_t spent() const { return dispatched_ + trial_.work(); }
  bool done(std::int64_t percent) {
    return least_ <= bound_ || spent() >= options_.work / 100 * percent || stopped();
  }

  /// Takes it where it is shorter than the best.
  bool offer(const std::vector<int>& order, const std::string& method) {
    if (order.empty() || !trial_.load(order, least_ == kNever ? kNever : least_ - 1)) return false;
    least_ = trial_.makespan();
    best_ = trial_.order();
    method_ = method;
    return true;
  }

  /// A named schedule, its k-th micro-batch being entry[k].
  std::vector<int> filled(const std::vector<ScheduledBlock>& named, const std::vector<int>& entry) const {
    std::vector<int> order;
    for (const ScheduledBlock& step : named)
      order.push_back(entry[step.micro_batch] * jobs_.blocks() + step.block);
    return order;
  }

  void begin() {
    const std::vector<std::vector<int>> entries = usual_entries(jobs_);
    const Chains chains(placement_);
    for (const char* name : kTemplates) {
      const bool usual = std::string(name).find("1f1b") != std::string::npos;
      if (!usual && done(kStarts)) break;
      const NamedSchedule named = named_schedule(name, placement_, jobs_.micro_batches(), chains);
      if (!named.orders) continue;
      const auto schedule = earliest_starts(placement_, jobs_.micro_batches(), *named.orders);
      if (!schedule) continue;
      for (const std::vector<int>& entry : entries) offer(filled(*schedule, entry), name);
    }
    dispatch_all(entries);
    if (best_.empty()) one_after_another(entries.front());
    if (best_.empty()) in_orders_that_fit();
  }

  /// Rules in the order of their use; without any work left, those that always fit come last.
  void dispatch_all(const std::vector<std::vector<int>>& entries) {
    const int p = jobs_.devices();
    for (const Rule::First first : {Rule::deepest, Rule::oldest, Rule::longest})
      for (const int in_flight : {0, 2 * p, p + 1, p, (p + 1) / 2, 2})
        for (const std::vector<int>& entry : entries) {
          if (done(kStarts) && !best_.empty()) return;
          offer_dispatched(entry, {first, in_flight});
        }
  }

  bool offer_dispatched(const std::vector<int>& entry, const Rule& rule) {
    const std::vector<int> order = dispatch(jobs_, entry, rule, dispatched_);
    if (order.empty() || !trial_.load(order, from_.makespan)) return false;
    from_ = {entry, rule, trial_.makespan()};
    if (trial_.makespan() < least_) {
      least_ = trial_.makespan();
      best_ = trial_.order();
      method_ = "dispatch";
    }
    return true;
  }

  void one_after_another(const std::vector<int>& entry) {
    for (const Rule::First first : {Rule::deepest, Rule::oldest, Rule::longest})
      offer_dispatched(entry, {first, 1});
  }

  /// One after another, where dispatching the blocks of one ran into full memory: each in an order that fits
  /// beside what those before it keep.
  void in_orders_that_fit() {
    Placement kept = placement_;
    std::vector<int> all;
    for (int i = 0; i < jobs_.micro_batches(); ++i) {
      const std::vector<int> order = order_that_fits(unrolled(kept, {sizes_[i]}));
      if (order.empty() || stopped()) return;
      for (const int b : order) {
        all.push_back(i * jobs_.blocks() + b);
        for (const int d : placement_.blocks[b].devices) kept.devices[d].static_memory += sizes_[i].memory[b];
      }
    }
    offer(all, "one micro-batch after another");
  }

  /// Of the best dispatched schedule two micro-batches change places, or one goes elsewhere.
  void order_of_entry() {
    const int n = jobs_.micro_batches();
    Random random(options_.seed);
    while (n > 1 && from_.makespan != kNever && !done(kStarts + kEntry)) {
      std::vector<int> entry = from_.entry;
      const int i = random.below(n);
      const int j = (i + 1 + random.below(n - 1)) % n;
      if (random.below(2) == 0) {
        std::swap(entry[i], entry[j]);
      } else {
        const int moved = entry[i];
        entry.erase(entry.begin() + i);
        entry.insert(entry.begin() + j, moved);
      }
      offer_dispatched(entry, from_.rule);
    }
  }

  /// From the best, cool and warm by turns; small steps also from other beginnings, for memory parts the
  /// schedules that moves can reach from each other.
  void anneal() {
    const bool small = jobs_.steps() <= kFewSteps;
    Random random(mixed(options_.seed));
    for (std::uint64_t round = 0; !done(100); ++round) {
      if (!small || round % 2 == 0 || !begin_elsewhere(random)) trial_.load(best_);
      Effort effort;
      effort.enough = bound_;
      effort.work = std::max<std::int64_t>(small ? options_.work / 24 : (options_.work - spent()) / 2,
                                           jobs_.steps() * std::int64_t{16});
      effort.seed = random.next();
      effort.heat = round % 4 < 2 ? least_ / 2 : least_ * 4;  // 1/512 and 1/64 of the makespan
      effort.stop = [this] { return stopped(); };
      improve(jobs_, trial_, effort);
      if (trial_.makespan() >= least_) continue;
      least_ = trial_.makespan();
      best_ = trial_.order();
      method_ = "local search";
    }
  }

  bool begin_elsewhere(Random& random) {
    std::vector<int> entry = from_.entry;
    random.shuffle(entry);
    const Rule::First first[] = {Rule::deepest, Rule::oldest, Rule::longest};
    const Rule rule = {first[random.below(3)], random.below(2 * jobs_.devices() + 1)};
    const std::vector<int> order = dispatch(jobs_, entry, rule, dispatched_);
    return !order.empty() && trial_.load(order);
  }

  Plan plan() {
    trial_.load(best_);
    Plan plan;
    plan.placement_name = placement_.name;
    plan.micro_batches = jobs_.micro_batches();
    plan.sizes = sizes_;
    for (const int s : best_)
      plan.schedule.push_back({jobs_.block(s), jobs_.micro_batch(s), trial_.start(s)});
    sort_schedule(placement_, plan.schedule);
    const OneBatch all = as_one_batch(plan, placement_);
    plan.makespan = least_;
    plan.span = span_of(all.placement, all.plan.schedule);
    plan.peak_memory = peak_memory(all.placement, all.plan.schedule);
    plan.lower_bound.makespan = bound_;
    plan.optimal.makespan = least_ == bound_;
    plan.search = {method_, options_.seed, cut_ && least_ > bound_};
    return plan;
  }

  const Placement& placement_;
  const std::vector<MicroBatch>& sizes_;
  const UnequalOptions& options_;
  Jobs jobs_;
  Sequence trial_;
  Clock::time_point until_;
  std::int64_t dispatched_ = 0;
  Nanoseconds bound_ = 0, least_ = kNever;
  std::vector<int> best_;
  std::string method_;
  Dispatched from_;  ///< the best that was dispatched
  bool cut_ = false;
};

}  // namespace
}  // namespace unequal

Plan search_unequal(const Placement& placement, const std::vector<MicroBatch>& sizes,
                    const UnequalOptions& options) {
  check_sizes(placement, sizes);
  return unequal::Search(placement, sizes, options).run();
}

std::vector<UsualSchedule> usual_schedules(const Placement& placement, const std::vector<MicroBatch>& sizes) {
  check_sizes(placement, sizes);
  Placement unlimited = placement;
  for (Device& device : unlimited.devices) device.memory = kUnlimited;
  const unequal::Jobs jobs(placement, sizes), free(unlimited, sizes);
  const Chains chains(placement);
  const int n = jobs.micro_batches();
  std::vector<UsualSchedule> usual;
  for (const std::string& name : named_schedules()) {
    const NamedSchedule named = named_schedule(name, placement, n, chains);
    const auto schedule = named.orders ? earliest_starts(placement, n, *named.orders) : std::nullopt;
    if (!schedule) continue;
    std::vector<int> order;
    for (const ScheduledBlock& step : *schedule)
      order.push_back(step.micro_batch * jobs.blocks() + step.block);
    unequal::Sequence within(jobs), without(free);
    if (without.load(order)) usual.push_back({name, without.makespan(), within.load(order)});
  }
  return usual;
}

}  // namespace ostinato
