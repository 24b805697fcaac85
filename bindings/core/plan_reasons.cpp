// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/plan_reasons.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "bindings/core/plan_summary.h"
#include "search/files/counted.h"
#include "search/partition/stages.h"
#include "search/placement/quantity.h"
#include "search/plan/memory.h"
#include "search/profile/profile_noise.h"
#include "search/simulate/shared_cores.h"

namespace ostinato::core {
namespace {

bool is_proved(const JointChoice& choice) {
  return choice.candidates[choice.winner].value() <= choice.any_placement.lower_bound;
}

/// How often the plan's time goes into those that it is compared with: that fit the memory, if any do.
std::string gain_text(const Baselines& base, const Candidate& best) {
  std::vector<std::string> parts;
  const std::vector<UsualOrder> all = all_of(base);
  const bool some_fit = std::any_of(all.begin(), all.end(), [](const UsualOrder& one) { return one.fits; });
  for (const UsualOrder& one : all) {
    if (best.value() <= 0 || (some_fit && !one.fits && one.measured == 0)) continue;
    const std::string ratio = as_ratio(value_of(one), best.value());
    std::string text =
        fmt::format("{}as fast as {}", ratio == "1.000" ? "" : ratio + " times ", in_words(one));
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
      "It leaves {} idle. Launch {} (torchrun --nproc-per-node, deepspeed --num_gpus) with "
      "PipelineModule(num_stages={}): every rank needs a stage.\n--all-devices plans for {}",
      idle_devices(best.idle, choice.devices), counted(best.devices(), "rank"), best.devices(),
      choice.devices);
  if (all != nullptr && best.value() > 0)
    text += fmt::format(": {} times as long", as_ratio(all->value(), best.value()));
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
        "\"{}\" was chosen: including the optimizer's step it takes {}, the least found within the memory; "
        "\"{}\" has a shorter {}, but takes {} more with that step",
        best.name, format_time(best.step), shorter.name, to_string(best.plan->objective),
        gap(shorter.step, best.step));
  return fmt::format(
      "\"{}\" was chosen: it has {} blocks; \"{}\" has {} and is {} shorter, which is within the error of a "
      "replay",
      best.name, best.placement->blocks.size(), shorter.name, shorter.placement->blocks.size(),
      gap(best.value(), shorter.value()));
}

/// The winner against the next best.
std::string as_shortest(const JointChoice& choice) {
  const Candidate& best = choice.candidates[choice.winner];
  const Candidate* next = next_best(choice);
  if (next != nullptr && next->value() < best.value()) return although_longer(best, *next);
  const std::string text = fmt::format(
      "\"{}\" was chosen: its {} of {} is the shortest found within the memory{}; ", best.name,
      to_string(best.plan->objective), format_time(best.value()),
      choice.all_devices && choice.devices > 1 ? fmt::format(", on all {} devices", choice.devices) : "");
  if (next != nullptr && next->value() == best.value())
    return fmt::format("{}\"{}\" takes as long", text, next->name);
  if (next != nullptr)
    return text +
           fmt::format("the next best, \"{}\", takes {} more", next->name, gap(next->value(), best.value()));
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
    return fmt::format("\"{}\" was chosen: {}, and its {} of {} is as short as that of \"{}\"", best.name,
                       why, what, format_time(its), shortest.name);
  return fmt::format("\"{}\" was chosen: {}, and its {} of {} is only {} longer than the shortest, \"{}\". ",
                     best.name, why, what, format_time(its), gap(its, least), shortest.name) +
         fmt::format(
             "That is within the uncertainty of the profile's times: half of the samples are off by up to "
             "{:.1f} %",
             100 * unknown_share(profile));
}

std::string as_line(const std::string& text) { return text.empty() ? "" : text + "\n"; }

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

std::string as_ratio(Nanoseconds value, Nanoseconds best) {
  return best > 0 ? fmt::format("{:.3f}", static_cast<double>(value) / static_cast<double>(best)) : "";
}

Bytes most_memory_of(const Candidate& candidate, const Profile& profile) {
  const auto step = facts_of(profile, candidate.options, candidate.cuts->stages).step_memory;
  return most_memory(peaks_with_step(candidate.plan->peak_memory, *candidate.placement, step));
}

std::string limit_text(const JointChoice& choice, const Baselines& base, const Profile& profile) {
  const Candidate& best = choice.candidates[choice.winner];
  const std::vector<UsualOrder> beside = all_of(base);
  if (beside.empty() || best.devices() < 2 || best.plan->objective != Objective::makespan) return "";
  std::vector<Nanoseconds> times = choice.least_times;
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
      as_ratio(usual, least), in_words(beside.front()), as_ratio(usual, divided), how);
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

std::string reason_text(const JointChoice& choice, const Baselines& base, const Profile& profile) {
  const Candidate& best = choice.candidates[choice.winner];
  return gain_text(base, best) + as_line(memory_text(choice, base, profile)) +
         as_line(limit_text(choice, base, profile)) +
         (choice.shortest ? although_known(choice, profile) : as_shortest(choice)) + ".\n" +
         sharing_text(best) + cut_text(choice) + idle_text(choice);
}

}  // namespace ostinato::core
