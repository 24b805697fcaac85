// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "bindings/core/plan_summary.h"
#include "search/files/counted.h"
#include "search/files/wrapped.h"
#include "search/partition/stages.h"
#include "search/placement/quantity.h"
#include "search/plan/memory.h"
#include "search/plan/proved.h"
#include "search/profile/profile_noise.h"

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

std::string ratio(Nanoseconds value, Nanoseconds best) {
  return best > 0 ? fmt::format("{:.3f}", static_cast<double>(value) / static_cast<double>(best)) : "";
}

/// Of the device that needs most, the optimizer's step included.
Bytes most_memory_of(const Candidate& candidate, const Profile& profile) {
  const auto step = facts_of(profile, candidate.options, candidate.cuts->stages).step_memory;
  return most_memory(peaks_with_step(candidate.plan->peak_memory, *candidate.placement, step));
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
  row.ratio = ratio(candidate.value(), best);
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

/// How often the plan's time goes into those that it is compared with: that fit the memory, if any do.
std::string gain_text(const Baselines& base, const Candidate& best) {
  std::vector<std::string> parts;
  const std::vector<UsualOrder> all = all_of(base);
  const bool some_fit = std::any_of(all.begin(), all.end(), [](const UsualOrder& one) { return one.fits; });
  for (const UsualOrder& one : all) {
    if (best.value() <= 0 || (some_fit && !one.fits && one.measured == 0)) continue;
    std::string text =
        fmt::format("{} times as fast as {}", ratio(value_of(one), best.value()), in_words(one));
    if (one.measured > 0)
      text += fmt::format(" (measured: {} per step, including the optimizer)", format_time(one.measured));
    if (!one.fits) text += " (which does not fit the memory)";
    parts.push_back(std::move(text));
  }
  if (parts.empty()) return "";
  std::string text = fmt::format("This plan is expected to be {}.\n", fmt::join(parts, ", and "));
  if (!base.yours && base.even && !best.options.inference)
    text +=
        "The time of your current run is not known: the profile does not say how DeepSpeed divides the "
        "layers over this many devices (ostinato profile --world-size N records it).\n";
  return text;
}

/// Devices without a block between devices with one: only --fewer-devices leaves them so.
std::string unused_text(const Placement& placement) {
  std::vector<std::string> names;
  for (const Device& device : placement.devices) names.push_back(device.name);
  for (const Block& block : placement.blocks)
    for (const int d : block.devices) names[d].clear();
  std::erase(names, "");
  if (names.empty()) return "";
  return fmt::format("{} {} no stage, but every rank needs one: --all-devices gives each device a stage.\n",
                     fmt::join(names, ", "), names.size() == 1 ? "has" : "have");
}

/// "the last 2 of the 4 devices", or which of them, if not the last.
std::string idle_devices(const std::vector<int>& idle, int devices) {
  if (idle.front() + static_cast<int>(idle.size()) == devices)
    return fmt::format("the last {} of the {} devices", idle.size(), devices);
  return fmt::format("{} of the {} devices (counted from 0, as listed)", fmt::join(idle, ", "), devices);
}

/// What to launch where devices stay idle: a rank with nothing to train is refused.
std::string idle_text(const JointChoice& choice) {
  const Candidate& best = choice.candidates[choice.winner];
  if (best.devices() == choice.devices) return unused_text(*best.placement);
  const Candidate* all = nullptr;  // the shortest that leaves none idle
  for (const Candidate& candidate : choice.candidates) {
    if (!candidate.plan || candidate.devices() < choice.devices) continue;
    if (all == nullptr || candidate.value() < all->value()) all = &candidate;
  }
  std::string text = fmt::format(
      "It leaves {} idle. Launch {} (torchrun --nproc-per-node, deepspeed --num_gpus): every rank needs a "
      "stage.\n--all-devices plans for {}",
      idle_devices(best.idle, choice.devices), counted(best.devices(), "rank"), choice.devices);
  if (all != nullptr && best.value() > 0)
    text += fmt::format(": {} times as long", ratio(all->value(), best.value()));
  return text + ".\n";
}

std::string cut_text(const JointChoice& choice) {
  const std::size_t cut = cut_candidates(choice);
  if (!is_cut(choice)) return "";
  if (cut == 0)
    return "The search stopped before it had tried all moves: a longer --time-limit may find a shorter "
           "plan.\n";
  return fmt::format(
      "The search stopped before it could rule out {}: a longer --time-limit may find a shorter plan.\n",
      counted(cut, "candidate"));
}

std::string sharing_text(const Candidate& best) {
  if (best.shared == 0) return "";
  std::string text;
  for (const Host& host : best.placement->hosts) text += (text.empty() ? "" : ", ") + sharing_of(host);
  return text + ": these makespans come from replays in which computing devices share the cores.\n";
}

/// Of those with a plan, but for the winner, the one with the least makespan; nullptr: there is none.
const Candidate* next_best(const JointChoice& choice) {
  const Candidate* next = nullptr;
  for (const Candidate& candidate : choice.candidates) {
    if (&candidate == &choice.candidates[choice.winner] || !candidate.plan) continue;
    if (next == nullptr || candidate.value() < next->value()) next = &candidate;
  }
  return next;
}

/// Why the winner was taken although the makespan of `shorter` is less.
std::string although_longer(const Candidate& best, const Candidate& shorter) {
  if (shorter.step > best.step)
    return fmt::format(
        "{} was chosen: including the optimizer's step it takes {}, the least found within the memory; {} "
        "has a shorter {}, but takes {} more with that step",
        best.name, format_time(best.step), shorter.name, to_string(best.plan->objective),
        gap(shorter.step, best.step));
  return fmt::format(
      "{} was chosen: it has {} blocks; {} has {} and is {} shorter, which is within the error of a replay",
      best.name, best.placement->blocks.size(), shorter.name, shorter.placement->blocks.size(),
      gap(best.value(), shorter.value()));
}

/// The winner against the next best.
std::string as_shortest(const JointChoice& choice) {
  const Candidate& best = choice.candidates[choice.winner];
  const Candidate* next = next_best(choice);
  if (next != nullptr && next->value() < best.value()) return although_longer(best, *next);
  const std::string text = fmt::format(
      "{} was chosen: its {} of {} is the shortest found within the memory{}; ", best.name,
      to_string(best.plan->objective), format_time(best.value()),
      choice.all_devices && choice.devices > 1 ? fmt::format(", on all {} devices", choice.devices) : "");
  if (next != nullptr && next->value() == best.value()) return text + next->name + " takes as long";
  if (next != nullptr)
    return text +
           fmt::format("the next best, {}, takes {} more", next->name, gap(next->value(), best.value()));
  const bool proved = std::all_of(
      choice.candidates.begin(), choice.candidates.end(),
      [&](const Candidate& c) { return &c == &best || c.no_shorter || c.infeasible || c.forbidden; });
  return text + (proved ? "no other candidate can be shorter (proved)" : "no other candidate has a plan");
}

/// The winner against one that is shorter, with the optimizer's step or already without it: where its losses
/// are equal to 1F1B's, or else its blocks are fewer.
std::string although_known(const JointChoice& choice, const Profile& profile) {
  const Candidate &best = choice.candidates[choice.winner], &shortest = choice.candidates[*choice.shortest];
  const bool without = best.value() >= shortest.value();
  const std::string what = without ? to_string(best.plan->objective) : "whole step";
  const Nanoseconds its = without ? best.value() : best.step;
  const Nanoseconds least = without ? shortest.value() : std::min(shortest.step, its);
  const bool losses = best.keeps_losses() && !shortest.keeps_losses();
  const std::string why = losses
                              ? "its losses are equal to 1F1B's bit for bit"
                              : fmt::format("it has {} blocks instead of {}", best.placement->blocks.size(),
                                            shortest.placement->blocks.size());
  if (its <= least)
    return fmt::format("{} was chosen: {}, and its {} of {} is as short as that of {}", best.name, why, what,
                       format_time(its), shortest.name);
  return fmt::format("{} was chosen: {}, and its {} of {} is only {} longer than the shortest, {}. ",
                     best.name, why, what, format_time(its), gap(its, least), shortest.name) +
         fmt::format(
             "That is within the uncertainty of the profile's times: half of the samples are off by up to "
             "{:.1f} %",
             100 * unknown_share(profile));
}

/// By layer, what any stage that holds it takes for a micro-batch at least; on the first device.
std::vector<Nanoseconds> times_of_layers(const Profile& profile, PartitionOptions options) {
  options.sharded.clear();
  options.recompute = Recompute::never;
  std::vector<Stage> stages(profile.layers.size());
  for (std::size_t l = 0; l < stages.size(); ++l) {
    stages[l].devices = {0};
    stages[l].layers = {static_cast<int>(l)};
  }
  const Placement placement = place_stages(profile, options, stages);
  std::vector<Nanoseconds> times;
  for (std::size_t l = 0; l < stages.size(); ++l) {
    Nanoseconds time = 0;
    for (const Block& block : placement.blocks)
      if (block.name.starts_with(fmt::format("s{}.", l))) time += block.time;
    times.push_back(time);
  }
  return times;
}

}  // namespace

