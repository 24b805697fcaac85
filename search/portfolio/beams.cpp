// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "search/portfolio/completions.h"
#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

struct Part {
  std::string method;
  std::function<Found()> run;
};

/// On any number of threads, and taken as if they had run one by one: so no part may read what the parts
/// before it change (Hunt::best, limit(), work_left).
void run_parts(Hunt& hunt, const std::vector<Part>& parts) {
  const std::size_t at_once = std::max(1, hunt.options.threads);
  for (std::size_t begin = 0; begin < parts.size(); begin += at_once) {
    const std::size_t end = std::min(parts.size(), begin + at_once);
    std::vector<Found> found(end - begin);
    std::vector<std::thread> threads;
    for (std::size_t i = begin + 1; i < end; ++i) {
      threads.emplace_back([&, i] { found[i - begin] = parts[i].run(); });
    }
    found[0] = parts[begin].run();
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = begin; i < end; ++i) {
      if (hunt.proved() || hunt.work_left <= 0) return;
      hunt.work_left -= found[i - begin].work;
      hunt.truncated = hunt.truncated || found[i - begin].truncated;
      for (const auto& sequence : found[i - begin].sequences) hunt.best.offer(sequence, parts[i].method);
      hunt.report("rounds of beam searches");
    }
    if (hunt.stopped()) return;
  }
}

Found whole_horizon_beam(Hunt& hunt, const BeamGoal& goal, Nanoseconds limit, bool backwards, int width,
                         int flavour) {
  BeamOptions options;
  options.width = width;
  options.flavour = flavour;
  if (limit > 0) options.give_up = limit;
  options.stop = hunt.stop();
  BeamResult result = beam_search(backwards ? hunt.mirror : hunt.in, goal, options);
  if (backwards) std::reverse(result.order.begin(), result.order.end());
  Found found;
  found.work = result.work;
  found.truncated = result.truncated;
  if (!result.order.empty()) found.sequences.push_back(std::move(result.order));
  add_justified(hunt, found);
  return found;
}

void search_by_beams(Hunt& hunt) {
  int width = hunt.width;
  std::vector<Part> parts;
  const std::int64_t work = hunt.work_left;
  for (const Repetend& repetend : hunt.repetends) {
    parts.push_back({method_of(repetend),
                     [&hunt, &repetend, work] { return completed(hunt, repetend, hunt.width, work); }});
  }
  // Large cases get a narrow beam in the first round, and no other.
  while (width > 1 && width <= kWidths[0] && !hunt.affordable(beam_work(hunt.in, hunt.steps(), width)))
    width /= 2;
  const BeamGoal goals[] = {hunt.horizon(false), hunt.horizon(true)};
  const Nanoseconds limit = hunt.limit();
  if (!hunt.few() && hunt.affordable(beam_work(hunt.in, hunt.steps(), width))) {
    for (int flavour = 0; flavour < kBeamFlavours; ++flavour) {
      for (const bool backwards : {false, true}) {
        parts.push_back({"beam", [=, &hunt, &goals] {
                           return whole_horizon_beam(hunt, goals[backwards], limit, backwards, width,
                                                     flavour);
                         }});
      }
    }
  }
  run_parts(hunt, parts);
}

}  // namespace

const Technique techniques::kBeams = {"beam search", search_by_beams};

}  // namespace ostinato
