// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/plan_summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "search/bounds/bounds.h"
#include "search/files/counted.h"
#include "search/files/printable.h"
#include "search/files/wrapped.h"
#include "search/named/named.h"
#include "search/placement/capacity.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"
#include "search/plan/one_batch.h"
#include "search/plan/proved.h"
#include "search/plan/waiting.h"
#include "search/profile/profile_noise.h"
#include "search/simulate/shared_cores.h"
#include "search/simulate/simulate.h"
#include "search/unequal/unequal.h"
#include "search/unequal/with_sizes.h"

namespace ostinato::core {
namespace {

/// "1.25" of part / whole; "–" where there is no ratio.
std::string ratio(Nanoseconds part, Nanoseconds whole) {
  return whole > 0 ? fmt::format("{:.3f}", static_cast<double>(part) / static_cast<double>(whole)) : "–";
}

std::string line(const std::string& name, const std::string& text) {
  return wrapped(fmt::format("  {:<17} {}\n", name, text), 20);
}

/// `where`: "for these stages", if other stages may be better.
std::string proof(Nanoseconds value, Nanoseconds bound, bool optimal, bool by_exhaustion = false,
                  const char* where = "") {
  if (optimal) return fmt::format("optimal{} (proved{})", where, by_exhaustion ? " by exhaustion" : "");
  if (bound <= 0) return "no bound proved";
  return fmt::format("proven bound {}, gap {}", format_time(bound), gap(value, bound));
}

std::string period_line(const Plan& plan) {
  const SteadyState& steady = plan.steady_state;
  if (steady.count == 0) return line("period", "none: no part of the plan repeats");
  const std::string each =
      steady.unroll == 1 ? "per micro-batch" : "for " + counted(steady.unroll, "micro-batch");
  return line("period", fmt::format("{} {}, {}", format_time(steady.period), each,
                                    proof(steady.period, plan.lower_bound.period, plan.optimal.period)));
}

/// Of a plan of forwards alone: with this many requests in flight the busiest device never waits, by Little's
/// law; with more, each of them only takes longer. 0: not of this plan.
std::int64_t requests_in_flight(const Plan& plan, const Placement& placement) {
  if (!plan.sizes.empty()) return 0;
  const bool serves = std::all_of(placement.blocks.begin(), placement.blocks.end(),
                                  [](const Block& block) { return block.kind == Kind::forward; });
  if (!serves) return 0;
  const Instance instance(placement);
  const Bounds bounds(instance);
  const SteadyState& steady = plan.steady_state;
  const Nanoseconds period = steady.count > 0 ? steady.period : bounds.period(1);
  const __int128 latency = static_cast<__int128>(bounds.latency()) * (steady.count > 0 ? steady.unroll : 1);
  return period > 0 ? static_cast<std::int64_t>((latency + period - 1) / period) : 0;
}

std::string in_flight_line(const Plan& plan, const Placement& placement) {
  const std::int64_t requests = requests_in_flight(plan, placement);
  if (requests == 0) return "";
  return line("in flight", fmt::format("at least {} requests for that rate: one takes at least {}", requests,
                                       format_time(Bounds(Instance(placement)).latency())));
}

/// Where the optimizer's step takes more than any forward or backward.
std::string end_of_step_line(const Plan& plan, const Placement& placement, const std::vector<Bytes>& peaks) {
  std::vector<std::string> names;
  for (std::size_t d = 0; d < peaks.size(); ++d)
    if (peaks[d] > plan.peak_memory[d]) names.push_back(placement.devices[d].name);
  if (names.empty()) return "";
  return line("",
              fmt::format("reached by {} in the optimizer's step",
                          names.size() == peaks.size() ? "all" : fmt::format("{}", fmt::join(names, ", "))));
}

/// "40 MiB on each device", or one figure a device.
std::string memory_line(const Plan& plan, const Placement& placement, const std::vector<Bytes>& step_memory) {
  std::vector<Bytes> peaks = peaks_with_step(plan.peak_memory, placement, step_memory);
  peaks.resize(count_without_lanes(placement));
  const auto text = [&](std::size_t d) {
    const Bytes capacity = placement.devices[d].memory;
    return format_memory(peaks[d]) + (capacity == kUnlimited ? "" : " of " + format_memory(capacity));
  };
  std::string list;
  for (std::size_t d = 0; d < peaks.size(); ++d) {
    const std::string next = text(d);
    if (d > 0 && d + 1 < peaks.size() && d >= 7) continue;  // the first seven and the last
    if (d + 1 == peaks.size() && d > 7) list += ", ...";
    list += (d == 0 ? "" : ", ") + next;
  }
  return line("peak memory", list + " per device") + end_of_step_line(plan, placement, peaks);
}

/// How far any other placement could be below.
std::string any_placement_line(const Plan& plan, Nanoseconds value) {
  const Nanoseconds bound = plan.any_placement->lower_bound;
  return bound == 0 ? "" : line("any placement", proof(value, bound, bound == value));
}

double share_of(const Plan& plan) { return static_cast<double>(plan.search.robust.ppm) / 1e6; }

std::string robust_line(const Plan& plan) {
  const auto& robust = plan.search.robust;
  if (!robust.why_not.empty()) return line("robust", "not applied: " + robust.why_not);
  if (robust.ppm == 0) return "";
  return line("robust",
              fmt::format("where times vary by up to {:g} %, 95 % of replays take at most {} ({} "
                          "without --robust)",
                          100 * share_of(plan), format_time(robust.within), format_time(robust.shortest)));
}

/// A search of placements may be cut even if its winner's search was not.
std::string cut_text(const Plan& plan) {
  if (!plan.search.cut_by_limit) return "";
  if (!is_optimal(plan)) return ", stopped early";
  return ", stopped early: other placements are untried";
}

/// In words; of a few micro-batches the plan may have the two ends alone. `is_shorter`: than the known
/// schedule of that name.
std::string method_of(const Plan& plan, bool is_shorter) {
  const std::string& method = plan.search.method;
  if (!method.starts_with("repetend")) return method + (is_shorter ? ", improved" : "");
  return (plan.steady_state.count == 0 ? "warm-up and cool-down of a " : "") +
         ("repeating pattern" + method.substr(std::string("repetend").size()));
}

/// `predicted`: what the step takes if devices share processors.
std::string sharing_line(Nanoseconds predicted, const Placement& placement) {
  const std::string text = shared_cores_text(predicted, placement);
  return text.empty() ? "" : line("on shared cores", text);
}

std::string whole_step_line(const Plan& plan, const Placement& placement, const ModelFacts& facts) {
  const auto step = step_with_optimizer(plan, placement, facts);
  return step ? line("whole step", format_time(*step) + " with the optimizer") : "";
}

/// The makespan of a named schedule of the plan's micro-batches on processors that devices share.
Nanoseconds shared_makespan(const std::string& name, const Plan& plan, const Placement& placement,
                            const Chains& chains) {
  const int n = plan.micro_batches;
  Plan known;
  known.micro_batches = n;
  known.sizes = plan.sizes;
  known.schedule = *earliest_starts(placement, n, *named_schedule(name, placement, n, chains).orders);
  if (!plan.sizes.empty()) known.schedule = with_sizes(known.schedule, placement, plan.sizes);
  return predicted_makespan(known, placement);
}

/// With the sizes of the plan, where it has them: then in the order given. What the search had no time for is
/// no reference: a plan is longer than none that it is shown beside.
std::vector<Reference> references_of(const Plan& plan, const Placement& placement, const Until& until) {
  const auto wanted = [&](const std::string& name) {
    const auto& untried = plan.search.untried;
    return std::find(untried.begin(), untried.end(), name) == untried.end() &&
           (!until || std::chrono::steady_clock::now() < *until);
  };
  std::vector<Reference> list;
  if (plan.sizes.empty()) {
    list = references(placement, plan.micro_batches, plan.objective, wanted);
  } else {
    for (const UsualSchedule& usual : usual_schedules(placement, plan.sizes))
      list.push_back({usual.name, usual.makespan, usual.makespan, usual.fits});
  }
  if (placement.hosts.empty()) return list;
  const Chains chains(placement);
  for (Reference& r : list) r.shared = shared_makespan(r.name, plan, placement, chains);
  return list;
}

/// What they are compared by.
Nanoseconds taken_by(const Reference& reference, Objective objective) {
  return objective == Objective::makespan && reference.shared > 0 ? reference.shared : reference.value;
}

Nanoseconds value_of(const Plan& plan, const Placement& placement) {
  return plan.sizes.empty() ? objective_value(plan, placement) : plan.makespan;
}

/// 1F1B, plain or interleaved, unless the plan is compared with that on better stages; and the best of the
/// rest that fit and are not the plan itself.
std::string reference_lines(const std::vector<Reference>& list, const Plan& plan, Nanoseconds value) {
  const auto taken = [&](const Reference& r) { return taken_by(r, plan.objective); };
  std::string text;
  const auto add = [&](const Reference& r) {
    text += line(text.empty() ? "known schedules" : "",
                 fmt::format("{}, {}, {} times as long{}", r.name, format_time(taken(r)),
                             ratio(taken(r), value), r.fits ? "" : ", but does not fit the memory"));
  };
  const auto is_usual = [](const Reference& r) { return r.name == "1f1b" || r.name == "interleaved-1f1b"; };
  const auto usual = std::find_if(list.begin(), list.end(), is_usual);
  if (usual != list.end() && plan.baselines.empty()) add(*usual);
  const Reference* best = nullptr;
  for (const Reference& r : list) {
    const bool is_the_plan = r.name == plan.search.method && taken(r) == value;
    if (!r.fits || is_usual(r) || is_the_plan) continue;
    if (best == nullptr || taken(r) < taken(*best)) best = &r;
  }
  if (best != nullptr) add(*best);
  return text;
}

/// A known schedule may have been shortened afterwards.
bool is_shorter_than_its_method(const std::vector<Reference>& list, const Plan& plan, Nanoseconds value) {
  return std::any_of(list.begin(), list.end(), [&](const Reference& r) {
    return r.name == plan.search.method && taken_by(r, plan.objective) > value;
  });
}

std::vector<std::string> critical_chain_text(const Plan& plan, const Placement& placement) {
  // A point of a curve was made for less memory than the placement has.
  const Placement limited = plan.capacity ? within_capacity(placement, plan.capacity->memory) : placement;
  if (plan.sizes.empty()) return explain(limited, critical_chain(limited, plan.micro_batches, plan.schedule));
  const OneBatch all = as_one_batch(plan, limited);
  std::vector<CriticalStep> chain = critical_chain(all.placement, 1, all.plan.schedule);
  for (CriticalStep& link : chain)
    link.step.micro_batch = link.step.block / static_cast<int>(placement.blocks.size());
  return explain(as_drawn(plan, limited).placement, chain);
}

}  // namespace

std::optional<Nanoseconds> step_with_optimizer(const Plan& plan, const Placement& placement,
                                               const ModelFacts& facts) {
  if (facts.step_time.empty() || plan.objective != Objective::makespan) return std::nullopt;
  return whole_step(plan, placement, facts.step_time);
}

std::vector<Bytes> peaks_with_step(std::vector<Bytes> peaks, const Placement& placement,
                                   const std::vector<Bytes>& step_memory) {
  for (std::size_t d = 0; d < step_memory.size(); ++d)
    peaks[d] = std::max(peaks[d], placement.devices[d].static_memory + step_memory[d]);
  return peaks;
}

std::string summary(const Plan& plan, const Placement& placement, double seconds, const ModelFacts& facts,
                    const Until& until) {
  const Nanoseconds value = value_of(plan, placement);
  std::string text = fmt::format(
      "{}: {}{} on {}\n", printable(placement.name), counted(plan.micro_batches, "micro-batch"),
      plan.sizes.empty() ? "" : " of different sizes", counted(count_without_lanes(placement), "device"));
  if (plan.objective != Objective::makespan) {
    text +=
        line(to_string(plan.objective), fmt::format("{}, {}", format_time(value),
                                                    proof(value, plan.lower_bound.objective,
                                                          plan.optimal.objective, plan.by_exhaustion.span)));
  }
  const Nanoseconds predicted = predicted_makespan(plan, placement);
  const bool others = plan.any_placement && plan.any_placement->lower_bound < value;
  text +=
      line("makespan", fmt::format("{}, {}", format_time(plan.makespan),
                                   proof(plan.makespan, plan.lower_bound.makespan, plan.optimal.makespan,
                                         plan.by_exhaustion.makespan, others ? " for these stages" : "")));
  const std::vector<Reference> known = references_of(plan, placement, until);
  const Nanoseconds taken = plan.objective == Objective::makespan ? predicted : value;
  text += sharing_line(predicted, placement) + whole_step_line(plan, placement, facts) +
          reference_lines(known, plan, taken);
  if (plan.sizes.empty()) text += period_line(plan) + in_flight_line(plan, placement);
  text += robust_line(plan);
  text += memory_line(plan, placement, facts.step_memory);
  if (plan.any_placement) text += any_placement_line(plan, value);
  text += line("method", method_of(plan, is_shorter_than_its_method(known, plan, taken)) + cut_text(plan));
  if (seconds >= 0) text += line("searched", fmt::format("{:.2f} s", seconds));
  return text;
}

std::string times_line(const Profile& profile) {
  const std::string trust = trust_of(profile);
  return trust.empty() ? "" : line("times", "proved for these times: " + trust);
}

Json summary_json(const Plan& plan, const Placement& placement, double seconds, const ModelFacts& facts,
                  const Until& until) {
  Json named = Json::object();
  for (const Reference& r : references_of(plan, placement, until)) {
    named[r.name] = {{"makespan", r.makespan}, {"objective_value", r.value}, {"fits", r.fits}};
    if (r.shared > 0) named[r.name]["shared_makespan"] = r.shared;
  }
  Json json = {
      {"placement", placement.name},
      {"micro_batches", plan.micro_batches},
      {"objective", to_string(plan.objective)},
      {"makespan", plan.makespan},
      {"span", plan.span},
      {"objective_value", value_of(plan, placement)},
      {"lower_bound", {{"makespan", plan.lower_bound.makespan}, {"period", plan.lower_bound.period}}},
      {"optimal", {{"makespan", plan.optimal.makespan}, {"period", plan.optimal.period}}},
      {"period", plan.steady_state.period},
      {"unroll", plan.steady_state.unroll},
      {"peak_memory", plan.peak_memory},
      {"method", plan.search.method},
      {"cut_by_limit", plan.search.cut_by_limit},
      {"named", named}};
  if (plan.objective != Objective::makespan) {
    json["lower_bound"][to_string(plan.objective)] = plan.lower_bound.objective;
    json["optimal"][to_string(plan.objective)] = plan.optimal.objective;
  }
  if (plan.capacity) {
    json["capacity"] = {{"memory", plan.capacity->memory}, {"lower_bound", plan.capacity->lower_bound}};
  }
  if (const auto& robust = plan.search.robust; !robust.why_not.empty())
    json["robust"] = {{"not_applied", robust.why_not}};
  else if (robust.ppm > 0)
    json["robust"] = {
        {"variation", share_of(plan)}, {"within", robust.within}, {"shortest", robust.shortest}};
  if (plan.any_placement) json["any_placement"] = {{"lower_bound", plan.any_placement->lower_bound}};
  if (const std::int64_t requests = requests_in_flight(plan, placement); requests > 0)
    json["requests_in_flight"] = requests;
  if (!facts.step_memory.empty())
    json["peak_with_step"] = peaks_with_step(plan.peak_memory, placement, facts.step_memory);
  if (!placement.hosts.empty()) json["shared_makespan"] = predicted_makespan(plan, placement);
  if (const auto step = step_with_optimizer(plan, placement, facts)) json["whole_step"] = *step;
  if (seconds >= 0) json["seconds"] = seconds;
  return json;
}

std::vector<std::string> explained(const Plan& plan, const Placement& placement) {
  std::vector<std::string> lines = critical_chain_text(plan, placement);
  std::string cores = held_up_by_cores(predicted_makespan(plan, placement), plan, placement);
  if (!cores.empty()) lines.insert(lines.begin(), std::move(cores));
  return lines;
}

std::string contributions_text(const std::vector<Contribution>& contributions) {
  std::string text =
      fmt::format("\n{:<30} {:>5} {:>9}   {:>12} {:>12}\n", "technique", "runs", "seconds", "best", "bound");
  for (const Contribution& row : contributions) {
    text += fmt::format("{:<30} {:>5} {:>9.3f}   {:>12} {:>12}\n", row.technique, row.runs, row.seconds,
                        row.after > 0 ? format_time(row.after) : "-",
                        row.bound > 0 ? format_time(row.bound) : "-");
  }
  return text + "best, bound: shown where the technique shortened the plan or raised the bound.\n";
}

Json contributions_json(const std::vector<Contribution>& contributions) {
  Json list = Json::array();
  for (const Contribution& row : contributions) {
    list.push_back({{"technique", row.technique},
                    {"runs", row.runs},
                    {"seconds", row.seconds},
                    {"before", row.before},
                    {"after", row.after},
                    {"lower_bound", row.bound}});
  }
  return list;
}

std::string waiting_text(const Plan& plan, const Placement& placement) {
  const Waiting waits = waiting_of_busiest(placement, plan);
  const Nanoseconds least = std::max<Nanoseconds>(0, plan.lower_bound.makespan - waits.work);
  std::string where = plan.steady_state.count == 0
                          ? fmt::format("{} between its blocks", format_time(waits.cool_down))
                          : fmt::format("{} in the warm-up, {} in the repetends, {} in the cool-down",
                                        format_time(waits.warm_up), format_time(waits.repetends),
                                        format_time(waits.cool_down));
  return wrapped(
      fmt::format(
          "\nDevice {} works most, {}. It waits {}: {} before its first block, {}, {} after its last. "
          "No plan waits less than {} (proved).\n",
          printable(placement.devices[waits.device].name), format_time(waits.work),
          format_time(waits.in_all()), format_time(waits.before_first), where, format_time(waits.after_last),
          format_time(least)),
      0);
}

Json waiting_json(const Plan& plan, const Placement& placement) {
  const Waiting waits = waiting_of_busiest(placement, plan);
  return {
      {"device", waits.device},        {"work", waits.work},           {"before_first", waits.before_first},
      {"warm_up", waits.warm_up},      {"repetends", waits.repetends}, {"cool_down", waits.cool_down},
      {"after_last", waits.after_last}};
}

std::string gap(Nanoseconds value, Nanoseconds bound) {
  if (bound <= 0) return value <= bound ? "0 %" : "unknown";
  const __int128 hundredths = (static_cast<__int128>(value) - bound) * 10000 / bound;
  std::string text = fmt::format("{:.2f}", static_cast<double>(hundredths) / 100);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " %";
}

}  // namespace ostinato::core