std::string limit_text(const JointChoice& choice, const Baselines& base, const Profile& profile) {
  const Candidate& best = choice.candidates[choice.winner];
  const std::vector<UsualOrder> beside = all_of(base);
  if (beside.empty() || best.devices() < 2 || best.plan->objective != Objective::makespan) return "";
  std::vector<Nanoseconds> times = times_of_layers(profile, best.options);
  const auto heaviest = std::max_element(times.begin(), times.end());
  const Nanoseconds whole = *heaviest, work = std::accumulate(times.begin(), times.end(), Nanoseconds{0});
  const LayerCost& layer = profile.layers[heaviest - times.begin()];
  const std::vector<int>& sharded = best.options.sharded;
  if (whole <= work / choice.devices || std::count(sharded.begin(), sharded.end(), layer.index) > 0)
    return "";
  *heaviest = work / choice.devices;
  const int count = best.options.micro_batches;
  const Nanoseconds least = std::max(count * whole, choice.any_placement.lower_bound);
  const Nanoseconds divided = count * *std::max_element(times.begin(), times.end());
  if (divided >= least) return "";
  const Nanoseconds usual = value_of(beside.front());
  const std::string how = layer.shardable ? "allow shards, which change the rounding (no --exact-losses)"
                                          : "make it several LayerSpecs, of which one is its large "
                                            "nn.Linear, or give its class sharded(shard)";
  return fmt::format(
      "{} is {:.0f} % of the work and runs on one of {} devices: no plan is more than {} times as fast as "
      "{}. If it is sharded over the devices, up to {}: {}.",
      layer.name, 100 * static_cast<double>(whole) / static_cast<double>(work), choice.devices,
      ratio(usual, least), in_words(beside.front()), ratio(usual, divided), how);
}

