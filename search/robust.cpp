// SPDX-License-Identifier: Apache-2.0
// 1. A plan is one list of its steps by start. Scenario 0 has the placement's times; of the rest, half vary
//    each step, and half each micro-batch.
// 2. A move takes a step in front of one of the steps before it on a device. It is legal if all that the step
//    waits for stays in front of it, and no device runs out of memory.
// 3. From the move on, ends are computed again in all scenarios at once. The move stays if scenario 0 is
//    within the limit and the longest eighth of the rest got shorter.
// 4. This is repeated over the whole list until no move helps. Then some random moves within the limit lead
//    away, and from there it climbs again (iterated local search: Lourenco, Martin, Stuetzle 2003), until
//    kInVain of these in a row have found nothing better or the work is used up.
#include "search/robust.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>

#include "search/files/value.h"
#include "search/leaner.h"
#include "search/numbers/nearest_rank.h"
#include "search/numbers/random.h"
#include "search/plan/memory.h"
#include "search/plan/orders.h"
#include "search/simulate/simulate.h"

namespace ostinato {
namespace {

constexpr int kScenarios = 64;
constexpr int kLongest = kScenarios / 8;
/// Steps on a device that a move passes at most.
constexpr int kFarthest = 3;
/// Random moves at once, and times that they may lead nowhere.
constexpr int kRandomMoves = 6;
constexpr int kInVain = 24;
/// What is said of a plan: of this many replays of each kind, per cent that are not longer.
constexpr int kReplays = 200;
constexpr int kOfReplays = 95;
/// Ends that are computed, at an effort of 100.
constexpr std::int64_t kWork = 1'000'000'000;

using Row = std::array<Nanoseconds, kScenarios>;

class Climb {
 public:
  /// The longest eighth, and all: less is better.
  using Score = std::pair<Nanoseconds, Nanoseconds>;

  Climb(const Placement& placement, const SearchOptions& options, Nanoseconds limit)
      : placement_(placement),
        options_(options),
        blocks_(static_cast<int>(placement.blocks.size())),
        limit_(limit) {
    const int half = kScenarios / 2;
    times_.resize(static_cast<std::size_t>(blocks_) * options.micro_batches);
    for (int k = 0; k < kScenarios; ++k) {
      SimulateOptions varied{.seed = options.seed};
      (k < half ? varied.jitter_ppm : varied.unequal_ppm) = k == 0 ? 0 : options.robust_ppm;
      const std::vector<Nanoseconds> times = varied_times(placement, options.micro_batches, varied, k);
      for (std::size_t s = 0; s < times.size(); ++s) times_[s][k] = times[s];
    }
    ends_.resize(times_.size());
    at_.resize(times_.size());
  }

  void run(const std::vector<ScheduledBlock>& schedule, std::int64_t work) {
    for (const ScheduledBlock& s : schedule) list_.push_back(s.micro_batch * blocks_ + s.block);
    work_ = work;
    load();
    climb();
    Random random(options_.seed);
    for (int in_vain = 0; in_vain < kInVain && !stopped();) {
      const Score before = best_;
      const std::vector<int> kept = list_;
      for (int k = 0; k < kRandomMoves; ++k) improve(1 + random.below(steps() - 1), Take::any);
      climb();
      in_vain = best_ < before ? 0 : in_vain + 1;
      if (in_vain == 0) continue;
      list_ = kept;
      load();
    }
  }

  Score best() const { return best_; }

  std::vector<ScheduledBlock> schedule() const {
    std::vector<ScheduledBlock> schedule;
    for (const int s : list_) schedule.push_back({s % blocks_, s / blocks_, ends_[s][0] - times_[s][0]});
    sort_schedule(placement_, schedule);
    return schedule;
  }

 private:
  using Clock = std::chrono::steady_clock;

  int steps() const { return static_cast<int>(list_.size()); }
  const Block& block(int step) const { return placement_.blocks[step % blocks_]; }
  bool stopped() const { return work_ <= 0 || is_over(options_, Clock::now() - began_); }

