// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>
#include <vector>

#include "search/files/json.h"
#include "search/placement/lanes.h"
#include "search/show/drawing.h"
#include "search/show/page.h"
#include "search/show/repetend_spans.h"
#include "search/show/routes.h"
#include "search/show/show.h"
#include "search/simulate/shared_cores.h"
#include "search/simulate/simulate.h"

namespace ostinato {
namespace {

Json devices_of(const Plan& plan, const Placement& placement) {
  const std::vector<Nanoseconds> busy = busy_times(plan, placement);
  const std::vector<RepetendSpan> spans = repetend_spans(plan, placement);
  const std::vector<int> rows = rows_of(placement);
  Json list = Json::array();
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    const Device& device = placement.devices[d];
    const RepetendSpan& span = spans[d];
    Json repetend;
    if (span.count > 0) repetend = {span.begin, span.end, span.count};
    list.push_back({{"name", device.name},
                    {"memory", device.memory == kUnlimited ? Json() : Json(device.memory)},
                    {"static", device.static_memory},
                    {"peak", d < plan.peak_memory.size() ? plan.peak_memory[d] : 0},
                    {"busy", busy[d]},
                    {"lane", device.lane_of >= 0},
                    {"row", rows[d]},
                    {"repetend", std::move(repetend)}});
  }
  return list;
}

Json inputs_of(const Placement& placement, int b) {
  Json list = Json::array();
  for (const Dependency& input : placement.blocks[b].after) {
    Json routes = Json::array();
    for (const Route& route : routes_of(placement, input, b))
      routes.push_back({route.from, route.to, route.time});
    list.push_back({input.block, input.bytes, std::move(routes)});
  }
  return list;
}

Json blocks_of(const Placement& placement) {
  const std::vector<int> chunks = chunks_of_blocks(placement);
  Json list = Json::array();
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    const Block& block = placement.blocks[b];
    list.push_back({{"name", block.name},
                    {"stage", block.stage},
                    {"kind", to_string(block.kind)},
                    {"chunk", chunks[b]},
                    {"devices", block.devices},
                    {"time", block.time},
                    {"memory", block.memory},
                    {"workspace", block.workspace},
                    {"after", inputs_of(placement, static_cast<int>(b))}});
  }
  return list;
}

const char* word(Binding binding) {
  switch (binding) {
    case Binding::begin:
      return "begin";
    case Binding::device:
      return "device";
    case Binding::memory:
      return "memory";
    case Binding::dependency:
      return "dependency";
    case Binding::transfer:
      return "transfer";
    case Binding::none:
      return "none";
  }
  return "none";
}

Json critical_of(const std::vector<CriticalStep>& chain) {
  Json list = Json::array();
  for (const CriticalStep& c : chain)
    list.push_back(
        {c.step.block, c.step.micro_batch, word(c.binding), c.device, c.transfer, c.idle, c.missing});
  return list;
}

Json baselines_of(const Plan& plan) {
  Json list = Json::array();
  for (const Baseline& b : plan.baselines)
    list.push_back({{"name", in_words(b)},
                    {"makespan", b.makespan},
                    {"shared", b.shared},
                    {"measured", b.measured},
                    {"fits", b.fits}});
  return list;
}

/// Of the plan as it is drawn, but first that processors are shared. `predicted`: with that sharing.
Json words_of(const ShownPlan& shown, const std::vector<CriticalStep>& chain, Nanoseconds predicted) {
  std::vector<std::string> words = explain(shown.placement, chain);
  std::string cores = held_up_by_cores(predicted, shown.plan, shown.placement);
  if (!cores.empty()) words.insert(words.begin(), std::move(cores));
  return words;
}

Json data_of(const ShownPlan& shown) {
  const Plan& plan = shown.plan;
  const std::vector<CriticalStep> chain = critical_chain(shown.placement, plan.micro_batches, plan.schedule);
  const Nanoseconds shared = shown.placement.hosts.empty() ? 0 : predicted_makespan(plan, shown.placement);
  Json steps = Json::array();
  for (const ScheduledBlock& s : plan.schedule) steps.push_back({s.block, s.micro_batch, s.start});
  return {{"title", shown.title},
          {"name", shown.placement.name},
          {"micro_batches", plan.micro_batches},
          {"makespan", plan.makespan},
          {"shared", shared},
          {"on_shared_cores", shared_cores_text(shared, shown.placement)},
          {"bound", plan.lower_bound.makespan},
          {"period", plan.steady_state.period},
          {"unroll", plan.steady_state.unroll},
          {"optimal", plan.optimal.makespan},
          {"method", plan.search.method},
          {"objective", to_string(plan.objective)},
          {"baselines", baselines_of(plan)},
          {"devices", devices_of(plan, shown.placement)},
          {"blocks", blocks_of(shown.placement)},
          {"steps", std::move(steps)},
          {"critical", critical_of(chain)},
          {"words", words_of(shown, chain, shared)}};
}

Json data_of(const MeasuredStep& measured) {
  Json devices = Json::array();
  for (const auto& instructions : measured.devices) {
    Json list = Json::array();
    for (const MeasuredInstruction& i : instructions)
      list.push_back({i.action, i.stage, i.micro_batch, i.planned_start, i.start, i.end});
    devices.push_back(std::move(list));
  }
  return {{"ranks", measured.ranks}, {"devices", std::move(devices)}};
}

/// JSON that may stand in a script element: no "</script>" and no "<!--" can occur in it.
std::string script_safe(const Json& json) {
  const std::string text = json.text();
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string html_safe(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

}  // namespace

std::string show_html(const std::vector<ShownPlan>& plans, const std::optional<MeasuredStep>& measured) {
  Json data = {{"plans", Json::array()}, {"measured", measured ? data_of(*measured) : Json()}};
  for (const ShownPlan& shown : plans) data["plans"].push_back(data_of(shown));
  std::string page;
  std::size_t done = 0;
  // Only the page itself is looked through: what is filled in may hold a mark, too.
  const auto fill = [&](std::string_view mark, std::string_view text) {
    const std::size_t at = kShowPage.find(mark, done);
    page += kShowPage.substr(done, at - done);
    page += text;
    done = at + mark.size();
  };
  fill(kShowPageTitle, html_safe(plans.front().placement.name) + " – ostinato");
  fill(kShowPageStyle, kShowStyle);
  fill(kShowPageData, script_safe(data));
  fill(kShowPageScript, kShowScript);
  page += kShowPage.substr(done);
  return page;
}

std::string show_html(const Plan& plan, const Placement& placement) {
  return show_html({{placement.name, plan, placement}});
}

}  // namespace ostinato