std::string memory_text(const JointChoice& choice, const Baselines& base, const Profile& profile) {
  const std::vector<UsualOrder> beside = all_of(base);
  const Bytes ours = most_memory_of(choice.candidates[choice.winner], profile);
  const Bytes theirs = beside.empty() ? 0 : beside.front().peak_memory;
  if (theirs <= 0 || ours - theirs <= theirs / 10) return "";
  return fmt::format("This plan needs up to {} on a device, {:.2f} times as much as {} ({}).",
                     format_memory(ours), static_cast<double>(ours) / static_cast<double>(theirs),
                     in_words(beside.front()), format_memory(theirs));
}

namespace {

std::string as_line(const std::string& text) { return text.empty() ? "" : text + "\n"; }

/// What is gained, and why the winner was taken.
std::string reason(const JointChoice& choice, const Baselines& base, const Profile& profile) {
  const Candidate& best = choice.candidates[choice.winner];
  return gain_text(base, best) + as_line(memory_text(choice, base, profile)) +
         as_line(limit_text(choice, base, profile)) +
         (choice.shortest ? although_known(choice, profile) : as_shortest(choice)) + ".\n" +
         sharing_text(best) + cut_text(choice) + idle_text(choice);
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

bool is_proved(const JointChoice& choice) {
  return choice.candidates[choice.winner].value() <= choice.any_placement.lower_bound;
}

}  // namespace

bool is_cut(const JointChoice& choice) {
  return cut_candidates(choice) > 0 || (choice.cut_short && !is_proved(choice));
}

std::size_t cut_candidates(const JointChoice& choice) {
  const Nanoseconds best = choice.candidates[choice.winner].value();
  if (is_proved(choice)) return 0;
  return static_cast<std::size_t>(
      std::count_if(choice.candidates.begin(), choice.candidates.end(), [&](const Candidate& c) {
        if (c.infeasible || c.no_shorter || c.bound >= best) return false;
        return c.plan ? c.cut : c.too_late;
      }));
}

std::vector<std::string> not_tried(const JointChoice& choice) {
  std::vector<std::string> lines;
  for (const Restriction& one : choice.not_tried) {
    lines.push_back(words_of(one));
    const Candidate* least = least_forbidden(choice, &one.rule);
    if (least != nullptr && least->bound > 0)
      lines.back() +=
          fmt::format("; the closest of these, {}, takes at least {}, the plan {}", least->name,
                      format_time(least->bound), format_time(choice.candidates[choice.winner].value()));
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
    rows.push_back({"", name, "", format_time(value_of(one)), ratio(value_of(one), best),
                    format_memory(one.peak_memory) + (one.fits ? "" : ", does not fit")});
  }
  std::string text;
  if (unplanned && !every)
    text =
        fmt::format("Rows without a makespan were not searched: by their bound, they cannot be shorter{}.\n",
                    forbidden ? ", or they are not allowed" : "");
  for (const std::string& line : not_tried(choice)) text += fmt::format("not tried: {}\n", line);
  return format_rows(rows) + wrapped(text + others_text(choice, every) + reason(choice, base, profile));
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
