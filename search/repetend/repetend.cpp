// SPDX-License-Identifier: Apache-2.0
#include "search/repetend/repetend.h"

#include <algorithm>

#include "search/repetend/list.h"
#include "search/repetend/modulo.h"
#include "search/repetend/sweep.h"

namespace ostinato {
namespace {

/// A period that is surely long enough for a repetend that nothing overlaps, unless memory forbids even that.
Nanoseconds long_enough(const Instance& in, int unroll) {
  Nanoseconds total = 0;
  for (int b = 0; b < in.blocks(); ++b) {
    Nanoseconds slowest = 0;
    for (const Edge& e : in.inputs(b)) slowest = std::max(slowest, e.transfer);
    total += in.time(b) + slowest;
  }
  return std::max<Nanoseconds>(1, total * unroll);  // a period is never 0
}

ModuloLimits limits_of(const Instance& in) {
  ModuloLimits limits;
  for (int d = 0; d < in.devices(); ++d) limits.room.push_back(in.room(d));
  return limits;
}

/// Looks for the least period by exact search, between periods that are refuted and one that is known.
class PeriodSearch {
 public:
  PeriodSearch(const Instance& in, int unroll, const RepetendOptions& options)
      : options_(options), limits_(limits_of(in)), left_(options.work), problem_(in, unroll) {}

  /// Improves `best`, if it is found below `most` (included). No period up to `refuted` exists; it grows.
  void run(Repetend& best, Nanoseconds& refuted, Nanoseconds most) {
    Nanoseconds least = refuted + 1;  // nothing below is feasible, or was found
    Nanoseconds step = 0;             // the next period to try is least + step: near the bound first
    while (least <= most && left_ > 0 && !(options_.stop && options_.stop())) {
      const Nanoseconds period = std::min(most, least + step);
      ModuloEffort effort{options_.nodes, (left_ - 1) / options_.part + 1, options_.stop};
      left_ -= effort.work;
      const ModuloProblem::Outcome outcome = problem_.solve(period, limits_, effort);
      left_ += effort.work;
      if (outcome == ModuloProblem::Outcome::found) {
        best.period = problem_.tighten(least, period);
        best.start = problem_.start();
        most = best.period - 1;
        step = most > least ? (most - least) / 2 : 0;
        continue;
      }
      if (outcome == ModuloProblem::Outcome::none) refuted = period;
      least = period + 1;
      step = step == 0 ? std::max<Nanoseconds>(1, period / 64)
                       : std::min(2 * step, std::max<Nanoseconds>(1, most - least));
      if (best.period > 0) step = (most - least) / 2;
    }
  }

