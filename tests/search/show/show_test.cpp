// SPDX-License-Identifier: Apache-2.0
#include "search/show/show.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "search/named/named.h"
#include "search/placement/shapes.h"
#include "search/plan/orders.h"

namespace ostinato {
namespace {

using Json = nlohmann::json;

Plan plan_of(const std::string& name, const Placement& placement, int micro_batches) {
  Plan plan;
  plan.micro_batches = micro_batches;
  plan.schedule =
      *earliest_starts(placement, micro_batches, *named_schedule(name, placement, micro_batches).orders);
  plan.makespan = makespan_of(placement, plan.schedule);
  plan.peak_memory = peak_memory(placement, plan.schedule);
  return plan;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

Placement v(int devices, Nanoseconds forward = 2000, Nanoseconds backward = 4000) {
  return shape("v", {.devices = devices, .forward = forward, .backward = backward});
}

TEST(ShowText, DrawsEachBlockOverItsTime) {
  const Placement placement = v(2);
  // 18 us over 54 columns: 3 columns a microsecond, after a margin of 13.
  const auto lines = lines_of(show_text(plan_of("1f1b", placement, 2), placement, {.width = 54 + 13}));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[1], "device0  67% F0----F1----            B0==========      B1==========");
  EXPECT_EQ(lines[2], "device1  67%       F0----B0==========F1----B1==========            ");
  EXPECT_EQ(lines[3], "             |0 ns |2 us |4 us |6 us |8 us |10 us|12 us|14 us|16 us");
}

TEST(ShowText, NamesChunksWhereADeviceHasSeveral) {
  const Placement placement = shape("looped", {.devices = 1, .chunks = 2, .forward = 3000, .backward = 3000});
  const auto lines = lines_of(show_text(plan_of("gpipe", placement, 1), placement, {.width = 12 + 13}));
  EXPECT_EQ(lines[1].substr(0, 9), "device0 1");
  EXPECT_NE(lines[1].find("F0a"), std::string::npos);
  EXPECT_NE(lines[1].find("F0b"), std::string::npos);
  EXPECT_LT(lines[1].find("B0b"), lines[1].find("B0a"));
}

TEST(ShowText, EveryLineHasTheWidthThatWasAskedFor) {
  for (const int devices : {1, 4, 64}) {
    for (const int width : {60, 100, 173}) {
      const Placement placement = v(devices);
      const auto lines =
          lines_of(show_text(plan_of("1f1b", placement, 2 * devices), placement, {.width = width}));
      ASSERT_EQ(lines.size(), static_cast<std::size_t>(devices) + 3);
      for (int d = 1; d <= devices; ++d) EXPECT_EQ(lines[d].size(), static_cast<std::size_t>(width));
      EXPECT_LE(lines[devices + 1].size(), static_cast<std::size_t>(width));
    }
  }
}

TEST(ShowText, ShowsTheKindThatTakesMostOfACrowdedColumn) {
  const Placement placement = v(1, 1000, 9000);
  const auto lines = lines_of(show_text(plan_of("gpipe", placement, 1000), placement, {.width = 113}));
  EXPECT_EQ(lines[1].substr(13), std::string(10, 'F') + std::string(90, 'B'));
}

TEST(ShowText, UsesColorOnlyWhereAsked) {
  const Placement placement = v(2);
  const Plan plan = plan_of("1f1b", placement, 2);
  const std::string plain = show_text(plan, placement, {});
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  std::string colored = show_text(plan, placement, {.color = true});
  EXPECT_NE(colored.find('\x1b'), std::string::npos);
  for (std::size_t at; (at = colored.find('\x1b')) != std::string::npos;) {
    colored.erase(at, colored.find('m', at) - at + 1);
  }
  EXPECT_EQ(colored, plain);
}

TEST(ShowText, SaysWhatWasProved) {
  const Placement placement = v(2);
  Plan plan = plan_of("1f1b", placement, 2);
  plan.lower_bound.makespan = 17000;
  EXPECT_NE(show_text(plan, placement, {}).find("makespan 18 us (bound 17 us, says the plan)"),
            std::string::npos);
  plan.lower_bound.makespan = 18000;
  plan.optimal.makespan = true;
  EXPECT_NE(show_text(plan, placement, {}).find("makespan 18 us (optimal, says the plan)"),
            std::string::npos);
}

TEST(ShowText, TakesAnEmptyTime) {
  const Placement placement = v(2, 0, 0);
  EXPECT_NE(show_text(plan_of("gpipe", placement, 1), placement, {}), "");
}

/// The JSON that the page carries.
Json page_data(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="plan">)";
  const std::size_t at = page.find(begin) + begin.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(ShowHtml, CarriesTheWholePlan) {
  const Placement placement = v(4);
  const Plan plan = plan_of("1f1b", placement, 8);
  const Json data = page_data(show_html(plan, placement));
  EXPECT_EQ(data["makespan"], plan.makespan);
  EXPECT_EQ(data["steps"].size(), plan.schedule.size());
  EXPECT_EQ(data["devices"].size(), 4u);
  EXPECT_EQ(data["devices"][0]["peak"], 4);
  EXPECT_TRUE(data["devices"][0]["memory"].is_null());
  EXPECT_EQ(data["devices"][0]["busy"], 8 * 6000);
}

TEST(ShowHtml, RefersToNothingOutside) {
  const Placement placement = v(2);
  const std::string page = show_html(plan_of("1f1b", placement, 2), placement);
  for (const char* forbidden : {"http:", "https:", "src=", "@import", "url("}) {
    EXPECT_EQ(page.find(forbidden), std::string::npos) << forbidden;
  }
  EXPECT_EQ(page.find("@PLAN@"), std::string::npos);
  EXPECT_EQ(page.find("@TITLE@"), std::string::npos);
}

TEST(ShowHtml, TakesNamesThatLookLikeMarkup) {
  Placement placement = v(1);
  placement.name = "</script><b>&";
  placement.blocks[0].name = "<!--";
  const std::string page = show_html(plan_of("1f1b", placement, 1), placement);
  const Json data = page_data(page);
  EXPECT_EQ(data["name"], placement.name);
  EXPECT_EQ(data["blocks"][0]["name"], "<!--");
  EXPECT_NE(page.find("<title>&lt;/script>&lt;b>&amp;"), std::string::npos);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

TEST(ShowSvg, HasAShapeABlockAndDevice) {
  const Placement placement = shape("m", {.devices = 4});
  const std::string image = show_svg(plan_of("gpipe", placement, 3), placement);
  for (const char* kind : {"forward", "backward"}) {  // on each device a part of the embedding, then a stage
    EXPECT_EQ(count(image, fmt::format("class=\"{}\"><title>", kind)), 3u * 4) << kind;
    EXPECT_EQ(count(image, fmt::format("class=\"{} odd\"><title>", kind)), 3u * 4) << kind;
  }
  EXPECT_EQ(count(image, "class=\"lane\"/>"), 4u + 1);  // the last one: the legend's bubble
}

TEST(ShowSvg, DrawsEachBlockOverItsTime) {
  const Placement placement = v(2);
  // 18 us over the 879 points between x = 69, where the names end, and 948; 0.7 between neighbours.
  const std::string image = show_svg(plan_of("1f1b", placement, 2), placement);
  for (const char* shape :
       {R"("69.0" y="44" width="97.0" height="28" class="forward"><title>s0.F 0: 0 ns – 2 us<)",
        R"("752.7" y="44" width="194.6" height="28" class="backward"><title>s0.B 1: 14 us – 18 us<)",
        R"("166.7" y="78" width="96.9" height="28" class="forward"><title>s1.F 0: 2 us – 4 us<)"}) {
    EXPECT_NE(image.find(shape), std::string::npos) << shape << "\n" << image;
  }
  EXPECT_NE(image.find(">F0</text>"), std::string::npos);
}

TEST(ShowSvg, ShadesEverySecondChunk) {
  const Placement placement = shape("looped", {.devices = 1, .chunks = 3});
  const std::string image = show_svg(plan_of("gpipe", placement, 1), placement);
  EXPECT_EQ(count(image, "class=\"forward odd\""), 1u);
  EXPECT_EQ(count(image, "class=\"forward\"><title>"), 2u);
  EXPECT_NE(image.find("fainter: every second chunk"), std::string::npos);
  EXPECT_EQ(show_svg(plan_of("1f1b", v(2), 2), v(2)).find("fainter"), std::string::npos);
}

TEST(ShowSvg, StaysSmallWhereBlocksAreMany) {
  const Placement placement = v(1, 1, 1);
  const std::string image = show_svg(plan_of("gpipe", placement, 100'000), placement);
  EXPECT_LE(count(image, "<rect"), 9'300u + 12);
  EXPECT_GE(count(image, "<rect"), 8'800u);
}

TEST(ShowSvg, TakesNamesThatLookLikeMarkup) {
  Placement placement = v(1);
  placement.name = "</title>&\x1b";
  placement.devices[0].name = std::string(40, '<');
  const std::string image = show_svg(plan_of("1f1b", placement, 1), placement);
  EXPECT_NE(image.find("<title>&lt;/title>&amp;\\u001b: 1 micro-batches"), std::string::npos) << image;
  EXPECT_EQ(count(image, "&lt;"), 2u + 23);  // the headline stands twice
  for (const char* forbidden : {"https:", "href", "@import", "url(", "<script"}) {
    EXPECT_EQ(image.find(forbidden), std::string::npos) << forbidden;
  }
}

TEST(ShowSvg, TakesAnEmptyTime) {
  EXPECT_NE(show_svg(plan_of("gpipe", v(2, 0, 0), 1), v(2, 0, 0)).find("</svg>"), std::string::npos);
}

TEST(ShowPerfetto, HasASliceABlockAndDevice) {
  const Placement placement = shape("m", {.devices = 4});
  const Plan plan = plan_of("gpipe", placement, 3);
  const Json trace = Json::parse(show_perfetto(plan, placement));
  std::size_t slices = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++slices;
    EXPECT_GE(event["ts"], 0);
    EXPECT_LE(event["ts"].get<double>() + event["dur"].get<double>(), plan.makespan / 1000.0);
  }
  EXPECT_EQ(slices, 3u * (4 + 4 + 4 + 4));
}

TEST(ShowPerfetto, CountsTheMemoryUpToThePeakAndBack) {
  Placement placement = v(2);
  placement.devices[0].static_memory = 10;
  const Plan plan = plan_of("1f1b", placement, 4);
  const Json trace = Json::parse(show_perfetto(plan, placement));
  Bytes peak = 0;
  Bytes last = -1;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "C" || event["pid"] != 0) continue;
    last = event["args"]["bytes"];
    peak = std::max(peak, last);
  }
  EXPECT_EQ(peak, plan.peak_memory[0]);
  EXPECT_EQ(last, 10);
}

}  // namespace
}  // namespace ostinato
