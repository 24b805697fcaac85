// SPDX-License-Identifier: Apache-2.0
// Writing ostinato-plan/1. The schedule is by far the largest part: its lines are put together directly.

#include <fmt/format.h>

#include <iterator>

#include "search/files/json_values.h"
#include "search/plan/plan_json.h"

namespace ostinato {

namespace {

void write_header(std::string& text, const Plan& plan) {
  const auto line = [&text]<typename... Arguments>(fmt::format_string<Arguments...> format,
                                                   Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Arguments>(arguments)...);
    text += '\n';
  };
  line("{{\n  \"format\": \"ostinato-plan/1\",");
  line("  \"placement\": {{ \"name\": {}, \"sha256\": {} }},", json_string(plan.placement_name),
       json_string(plan.placement_sha256));
  line("  \"micro_batches\": {},", plan.micro_batches);
  line("  \"objective\": \"{}\",", to_string(plan.objective));
  line("  \"makespan\": {},", plan.makespan);
  line("  \"span\": {},", plan.span);
  const SteadyState& steady = plan.steady_state;
  line("  \"steady_state\": {{ \"period\": {}, \"unroll\": {}, \"first\": {}, \"count\": {} }},",
       steady.period, steady.unroll, steady.first, steady.count);
  const auto claim = [&](auto value) {  // of the objective, where it is not the makespan
    // A bound of 0 is none, unless the plan takes no time.
    const bool proved = plan.lower_bound.objective > 0 || plan.optimal.objective;
    const bool none = plan.objective == Objective::makespan || !proved;
    return none ? "" : fmt::format(", \"{}\": {}", to_string(plan.objective), value);
  };
  line("  \"lower_bound\": {{ \"makespan\": {}, \"period\": {}{} }},", plan.lower_bound.makespan,
       plan.lower_bound.period, claim(plan.lower_bound.objective));
  line("  \"optimal\": {{ \"makespan\": {}, \"period\": {}{} }},", plan.optimal.makespan, plan.optimal.period,
       claim(plan.optimal.objective));
  std::vector<std::string> proofs;
  if (plan.by_exhaustion.makespan) proofs.emplace_back("\"makespan\": \"exhaustion\"");
  if (plan.by_exhaustion.span) proofs.emplace_back("\"span\": \"exhaustion\"");
  if (!proofs.empty()) line("  \"proof\": {{ {} }},", fmt::join(proofs, ", "));
  line("  \"peak_memory\": [{}],", fmt::join(plan.peak_memory, ", "));
  line("  \"search\": {{ \"method\": {}, \"seed\": {}, \"cut_by_limit\": {} }},",
       json_string(plan.search.method), plan.search.seed, plan.search.cut_by_limit);
  if (plan.capacity) {
    line("  \"capacity\": {{ \"memory\": {}, \"lower_bound\": {}{} }},", plan.capacity->memory,
         plan.capacity->lower_bound, plan.capacity->by_exhaustion ? ", \"proof\": \"exhaustion\"" : "");
  }
  if (plan.any_placement) {
    const AnyPlacement& any = *plan.any_placement;
    line(
        "  \"any_placement\": {{ \"devices\": {}, \"sharded\": [{}], \"split\": {}, {}\"lower_bound\": {} "
        "}},",
        any.devices, fmt::join(any.sharded, ", "), any.split,
        any.zero_ranks > 0 ? fmt::format("\"zero_ranks\": {}, ", any.zero_ranks) : "", any.lower_bound);
  }
  std::vector<std::string> baselines;
  for (const Baseline& b : plan.baselines) {
    baselines.push_back(
        fmt::format("{{ \"name\": {}, \"makespan\": {}, \"objective_value\": {}, \"fits\": {}{}{} }}",
                    json_string(b.name), b.makespan, b.value, b.fits,
                    b.shared > 0 ? fmt::format(", \"shared_makespan\": {}", b.shared) : "",
                    b.measured > 0 ? fmt::format(", \"measured_step\": {}", b.measured) : ""));
  }
  if (!baselines.empty()) line("  \"baselines\": [{}],", fmt::join(baselines, ", "));
}

/// What a micro-batch has as the placement says is left out, but for the times.
void write_sizes(std::string& text, const Plan& plan, const Placement& placement) {
  const MicroBatch written = as_written(placement);
  const char* separator = "  \"sizes\": [\n";
  for (const MicroBatch& one : plan.sizes) {
    fmt::format_to(std::back_inserter(text), "{}    {{ \"times\": [{}]", separator,
                   fmt::join(one.times, ", "));
    const auto list = [&](const char* key, const auto& values, const auto& usual) {
      if (values != usual)
        fmt::format_to(std::back_inserter(text), ", \"{}\": [{}]", key, fmt::join(values, ", "));
    };
    list("memory", one.memory, written.memory);
    list("workspace", one.workspace, written.workspace);
    list("bytes", one.bytes, written.bytes);
    text += " }";
    separator = ",\n";
  }
  text += "\n  ],\n";
}

/// Bytes that are put together before the sink gets them.
constexpr std::size_t kPart = std::size_t{1} << 20;

void append(std::string& text, std::int64_t number) {
  const fmt::format_int digits(number);
  text.append(digits.data(), digits.size());
}

}  // namespace

void format_plan(const Plan& plan, const Placement& placement, const Sink& sink) {
  std::vector<std::string> beginnings;
  for (const Block& block : placement.blocks)
    beginnings.push_back(fmt::format("    {{ \"block\": {}, \"micro_batch\": ", json_string(block.name)));

  std::string text;
  write_header(text, plan);
  if (!plan.sizes.empty()) write_sizes(text, plan, placement);
  text += "  \"schedule\": [";
  const char* separator = "\n";
  for (const ScheduledBlock& step : plan.schedule) {
    text += separator;
    text += beginnings[step.block];
    append(text, step.micro_batch);
    text += ", \"start\": ";
    append(text, step.start);
    text += " }";
    separator = ",\n";
    if (text.size() < kPart) continue;
    sink(text);
    text.clear();
  }
  text += plan.schedule.empty() ? "]\n}\n" : "\n  ]\n}\n";
  sink(text);
}

std::string format_plan(const Plan& plan, const Placement& placement) {
  std::string text;
  format_plan(plan, placement, [&text](std::string_view part) { text += part; });
  return text;
}

}  // namespace ostinato