 private:
  const RepetendOptions& options_;
  const ModuloLimits limits_;
  std::int64_t left_;  ///< of the work
  ModuloProblem problem_;
};

/// List schedules with growing periods, up to `most`, until one is found.
std::optional<Repetend> first_listed(const Instance& in, int unroll, Nanoseconds least, Nanoseconds most,
                                     const std::function<bool()>& stop) {
  if (!listable(in, unroll)) return std::nullopt;
  for (Nanoseconds period = least; period <= most && !(stop && stop());
       period += std::max<Nanoseconds>(1, (period - least) + period / 64)) {
    if (auto listed = list_repetend(in, unroll, period)) return listed;
  }
  return std::nullopt;
}

/// Micro-batches of a repetend up to which a sweep is tried: of more, the phases are too many for a beam.
constexpr int kMostSweptUnroll = 2;
/// Sweeps may take twice the usual work for an eighth of this many blocks and more, three times for twice as
/// many.
constexpr std::int64_t kManyBlocks = 1000;

std::int64_t sweep_work(std::int64_t usual, std::int64_t blocks) {
  return usual + usual / kManyBlocks * std::max(blocks, std::min(8 * blocks, kManyBlocks));
}

/// Periods of `unroll` micro-batches below this are shorter for each than `best`'s.
Nanoseconds below_rate_of(const Repetend& best, int unroll) {
  return static_cast<Nanoseconds>((static_cast<__int128>(best.period) * unroll - 1) / best.unroll) + 1;
}

/// Periods up to which the fraction of a nanosecond matters that several micro-batches may save.
constexpr Nanoseconds kCoarse = 1000;

/// No repetend has a better rate, but for that fraction. What takes no time has none.
bool is_least(const Repetend& found, const Bounds& bounds) {
  const Nanoseconds least = bounds.period(found.unroll);
  return least == 0 || (found.period <= least && found.period > kCoarse);
}

/// Sweeps with periods above `refuted` and up to `most`: the longest first where several micro-batches make
/// one unlikely, then by bisection.
std::optional<Repetend> shortest_swept(const Sweeps& sweeps, int unroll, Nanoseconds refuted,
                                       Nanoseconds most, SweepEffort& effort) {
  std::optional<Repetend> best;
  const Nanoseconds step = sweeps.grid();
  std::int64_t least = refuted / step + 1;
  std::int64_t middle = most / step;
  most = middle;
  if (unroll == 1) middle = least + (most - least) / 2;
  while (least <= most && effort.work > 0 && !(effort.stop && effort.stop())) {
    if (auto swept = sweeps.find(unroll, middle * step, effort)) {
      best = std::move(swept);
      most = middle - 1;
    } else {
      least = middle + 1;
    }
    middle = least + (most - least) / 2;
  }
  return best;
}

/// Other repetends are looked for by so many list schedules at most, for one part in so many of the work
/// beside, and by branching in at most and at least so many orders.
constexpr double kMostLists = 64;
constexpr std::int64_t kListedPart = 16;
constexpr int kMostOrders = 16;
constexpr std::int64_t kLeastOrders = 3;

/// No period of this many micro-batches up to this exists, as far as `found` knows.
Nanoseconds refuted_for(const Bounds& bounds, const std::vector<Repetend>& found, int unroll) {
  Nanoseconds refuted = std::max<Nanoseconds>(1, bounds.period(unroll)) - 1;
  for (const Repetend& r : found) {
    if (r.unroll == unroll) refuted = std::max(refuted, r.refuted);
  }
  return refuted;
}

}  // namespace

Repetend find_repetend(const Instance& in, const Bounds& bounds, int unroll, const RepetendOptions& options) {
  Nanoseconds refuted = std::max<Nanoseconds>(1, bounds.period(unroll)) - 1;  // no period up to here exists
  const Nanoseconds most = options.below > 0 ? options.below - 1 : long_enough(in, unroll);
  Repetend best = first_listed(in, unroll, refuted + 1, most, options.stop).value_or(Repetend{});
  best.unroll = unroll;
  if (best.period != refuted + 1 && searchable(in, unroll)) {
    PeriodSearch(in, unroll, options).run(best, refuted, best.period > 0 ? best.period - 1 : most);
  }
  best.period_proved = best.period == refuted + 1;
  best.refuted = refuted;
  return best;
}

std::vector<Repetend> repetends_of_growing_rate(const Instance& in, const Bounds& bounds, int most_unroll,
                                                RepetendOptions options, const Repetend* known) {
  std::vector<Repetend> found;
  for (int unroll = 1; unroll <= most_unroll && !(options.stop && options.stop()); ++unroll) {
    const Repetend* best = found.empty() ? known : &found.back();
    if (best != nullptr) {
      options.below = below_rate_of(*best, unroll);
      if (options.below <= bounds.period(unroll)) continue;
    }
    Repetend next = find_repetend(in, bounds, unroll, options);
    if (next.period == 0) continue;
    found.push_back(std::move(next));
    if (is_least(found.back(), bounds)) break;
  }
  return found;
}

std::vector<Repetend> swept_repetends(const Instance& in, const Bounds& bounds,
                                      const std::vector<Repetend>& found, const RepetendOptions& options) {
  std::vector<Repetend> swept;
  if (found.empty() || is_least(found.back(), bounds)) return swept;
  const Sweeps sweeps(in);
  SweepEffort effort{.work = sweep_work(options.swept, in.blocks()), .stop = options.stop};
  for (int unroll = 1; unroll <= kMostSweptUnroll; ++unroll) {
    const Nanoseconds refuted = refuted_for(bounds, found, unroll);
    const Nanoseconds most = below_rate_of(swept.empty() ? found.back() : swept.back(), unroll) - 1;
    if (most <= refuted || !sweeps.apply(unroll)) continue;
    std::optional<Repetend> next = shortest_swept(sweeps, unroll, refuted, most, effort);
    if (!next) continue;
    next->refuted = refuted;
    next->period_proved = next->period == refuted + 1;
    swept.push_back(std::move(*next));
  }
  return swept;
}

std::vector<Repetend> others_like(const Instance& in, const Repetend& like, RepetendOptions options) {
  std::vector<Repetend> others;
  const auto add = [&](const std::vector<Nanoseconds>& start) {
    const auto same = [&](const Repetend& known) { return known.start == start; };
    if (same(like) || std::any_of(others.begin(), others.end(), same)) return;
    others.push_back(like);
    others.back().start = start;
    others.back().memory_proved = false;
  };
  const auto stopped = [&] { return options.stop && options.stop(); };
  const double lists = static_cast<double>(options.work / kListedPart) / list_work(in, like.unroll);
  for (int seed = 1; seed <= std::min(lists, kMostLists) && !stopped(); ++seed) {
    if (auto listed = list_repetend(in, like.unroll, like.period, seed)) add(listed->start);
  }
  if (!searchable(in, like.unroll)) return others;
  ModuloProblem problem(in, like.unroll);
  const std::int64_t most = options.work / kLeastOrders;
  for (int seed = 1; seed <= kMostOrders && options.work > 0 && !stopped(); ++seed) {
    ModuloEffort effort{options.nodes, std::min(most, options.work), options.stop};
    options.work -= effort.work;
    problem.reorder(seed);
    const ModuloProblem::Outcome outcome = problem.solve(like.period, limits_of(in), effort);
    options.work += effort.work;
    if (outcome == ModuloProblem::Outcome::found) add(problem.start());
  }
  return others;
}

}  // namespace ostinato
