// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include "search/files/json.h"
#include "search/show/drawing.h"
#include "search/show/page.h"
#include "search/show/show.h"

namespace ostinato {
namespace {

Json devices_of(const Plan& plan, const Placement& placement) {
  const std::vector<Nanoseconds> busy = busy_times(plan, placement);
  Json list = Json::array();
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    const Device& device = placement.devices[d];
    const Json capacity = device.memory == kUnlimited ? Json() : Json(device.memory);
    const Bytes peak = d < plan.peak_memory.size() ? plan.peak_memory[d] : 0;
    list.push_back({{"name", device.name},
                    {"memory", capacity},
                    {"static", device.static_memory},
                    {"peak", peak},
                    {"busy", busy[d]}});
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
                    {"workspace", block.workspace}});
  }
  return list;
}

Json page_plan(const Plan& plan, const Placement& placement) {
  Json steps = Json::array();
  for (const ScheduledBlock& s : plan.schedule) steps.push_back({s.block, s.micro_batch, s.start});
  return {{"name", placement.name},
          {"micro_batches", plan.micro_batches},
          {"makespan", plan.makespan},
          {"bound", plan.lower_bound.makespan},
          {"period", plan.steady_state.period},
          {"unroll", plan.steady_state.unroll},
          {"optimal", plan.optimal.makespan},
          {"method", plan.search.method},
          {"objective", to_string(plan.objective)},
          {"devices", devices_of(plan, placement)},
          {"blocks", blocks_of(placement)},
          {"steps", std::move(steps)}};
}

/// JSON that may stand in a script element: no "</script>" and no "<!--" can occur in it.
std::string script_safe(const Json& json) {
  const std::string text = json.text();
  std::string safe;
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

std::string show_html(const Plan& plan, const Placement& placement) {
  const std::size_t title = kShowPage.find(kShowPageTitle);
  const std::size_t after_title = title + kShowPageTitle.size();
  const std::size_t data = kShowPage.find(kShowPagePlan);
  std::string page(kShowPage.substr(0, title));
  page += html_safe(placement.name) + " – ostinato";
  page += kShowPage.substr(after_title, data - after_title);
  page += script_safe(page_plan(plan, placement));
  page += kShowPage.substr(data + kShowPagePlan.size());
  return page;
}

}  // namespace ostinato
