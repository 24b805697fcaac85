#include "search/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "bindings/cli/candidates.h"
#include "bindings/cli/command.h"
#include "bindings/cli/options.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/plan_summary.h"
#include "bindings/cli/profile_arguments.h"
#include "bindings/cli/progress.h"
#include "search/file.h"
#include "search/partition/even_split.h"
#include "search/partition/profile_json.h"
#include "search/placement_toml.h"
#include "search/quantity.h"

namespace ostinato::cli {
namespace {

/// What a plan is compared with: 1F1B where nobody balanced the stages, and on the best stages with one
/// chunk.
struct Baselines {
  std::optional<Baseline> even;
  std::optional<Baseline> balanced;
};

Baselines baselines(const Profile& profile, const Candidate& one_chunk, int micro_batches) {
  Baselines result;
  result.even = one_f_one_b(even_split(profile, one_chunk.options), micro_batches);
  if (one_chunk.placement) result.balanced = one_f_one_b(*one_chunk.placement, micro_batches);
  return result;
}

std::string times(Nanoseconds value, Nanoseconds best) {
  return best > 0 ? fmt::format("{:.3f}", static_cast<double>(value) / static_cast<double>(best)) : "";
}

std::string row(const std::string& mark, const std::string& name, const std::string& makespan,
                const std::string& ratio, const std::string& note) {
  std::string text = fmt::format("{:1} {:<31} {:>12} {:>8}   {}", mark, name, makespan, ratio, note);
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string candidate_row(const Candidate& candidate, bool wins, Nanoseconds best) {
  if (!candidate.searched) return row("", candidate.name, "–", "", candidate.why_not);
  const Plan& plan = candidate.searched->plan;
  std::string note = plan.optimal.makespan
                         ? "optimal for it (proved)"
                         : "gap to its bound " + gap(plan.makespan, plan.lower_bound.makespan);
  note += fmt::format(", busiest device {}", format_time(busiest_device(*candidate.placement)));
  return row(wins ? "*" : "", candidate.name, format_time(plan.makespan), times(plan.makespan, best), note);
}

std::string baseline_row(const std::string& name, const std::optional<Baseline>& baseline, Nanoseconds best) {
  if (!baseline) return "";
  return row("", name, format_time(baseline->makespan), times(baseline->makespan, best),
             baseline->fits ? "" : "does not fit the memory");
}

std::string table(const std::vector<Candidate>& candidates, std::size_t winner, const Baselines& base) {
  const Nanoseconds best = candidates[winner].searched->plan.makespan;
  std::string text = row("", "placement", "makespan", "ratio", "");
  for (std::size_t i = 0; i < candidates.size(); ++i) text += candidate_row(candidates[i], i == winner, best);
  text += baseline_row("1F1B on these stages, 1 chunk", base.balanced, best);
  text += baseline_row("1F1B on an even split of layers", base.even, best);
  return text;
}

/// Why the winner was taken, against the next best.
std::string reason(const std::vector<Candidate>& candidates, std::size_t winner) {
  const Candidate* next = nullptr;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (i == winner || !candidates[i].searched) continue;
    if (next == nullptr || candidates[i].value() < next->value()) next = &candidates[i];
  }
  const Candidate& best = candidates[winner];
  const char* objective = to_string(best.searched->plan.objective);
  if (next == nullptr) return fmt::format("{} was chosen: no other placement has a plan.\n", best.name);
  if (next->value() == best.value()) {
    return fmt::format(
        "{} was chosen: its {} of {} is reached by {} too, and it was listed first (fewer chunks, fewer "
        "transfers).\n",
        best.name, objective, format_time(best.value()), next->name);
  }
  return fmt::format(
      "{} was chosen: its {} of {} is the shortest within the memory; the next best, {}, takes {} more.\n",
      best.name, objective, format_time(best.value()), next->name, gap(next->value(), best.value()));
}

Json candidates_json(const std::vector<Candidate>& candidates) {
  Json list = Json::array();
  for (const Candidate& c : candidates) {
    Json json = {{"name", c.name},
                 {"chunks", c.options.chunks},
                 {"layout", c.options.layout == ChunkLayout::wave ? "wave" : "looped"}};
    if (c.searched) {
      json["makespan"] = c.searched->plan.makespan;
      json["lower_bound"] = c.searched->plan.lower_bound.makespan;
      json["seconds"] = c.searched->seconds;
    } else {
      json["why_not"] = c.why_not;
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json baseline_json(const std::optional<Baseline>& baseline) {
  if (!baseline) return nullptr;
  return {{"makespan", baseline->makespan}, {"fits", baseline->fits}};
}

struct Outputs {
  std::string plan, placement;
};

/// Writes both files: the plan first, which alone took long to compute.
void save(const Candidate& winner, const Outputs& outputs, Io& io) {
  const std::string text = format_placement(*winner.placement);
  Plan plan = winner.searched->plan;
  plan.placement_sha256 = sha256(text);
  save_plan(outputs.plan, plan, *winner.placement, io);
  write_file(outputs.placement, text);
}

double total_seconds(const std::vector<Candidate>& candidates) {
  double seconds = 0;
  for (const Candidate& c : candidates) seconds += c.searched ? c.searched->seconds : 0;
  return seconds;
}

}  // namespace

int plan_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line("plan",
                   "From a profile to a plan: partitions the model for one and for several chunks per "
                   "device, looped and as\n"
                   "a wave, searches each, and takes the shortest that fits the memory.",
                   "plan profile.json --devices 4 --micro-batches 8 --device-memory 40GiB --placement-output "
                   "placement.toml "
                   "--output plan.json");
  Outputs outputs;
  ProfileArguments arguments(line, true);
  OptionSet options(line, {"plan", "partition", "search"}, {"chunks", "layout"});
  line.app.add_option("--output", outputs.plan, "Plan file to write (JSON)")->required()->type_name("PLAN");
  line.app.add_option("--placement-output", outputs.placement, "Placement file to write (TOML)")
      ->required()
      ->type_name("PLACEMENT");
  if (!line.parse(args, io)) return 0;
  options.resolve();
  const SearchOptions wanted = search_options(options, arguments.micro_batches);
  const int most = static_cast<int>(std::clamp<std::int64_t>(options.integer("max_chunks"), 1, 64));
  std::vector<Candidate> candidates = list_candidates(arguments.partition_options(options), most);
  const Profile profile = read_profile(arguments.profile);
  check_can_write(outputs.plan);
  check_can_write(outputs.placement);

  const InterruptGuard guard;
  try_candidates(profile, wanted, guard, candidates, io);
  const std::size_t winner = best_candidate(candidates);
  const Candidate& best = candidates[winner];
  save(best, outputs, io);
  const bool untried =
      guard.caught() && std::any_of(candidates.begin(), candidates.end(),
                                    [](const Candidate& c) { return c.placement && !c.searched; });
  const ExitStatus found = status_of(best.searched->plan, guard);
  const int status = to_int(untried ? ExitStatus::interrupted : found);
  const Baselines base = baselines(profile, candidates.front(), arguments.micro_batches);
  if (line.json) {
    Json json = {{"status", status},
                 {"output", outputs.plan},
                 {"placement_output", outputs.placement},
                 {"chosen", best.name}};
    json.update(summary_json(best.searched->plan, *best.placement, total_seconds(candidates)));
    json["candidates"] = candidates_json(candidates);
    json["baselines"] = {{"1f1b", baseline_json(base.balanced)},
                         {"1f1b_even_split", baseline_json(base.even)}};
    print_json(json, io);
    return status;
  }
  io.out << table(candidates, winner, base) << reason(candidates, winner) << '\n'
         << summary(best.searched->plan, *best.placement, total_seconds(candidates))
         << fmt::format("  written to        {}, {}\n", outputs.plan, outputs.placement);
  return status;
}

}  // namespace ostinato::cli