  /// What moves are taken of those within the limit.
  enum class Take { better, any };

  void load() {
    place(0, steps());
    best_ = score(0);
  }

  void climb() {
    for (bool better = true; better && !stopped();) {
      better = false;
      for (int i = 1; i < steps() && !stopped(); ++i) better = improve(i, Take::better) || better;
    }
  }

  void place(int from, int to) {
    for (int i = from; i < to; ++i) at_[list_[i]] = i;
  }

  /// Moves of the step at `i` to the front, the shortest first.
  bool improve(int i, Take take) {
    const int step = list_[i], free = last_input(step) + 1;
    int passed = 0;
    for (int to = i - 1; to >= free && passed < kFarthest; --to) {
      if (!share(step, list_[to])) continue;
      ++passed;
      if (fits(to, i) && moved(to, i, take)) return true;
    }
    return false;
  }

  /// Where the last of the steps stands that `step` waits for; -1: there is none.
  int last_input(int step) const {
    int last = step >= blocks_ ? at_[step - blocks_] : -1;
    for (const Dependency& input : block(step).after)
      last = std::max(last, at_[step - step % blocks_ + input.block]);
    return last;
  }

  bool share(int a, int b) const {
    const std::vector<int>&of_a = block(a).devices, &of_b = block(b).devices;
    return std::ranges::find_first_of(of_a, of_b) != of_a.end();
  }

  /// Whether its devices have the memory where the step at `from` runs in front of the one at `to`.
  bool fits(int to, int from) const {
    return std::ranges::all_of(block(list_[from]).devices, [&](int device) {
      Bytes used = placement_.devices[device].static_memory;
      const auto run = [&](int step) {
        const Block& b = block(step);
        if (std::ranges::find(b.devices, device) == b.devices.end()) return true;
        const bool fits =
            used + std::max<Bytes>(0, b.memory) + b.workspace <= placement_.devices[device].memory;
        used += b.memory;
        return fits;
      };
      for (int i = 0; i < to; ++i) run(list_[i]);
      if (!run(list_[from])) return false;
      for (int i = to; i < from; ++i)
        if (!run(list_[i])) return false;
      return true;
    });
  }

  bool moved(int to, int from, Take take) {
    kept_.clear();
    for (int i = to; i < steps(); ++i) kept_.push_back(ends_[list_[i]]);
    const auto first = list_.begin() + to, last = list_.begin() + from;
    std::rotate(first, last, last + 1);
    const Score now = score(to);
    if (makespans_[0] <= limit_ && (take == Take::any || now < best_)) {
      best_ = now;
      place(to, from + 1);
      return true;
    }
    std::rotate(first, first + 1, last + 1);
    for (int i = to; i < steps(); ++i) ends_[list_[i]] = kept_[i - to];
    return false;
  }

  /// Computes the ends from there on.
  Score score(int from) {
    work_ -= static_cast<std::int64_t>(steps() - from) * kScenarios;
    std::vector<int> last(placement_.devices.size(), -1);
    for (int i = 0; i < from; ++i)
      for (const int d : block(list_[i]).devices) last[d] = list_[i];
    for (int i = from; i < steps(); ++i) {
      compute(list_[i], last);
      for (const int d : block(list_[i]).devices) last[d] = list_[i];
    }
    makespans_.fill(0);
    for (const int step : last)
      if (step >= 0) raise(makespans_, ends_[step], 0);
    Row sorted = makespans_;
    std::nth_element(sorted.begin(), sorted.end() - kLongest, sorted.end());
    return {std::accumulate(sorted.end() - kLongest, sorted.end(), Nanoseconds{0}),
            std::accumulate(sorted.begin(), sorted.end(), Nanoseconds{0})};
  }

