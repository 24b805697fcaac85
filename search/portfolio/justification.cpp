// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "search/portfolio/completions.h"
#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

/// Steps that justification may run in all; and, for long schedules, this many passes, up to a limit.
constexpr std::int64_t kJustifiedSteps = 1'500'000;
constexpr std::int64_t kPasses = 4;
constexpr std::int64_t kMostSteps = 8'000'000;

/// Work on other repetends (RepetendOptions::work), and steps that their justification may run, in all.
constexpr std::int64_t kOthersWork = 20'000'000;
constexpr std::int64_t kOthersSteps = 400'000;

/// Offers a sequence justified; the steps that ran come off `left`. Its makespan, absent where none are left,
/// or the search is over.
std::optional<Nanoseconds> improve(Hunt& hunt, const std::vector<int>& sequence, const std::string& method,
                                   bool patient, std::int64_t& left) {
  if (hunt.proved() || hunt.stopped()) return std::nullopt;
  const auto better =
      justified(hunt, sequence, patient, left / static_cast<std::int64_t>(sequence.size() + 1));
  if (!better) return std::nullopt;
  left -= better->steps;
  hunt.best.offer(better->sequence, method);
  return better->makespan;
}

void improve_both_ways(Hunt& hunt, const std::vector<int>& sequence, const std::string& method,
                       std::int64_t& left) {
  for (const bool patient : {false, true}) improve(hunt, sequence, method, patient, left);
}

/// Justifies the repetitions of the repetends, and the best schedule of all.
void try_justified(Hunt& hunt) {
  std::int64_t left = hunt.share(std::max(kJustifiedSteps, std::min(kPasses * hunt.all_steps(), kMostSteps)));
  for (; hunt.justified < hunt.repetends.size(); ++hunt.justified) {
    const Repetend& repetend = hunt.repetends[hunt.justified];
    const std::vector<int> rigid = repeated(hunt, repetend);
    hunt.best.offer(rigid, method_of(repetend));
    improve_both_ways(hunt, rigid, method_of(repetend), left);
  }
  improve_both_ways(hunt, hunt.best.sequence(), hunt.best.method(), left);
}

/// Of every rate in turn, the best first.
std::vector<Repetend> one_of_each_rate(const Hunt& hunt) {
  std::vector<Repetend> rates;
  for (auto r = hunt.repetends.rbegin(); r != hunt.repetends.rend(); ++r) {
    if (std::none_of(rates.begin(), rates.end(), [&](const Repetend& known) {
          return known.period * r->unroll == r->period * known.unroll;
        }))
      rates.push_back(*r);
  }
  return rates;
}

/// Repetends of one rate differ in how their ends close, which only what becomes of them tells. The one that
/// becomes the shortest comes before all others in what follows, if it is the best so far.
void try_others(Hunt& hunt) {
  const std::vector<Repetend> rates = one_of_each_rate(hunt);
  const Nanoseconds known = hunt.best.score().objective;
  std::int64_t steps = hunt.share(kOthersSteps);
  std::optional<Repetend> shortest;
  Nanoseconds least = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const auto rates_left = static_cast<std::int64_t>(rates.size() - i);
    std::int64_t left = steps / rates_left;
    steps -= left;
    RepetendOptions options;
    options.work = hunt.share(kOthersWork) / static_cast<std::int64_t>(rates.size());
    options.stop = hunt.stop();
    for (const Repetend& other : others_like(hunt.in, rates[i], options)) {
      const auto made = improve(hunt, repeated(hunt, other), method_of(other), true, left);
      if (!made) break;
      if (shortest && *made >= least) continue;
      shortest = other;
      least = *made;
    }
    steps += left;
  }
  if (!shortest || hunt.best.score().objective >= known) return;
  improve(hunt, repeated(hunt, *shortest), method_of(*shortest), false, steps);
  hunt.repetends.insert(hunt.repetends.begin(), *std::move(shortest));
  ++hunt.justified;
}

}  // namespace

const Technique techniques::kJustification = {"justification", try_justified};
const Technique techniques::kOthers = {"other repetends", try_others};

}  // namespace ostinato
