// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "bindings/core/plan_reasons.h"
#include "bindings/core/plan_summary.h"
#include "search/files/wrapped.h"
#include "search/partition/stages.h"
#include "search/placement/quantity.h"
#include "search/plan/proved.h"

namespace ostinato::core {
namespace {

/// Time of the busiest device for one micro-batch.
Nanoseconds busiest_device(const Placement& placement) {
  std::vector<Nanoseconds> busy(placement.devices.size(), 0);
  for (const Block& block : placement.blocks) {
    for (const int d : block.devices) busy[d] += block.time;
  }
  return busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end());
}

struct Row {
  std::string mark, name, bound, value, ratio, memory;
  std::string note = {};  ///< on a separate line
};

/// The widest text of a column.
std::size_t width_of(const std::vector<Row>& rows, std::string Row::*column) {
  std::size_t width = 0;
  for (const Row& row : rows) width = std::max(width, (row.*column).size());
  return width;
}

/// In kColumns: a name that is too long for that gets its own line.
std::string format_rows(const std::vector<Row>& rows) {
  const std::size_t bound = width_of(rows, &Row::bound), value = width_of(rows, &Row::value),
                    ratio = width_of(rows, &Row::ratio), memory = width_of(rows, &Row::memory);
  const std::size_t figures = bound + value + ratio + memory + 4 * 2;
  const std::size_t name = std::min(width_of(rows, &Row::name), kColumns - 2 - figures);
  std::string text;
  for (const Row& row : rows) {
    const bool fits = row.name.size() <= name;
    if (!fits) text += wrapped(fmt::format("{:1} {}", row.mark, row.name), 4) + "\n";
    std::string line =
        fmt::format("{:1} {:<{}}  {:>{}}  {:>{}}  {:>{}}  {:>{}}", fits ? row.mark : "", fits ? row.name : "",
                    name, row.bound, bound, row.value, value, row.ratio, ratio, row.memory, memory);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (!row.note.empty()) text += wrapped("    " + row.note, 4) + "\n";
  }
  return text;
}

/// `notes`: also what its figures rest on, or why it has none.
Row candidate_row(const Candidate& candidate, const Profile& profile, bool wins, Nanoseconds best,
                  bool notes) {
  const std::string name = candidate.forbidden ? fmt::format("{} (not allowed: {})", candidate.name,
                                                             to_string(*candidate.forbidden))
                                               : (wins ? "this plan: " : "") + candidate.name;
  const Nanoseconds bound = std::max(candidate.bound, candidate.plan ? bound_of(*candidate.plan) : 0);
  Row row{wins ? "*" : "", name, bound > 0 ? format_time(bound) : "", {}, {}, {}};
  if (!candidate.plan) {
    if (notes || !(candidate.no_shorter || candidate.forbidden)) row.note = candidate.why_not;
    return row;
  }
  const Plan& plan = *candidate.plan;
  row.value = format_time(candidate.value());
  row.ratio = as_ratio(candidate.value(), best);
  row.memory = format_memory(most_memory_of(candidate, profile));
  if (!notes) return row;
  if (candidate.shared > 0) {
    row.note = fmt::format("{} with one core per device", format_time(plan.makespan));
  } else {
    row.note = is_optimal(plan) ? "optimal for this placement (proved)"
                                : "gap to its bound " + gap(candidate.value(), bound_of(plan));
  }
  row.note += fmt::format(", busiest device {}", format_time(busiest_device(*candidate.placement)));
  return row;
}

/// What is one row of the short table: plans of a kind, "moved" and "moved (2)", with the same figures.
std::tuple<std::string, std::string, std::string, std::string> alike(const Candidate& candidate,
                                                                     const Row& row) {
  return {candidate.name.substr(0, candidate.name.rfind(" (")), row.bound, row.value, row.memory};
}

/// Rows of the table, how many candidates without a plan each reason names, and how many stages have their
/// layers counted.
constexpr std::size_t kMostRows = 10, kMostNamed = 2, kMostStages = 8;

/// Those with a plan, the shortest first.
std::vector<const Candidate*> with_plan(const JointChoice& choice) {
  std::vector<const Candidate*> list = {&choice.candidates[choice.winner]};
  for (const Candidate& candidate : choice.candidates)
    if (candidate.plan && &candidate != list.front()) list.push_back(&candidate);
  std::stable_sort(list.begin() + 1, list.end(),
                   [](const Candidate* a, const Candidate* b) { return a->value() < b->value(); });
  return list;
}

/// Of what this rule forbids, or any (null), the one with the least bound; nullptr: there is none.
const Candidate* least_forbidden(const JointChoice& choice, const Rule* rule) {
  const Candidate* least = nullptr;
  for (const Candidate& c : choice.candidates) {
    if (!c.forbidden || (rule != nullptr && *c.forbidden != *rule)) continue;
    if (least == nullptr || c.bound < least->bound) least = &c;
  }
  return least;
}

/// All, where they are few, but for those with another one's stages; of many also the best that is not
/// allowed.
std::vector<const Candidate*> shown(const JointChoice& choice, bool every) {
  std::vector<const Candidate*> list = with_plan(choice);
  if (list.size() > kMostRows && !every) list.resize(kMostRows);
  if (choice.candidates.size() > kMostRows && !every) {
    if (const Candidate* forbidden = least_forbidden(choice, nullptr)) list.push_back(forbidden);
    return list;
  }
  for (const Candidate& candidate : choice.candidates)
    if (!candidate.plan && (every || candidate.bound > 0 || !candidate.no_shorter))
      list.push_back(&candidate);
  return list;
}

/// "12 more cannot be shorter (each by a proof); the nearest, wave, 3 chunks per device, takes 3.1 s or
/// more."
std::string others_text(const JointChoice& choice, bool every) {
  if (choice.candidates.size() <= kMostRows || every) return "";
  const std::size_t planned = with_plan(choice).size();
  std::string text;
  if (planned > kMostRows) text += fmt::format("{} more take longer.\n", planned - kMostRows);
  const Candidate* nearest = nullptr;
  std::size_t proved = 0, impossible = 0;
  std::vector<const Candidate*> other;
  for (const Candidate& c : choice.candidates) {
    if (c.plan || c.forbidden) continue;
    if (c.infeasible) {
      ++impossible;
    } else if (!c.no_shorter) {
      other.push_back(&c);
    } else {
      ++proved;
      if (c.bound > 0 && (nearest == nullptr || c.bound < nearest->bound)) nearest = &c;
    }
  }
  if (proved > 0) text += fmt::format("{} more cannot be shorter (proved)", proved);
  if (nearest != nullptr)
    text += fmt::format("; the closest, {}, takes at least {}", nearest->name, format_time(nearest->bound));
  if (proved > 0) text += ".\n";
  if (impossible > 0) text += fmt::format("{} cannot be placed (proved).\n", impossible);
  const std::size_t named = std::min(other.size(), kMostNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const bool next_too = i + 1 < named && other[i + 1]->why_not == other[i]->why_not;
    text += other[i]->name + (next_too ? " and " : fmt::format(": {}.\n", other[i]->why_not));
  }
  if (other.size() > kMostNamed)
    text +=
        fmt::format("{} more were not tried or have no plan: -v lists them.\n", other.size() - kMostNamed);
  return text;
}

Json baseline_json(const std::optional<UsualOrder>& baseline) {
  if (!baseline) return nullptr;
  Json json = {{"makespan", baseline->makespan},
               {"objective_value", baseline->value},
               {"fits", baseline->fits},
               {"peak_memory", baseline->peak_memory}};
  if (baseline->shared > 0) json["shared_makespan"] = baseline->shared;
  if (baseline->measured > 0) json["measured_step"] = baseline->measured;
  return json;
}

Json candidate_json(const Candidate& c) {
  Json json = {{"name", c.name},
               {"devices", c.devices()},
               {"chunks", c.moved ? most_on_one_device(c.cuts->stages) : c.options.chunks},
               {"sharded", c.options.sharded},
               {"graph", c.graph},
               {"recompute", c.moved ? std::ranges::any_of(c.cuts->stages, &Stage::recompute)
                                     : c.options.recompute != Recompute::never},
               {"lower_bound", c.bound}};
  if (!c.moved) json["layout"] = c.options.layout == ChunkLayout::wave ? "wave" : "looped";
  if (!c.idle.empty()) json["idle"] = c.idle;
  if (c.plan) {
    json["makespan"] = c.plan->makespan;
    json["objective_value"] = objective_value(*c.plan, *c.placement);
    if (c.shared > 0) json["shared_makespan"] = c.shared;
    json["peak_memory"] = c.plan->peak_memory;
    json["seconds"] = c.seconds;
  } else {
    json["why_not"] = c.why_not;
  }
  return json;
}

}  // namespace