  void compute(int step, const std::vector<int>& last) {
    Row start{};
    for (const int d : block(step).devices)
      if (last[d] >= 0) raise(start, ends_[last[d]], 0);
    for (const Dependency& input : block(step).after)
      raise(start, ends_[step - step % blocks_ + input.block], placement_.transfer(input, step % blocks_));
    for (int k = 0; k < kScenarios; ++k) ends_[step][k] = start[k] + times_[step][k];
  }

  static void raise(Row& row, const Row& other, Nanoseconds more) {
    for (int k = 0; k < kScenarios; ++k) row[k] = std::max(row[k], other[k] + more);
  }

  const Placement& placement_;
  const SearchOptions& options_;
  const Clock::time_point began_ = Clock::now();
  const int blocks_;
  const Nanoseconds limit_;
  std::int64_t work_ = 0;
  std::vector<int> list_;          ///< steps
  std::vector<int> at_;            ///< by step: its place in the list
  std::vector<Row> times_, ends_;  ///< by step
  std::vector<Row> kept_;          ///< ends before a move
  Row makespans_{};
  Score best_{};
};

/// "" where they can.
std::string why_times_cannot_vary(const Placement& placement, const Plan& plan) {
  if (plan.objective != Objective::makespan) return "it is for the makespan alone";
  if (!placement.hosts.empty()) return "devices share cores";
  for (const Block& block : placement.blocks)
    if (block.time == 0) return "block " + in_quotes(block.name) + " takes no time";
  const std::int64_t steps = static_cast<std::int64_t>(placement.blocks.size()) * plan.micro_batches;
  return steps > kMostRobustSteps ? fmt::format("the plan has more than {} blocks", kMostRobustSteps) : "";
}

Plan with_schedule(const Placement& placement, Plan plan, std::vector<ScheduledBlock> schedule) {
  const Plan first = plan;
  plan.schedule = std::move(schedule);
  plan.makespan = makespan_of(placement, plan.schedule);
  plan.span = span_of(placement, plan.schedule);
  plan.peak_memory = peak_memory(placement, plan.schedule);
  plan.steady_state = {};
  claim_as(placement, first, plan);
  return plan;
}

}  // namespace

std::vector<Nanoseconds> varied_makespans(const Placement& placement, const Plan& plan, std::int64_t ppm,
                                          int runs, std::uint64_t seed) {
  std::vector<Nanoseconds> all;
  for (const bool alike : {false, true}) {
    SimulateOptions options{.seed = seed, .runs = runs};
    (alike ? options.unequal_ppm : options.jitter_ppm) = ppm;
    const Simulation found = simulate(placement, plan.micro_batches, plan.schedule, options);
    all.insert(all.end(), found.makespans.begin(), found.makespans.end());
  }
  std::ranges::sort(all);
  return all;
}

Plan in_variation(const Placement& placement, const SearchOptions& options, std::vector<Plan> plans) {
  if (const std::string why = why_times_cannot_vary(placement, plans.back()); !why.empty()) {
    plans.back().search.robust.why_not = why;
    return std::move(plans.back());
  }
  const Nanoseconds shortest = std::ranges::min_element(plans, {}, &Plan::makespan)->makespan;
  const std::int64_t work =
      kWork / 100 * std::max(1, options.effort) / static_cast<std::int64_t>(plans.size());
  std::optional<Climb> best;
  const Plan* from = nullptr;
  for (const Plan& plan : plans) {
    Climb climb(placement, options, shortest);
    climb.run(plan.schedule, work);
    if (best && climb.best() >= best->best()) continue;
    best.emplace(std::move(climb));
    from = &plan;
  }
  Plan robust = with_schedule(placement, *from, best->schedule());
  const auto most = [&](const Plan& plan) {  // in other replays than it was chosen by
    const auto all = varied_makespans(placement, plan, options.robust_ppm, kReplays, options.seed + 1);
    return all[nearest_rank(all.size(), kOfReplays)];
  };
  robust.search.robust = {options.robust_ppm, most(robust), most(plans.back())};
  return robust;
}

}  // namespace ostinato
