#include "search/repetend.h"

#include <algorithm>

#include "search/modulo.h"

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
  return total * unroll;
}

ModuloLimits limits_of(const Instance& in) {
  ModuloLimits limits;
  for (int d = 0; d < in.devices(); ++d) limits.room.push_back(in.room(d));
  return limits;
}

}  // namespace

Repetend find_repetend(const Instance& in, const Bounds& bounds, int unroll, const RepetendOptions& options) {
  Repetend best;
  best.unroll = unroll;
  ModuloProblem problem(in, unroll);
  const ModuloLimits limits = limits_of(in);
  Nanoseconds refuted = std::max<Nanoseconds>(1, bounds.period(unroll)) - 1;  // no period up to here exists
  Nanoseconds least = refuted + 1;  // nothing below is feasible, or was found
  Nanoseconds most = options.below > 0 ? options.below - 1 : long_enough(in, unroll);
  Nanoseconds step = 0;  // the next period to try is least + step: near the bound first
  ModuloEffort effort{.work = options.work, .stop = options.stop};
  while (least <= most && effort.work > 0) {
    if (options.stop && options.stop()) break;
    const Nanoseconds period = std::min(most, least + step);
    effort.nodes = options.nodes;
    const ModuloProblem::Outcome outcome = problem.solve(period, limits, effort);
    if (outcome == ModuloProblem::Outcome::found) {
      best.period = problem.tighten(least, period);
      best.start = problem.start();
      most = best.period - 1;
      step = most > least ? (most - least) / 2 : 0;
    } else {
      if (outcome == ModuloProblem::Outcome::none) refuted = period;
      least = period + 1;
      step = step == 0 ? std::max<Nanoseconds>(1, period / 64)
                       : std::min(2 * step, std::max<Nanoseconds>(1, most - least));
      if (best.period > 0) step = (most - least) / 2;
    }
  }
  best.period_proved = best.period == refuted + 1;
  return best;
}

}  // namespace ostinato