std::vector<std::string> not_tried(const JointChoice& choice) {
  const Nanoseconds best = choice.candidates[choice.winner].value();
  std::vector<std::string> lines;
  for (const Restriction& one : choice.not_tried) {
    lines.push_back(words_of(one));
    const Candidate* least = least_forbidden(choice, &one.rule);
    if (least == nullptr || least->bound <= 0) continue;
    lines.back() += least->bound >= best
                        ? "; none of the candidates that it leaves out can be shorter"
                        : fmt::format("; the closest of these, {}, takes at least {}, the plan {}",
                                      least->name, format_time(least->bound), format_time(best));
  }
  return lines;
}

std::string choice_text(const JointChoice& choice, const Baselines& base, const Profile& profile,
                        bool every) {
  const Candidate& winner = choice.candidates[choice.winner];
  const Nanoseconds best = winner.value();
  std::vector<Row> rows = {
      {"", "placement", "bound", to_string(winner.plan->objective), "ratio", "peak memory"}};
  bool unplanned = false, forbidden = false;
  std::set<decltype(alike(winner, rows.front()))> above;
  for (const Candidate* candidate : shown(choice, every)) {
    Row row = candidate_row(*candidate, profile, candidate == &winner, best, every);
    if (!every && candidate->plan && !above.insert(alike(*candidate, row)).second) continue;
    rows.push_back(std::move(row));
    unplanned = unplanned || (!candidate->plan && candidate->no_shorter);
    forbidden = forbidden || candidate->forbidden;
  }
  for (const UsualOrder& one : all_of(base)) {
    std::string name = in_words(one);
    if (one.name == "your_run" && profile.run.layers.size() <= kMostStages)
      name += fmt::format(", layers {}", fmt::join(profile.run.layers, "|"));
    rows.push_back({"", name, "", format_time(value_of(one)), as_ratio(value_of(one), best),
                    format_memory(one.peak_memory) + (one.fits ? "" : ", does not fit")});
  }
  std::string text;
  if (unplanned && !every)
    text =
        fmt::format("Rows without a makespan were not searched: by their bound, they cannot be shorter{}.\n",
                    forbidden ? ", or they are not allowed" : "");
  for (const std::string& line : not_tried(choice)) text += fmt::format("not tried: {}\n", line);
  return format_rows(rows) + wrapped(text + others_text(choice, every) + reason_text(choice, base, profile));
}

Json choice_json(const JointChoice& choice, const Baselines& base, const Profile& profile) {
  Json list = Json::array();
  for (const Candidate& candidate : choice.candidates) list.push_back(candidate_json(candidate));
  const std::size_t shortest = choice.shortest.value_or(choice.winner);
  return {{"devices", choice.devices},
          {"devices_used", choice.candidates[choice.winner].devices()},
          {"candidates", list},
          {"not_tried", not_tried(choice)},
          {"memory", memory_text(choice, base, profile)},
          {"limit", limit_text(choice, base, profile)},
          {"shortest", choice.candidates[shortest].name},
          {"candidates_cut", cut_candidates(choice)},
          {"baselines",
           {{"your_run", baseline_json(base.yours)},
            {"1f1b", baseline_json(base.balanced)},
            {"1f1b_even_split", baseline_json(base.even)}}}};
}

}  // namespace ostinato::core
