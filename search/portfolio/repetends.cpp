// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "search/portfolio/techniques.h"
#include "search/repetend/completion.h"

namespace ostinato {
namespace {

/// Steps up to which a plan that meets its bound already is improved in memory.
constexpr std::int64_t kSparedSteps = 1'000'000;
/// RepetendOptions::work for that.
constexpr std::int64_t kSparingWork = 1'000'000;
/// RepetendOptions::work of a patient search.
constexpr std::int64_t kPatientWork = 300'000'000;

void try_repetends(Hunt& hunt) {
  if (hunt.proved() && hunt.steps() > kSparedSteps) return;
  RepetendOptions options;
  options.work = hunt.proved() ? kSparingWork : hunt.share(options.work);
  options.stop = hunt.stop();
  hunt.repetends =
      repetends_of_growing_rate(hunt.in, hunt.bounds, std::min(kMostUnroll, hunt.micro_batches), options);
  hunt.justified = 0;
  if (hunt.repetends.empty()) return;
  const Repetend& best = hunt.repetends.back();
  Repetend spare = with_least_memory(hunt.in, best, options);
  if (held_by(hunt.in, spare) != held_by(hunt.in, best)) hunt.repetends.push_back(std::move(spare));
}

void sweep_devices(Hunt& hunt) {
  RepetendOptions options;
  options.swept = hunt.share(options.swept);
  options.stop = hunt.stop();
  for (Repetend& swept : swept_repetends(hunt.in, hunt.bounds, hunt.repetends, options)) {
    if (swept.unroll <= hunt.micro_batches) hunt.repetends.push_back(std::move(swept));
  }
}

/// One period may take an eighth of the work that is left: so the longer ones, which are found with less,
/// have theirs.
void find_patiently(Hunt& hunt) {
  if (hunt.repetends.empty() || hunt.proved()) return;
  const Repetend best = hunt.repetends.back();  // of the best rate, as each that is added is no worse
  RepetendOptions options;
  options.work = hunt.share(kPatientWork);
  options.part = 8;
  options.stop = hunt.stop();
  for (Repetend& better : repetends_of_growing_rate(
           hunt.in, hunt.bounds, std::min(kMostUnroll, hunt.micro_batches), options, &best))
    hunt.repetends.push_back(std::move(better));
}

}  // namespace

const Technique techniques::kRepetend = {"repetend", try_repetends};
const Technique techniques::kMoreRepetends = {"patient repetends", find_patiently};
const Technique techniques::kSweeps = {"sweeps over the devices", sweep_devices};

}  // namespace ostinato
