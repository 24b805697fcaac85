// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "search/bounds/feasible.h"
#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

/// An exact search is this many times as wide as the rest of its round.
constexpr int kExactFactor = 8;
constexpr int kExactWidth = 1024;

/// Where nothing is cut off, no schedule is better than the best: all were covered.
void search_exactly(Hunt& hunt) {
  const int width = std::min(kExactWidth, kExactFactor * hunt.width);
  hunt.exhausted = false;
  if (hunt.few() || (hunt.options.objective != Objective::makespan && !hunt.best.empty()) ||
      !hunt.affordable(beam_work(hunt.in, hunt.steps(), width)))
    return;
  BeamOptions options;
  options.exact = true;
  options.width = width;
  if (hunt.options.objective == Objective::makespan && hunt.to_beat()) options.give_up = *hunt.to_beat();
  options.stop = hunt.stop();
  const BeamResult result = beam_search(hunt.in, hunt.horizon(false), options);
  hunt.work_left -= result.work;
  hunt.truncated = hunt.truncated || result.truncated;
  if (!result.order.empty()) hunt.best.offer(result.order, "exact search");
  hunt.exhausted = !result.truncated;
  refuse_what_fits_in_no_order(hunt);
}

}  // namespace

void refuse_what_fits_in_no_order(const Hunt& hunt) {
  if (!hunt.exhausted || !hunt.best.empty() || hunt.options.below != 0 || memory_in_no_time(hunt.in)) return;
  throw InfeasibleError(fmt::format("all orders of {} were tried, and none fits the memory",
                                    counted(hunt.micro_batches, "micro-batch")));
}

const Technique techniques::kExact = {"exact search", search_exactly};

}  // namespace ostinato
