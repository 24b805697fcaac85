#include "bindings/cli/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bindings/cli/plan_summary.h"
#include "search/error.h"

namespace ostinato::cli {
namespace {

/// What is left of a limit in seconds, shared among `left` searches; 0: no limit.
class TimeBudget {
 public:
  explicit TimeBudget(double limit) : limit_(limit), began_(std::chrono::steady_clock::now()) {}

  double share(std::size_t left) const {
    if (limit_ <= 0) return 0;
    const double used = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    return std::max(0.001, (limit_ - used) / static_cast<double>(left));
  }

 private:
  double limit_;
  std::chrono::steady_clock::time_point began_;
};

void refuse(Candidate& candidate, const std::string& reason, bool infeasible) {
  candidate.why_not = reason;
  candidate.infeasible = infeasible;
}

void partition_one(const Profile& profile, Candidate& candidate) {
  try {
    candidate.placement = partition_chain(profile, candidate.options);
  } catch (const InfeasibleError& error) {
    refuse(candidate, error.what(), true);
  } catch (const InputError& error) {
    if (candidate.options.chunks == 1) throw;
    refuse(candidate, error.what(), false);
  }
}

void search_one(const SearchOptions& options, const InterruptGuard& guard, Candidate& candidate, Io& io) {
  try {
    candidate.searched = run_search(*candidate.placement, options, guard, candidate.name, io);
  } catch (const InfeasibleError& error) {
    refuse(candidate, error.what(), true);
  } catch (const InputError& error) {
    refuse(candidate, error.what(), false);
  }
}

}  // namespace

Nanoseconds Candidate::value() const { return objective_value(searched->plan, *placement); }

std::vector<Candidate> list_candidates(const PartitionOptions& options, int max_chunks) {
  std::vector<Candidate> list;
  const auto add = [&](int chunks, ChunkLayout layout, const std::string& name) {
    Candidate& candidate = list.emplace_back();
    candidate.name = name;
    candidate.options = options;
    candidate.options.chunks = chunks;
    candidate.options.layout = layout;
  };
  add(1, ChunkLayout::looped, "1 chunk per device");
  for (int chunks = 2; chunks <= max_chunks; ++chunks) {
    add(chunks, ChunkLayout::looped, fmt::format("looped, {} chunks per device", chunks));
    add(chunks, ChunkLayout::wave, fmt::format("wave, {} chunks per device", chunks));
  }
  return list;
}

void try_candidates(const Profile& profile, const SearchOptions& options, const InterruptGuard& guard,
                    std::vector<Candidate>& candidates, Io& io) {
  const TimeBudget budget(options.time_limit_seconds);
  for (Candidate& candidate : candidates) partition_one(profile, candidate);
  const auto is_placed = [](const Candidate& c) { return c.placement.has_value(); };
  auto left = static_cast<std::size_t>(std::count_if(candidates.begin(), candidates.end(), is_placed));
  for (Candidate& candidate : candidates) {
    if (!candidate.placement) continue;
    if (guard.caught()) {
      refuse(candidate, "not tried: interrupted", false);
      continue;
    }
    SearchOptions share = options;
    share.time_limit_seconds = budget.share(left--);
    search_one(share, guard, candidate, io);
  }
}

std::size_t best_candidate(const std::vector<Candidate>& candidates) {
  std::size_t best = candidates.size();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].searched) continue;
    if (best == candidates.size() || candidates[i].value() < candidates[best].value()) best = i;
  }
  if (best < candidates.size()) return best;
  std::string reasons;
  for (const Candidate& c : candidates) reasons += fmt::format("\n  {}: {}", c.name, c.why_not);
  if (std::all_of(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.infeasible; })) {
    throw InfeasibleError("no placement that was tried has a plan:" + reasons);
  }
  throw InputError("", 0, "no placement that was tried has a plan:" + reasons);
}

std::optional<Baseline> one_f_one_b(const Placement& placement, int micro_batches) {
  for (const Reference& r : references(placement, micro_batches, Objective::makespan)) {
    if (r.name == "1f1b") return Baseline{r.makespan, r.fits};
  }
  return std::nullopt;
}

}  // namespace ostinato::cli
