// SPDX-License-Identifier: Apache-2.0
#include "search/show/show.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "search/named/named.h"
#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "search/show/drawing.h"

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

/// The title is the first one, however many lines it takes.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (lines.size() == 1 && line.starts_with("  "))
      lines.front() += line.substr(1);
    else
      lines.push_back(line);
  }
  return lines;
}

Placement v(int devices, Nanoseconds forward = 2000, Nanoseconds backward = 4000) {
  return shape("v", {.devices = devices, .forward = forward, .backward = backward});
}

TEST(ShowText, DrawsEachBlockOverItsTime) {
  const Placement placement = v(2);
  // 18 us over 54 columns: 3 columns a microsecond, after a margin of 13.
  const auto lines = lines_of(show_text(plan_of("1f1b", placement, 2), placement, {.width = 54 + 13}));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[1], "device0  67% F0----F1----            B0==========      B1==========");
  EXPECT_EQ(lines[2], "device1  67%       F0----B0==========F1----B1==========            ");
  EXPECT_EQ(lines[3], "             |0 ns |2 us |4 us |6 us |8 us |10 us|12 us|14 us|16 us");
}

TEST(ShowText, NumbersTheStagesOfEachDeviceInTheirOrder) {
  Placement p;
  p.devices.resize(2);
  const auto block = [&](const std::string& stage, std::vector<int> devices) {
    p.blocks.emplace_back().stage = stage;
    p.blocks.back().devices = std::move(devices);
  };
  block("a", {0});
  block("b", {1});
  block("c", {0, 1});
  block("b", {0});
  block("c", {1});
  block("a", {1, 0});
  EXPECT_EQ(chunks_of_blocks(p), (std::vector<int>{0, 0, 1, 2, 1, 2}));
  p.blocks.clear();
  constexpr int kStages = 200'000;  // minutes where each looks at all before it
  for (int s = 0; s < kStages; ++s) block(fmt::format("s{}", s), {0});
  EXPECT_EQ(chunks_of_blocks(p).back(), kStages - 1);
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
      const std::string text =
          show_text(plan_of("1f1b", placement, 2 * devices), placement, {.width = width});
      const auto lines = lines_of(text);
      ASSERT_EQ(lines.size(), static_cast<std::size_t>(devices) + 4);
      std::istringstream stream(text);
      for (std::string line; std::getline(stream, line);)
        EXPECT_LE(line.size(), static_cast<std::size_t>(width));
      for (int d = 1; d <= devices; ++d) EXPECT_EQ(lines[d].size(), static_cast<std::size_t>(width));
      EXPECT_LE(lines[devices + 1].size(), static_cast<std::size_t>(width));
    }
  }
}

TEST(ShowText, ShortensLongNamesAndCountsTheirLetters) {
  Placement placement = v(3);
  placement.devices[0].name = std::string(500, 'n');
  placement.devices[1].name = "ééééééééééééééé";
  const auto lines = lines_of(show_text(plan_of("1f1b", placement, 2), placement, {.width = 60}));
  EXPECT_TRUE(lines[1].starts_with(std::string(19, 'n') + "…  "));
  EXPECT_TRUE(lines[2].starts_with(placement.devices[1].name + std::string(5 + 2, ' ')));
  EXPECT_TRUE(lines[3].starts_with("device2" + std::string(13 + 2, ' ')));
  for (int d = 1; d <= 3; ++d) EXPECT_EQ(letters_of(lines[d]), 60u) << lines[d];
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
  EXPECT_NE(show_text(plan, placement, {}).find("makespan 18 us (bound 17 us according to the plan)"),
            std::string::npos);
  plan.lower_bound.makespan = 18000;
  plan.optimal.makespan = true;
  EXPECT_NE(show_text(plan, placement, {}).find("makespan 18 us (optimal according to the plan)"),
            std::string::npos);
}

TEST(ShowText, TakesAnEmptyTime) {
  const Placement placement = v(2, 0, 0);
  EXPECT_NE(show_text(plan_of("gpipe", placement, 1), placement, {}), "");
}

TEST(ShowText, SharesColumnsByTime) {
  // One micro-batch after another: F, then three times as long B.
  const Placement placement = v(1, 1000, 3000);
  const auto lines = lines_of(show_text(plan_of("1f1b", placement, 1000), placement, {.width = 113}));
  const std::string row = lines[1].substr(13);
  EXPECT_EQ(std::count(row.begin(), row.end(), 'F'), 25) << row;
  EXPECT_EQ(std::count(row.begin(), row.end(), 'B'), 75) << row;
  EXPECT_EQ(row.find("FF"), std::string::npos) << "spread evenly: " << row;
}

TEST(ShowText, LeavesTheBubbleItsShareOfColumns) {
  const Placement placement = v(2, 1000, 1000);
  Plan plan = plan_of("gpipe", placement, 1);
  plan.schedule.clear();  // 1 us of work, then 3 of nothing, a hundred times
  for (int i = 0; i < 100; ++i) plan.schedule.push_back({0, i, 4000 * i});
  plan.micro_batches = 100;
  plan.makespan = 400'000;
  const std::string row = lines_of(show_text(plan, placement, {.width = 113}))[1].substr(13);
  EXPECT_EQ(std::count(row.begin(), row.end(), 'F'), 25) << row;
}

TEST(ShowText, ShowsAWindow) {
  const Placement placement = v(2);
  // Of 18 us those from 2 to 8: 9 columns a microsecond.
  const auto lines = lines_of(show_text(plan_of("1f1b", placement, 2), placement,
                                        {.width = 54 + 13, .from = 2000, .to = 8000, .devices = {1}}));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[1], "device1 100% F0----------------B0==================================");
  EXPECT_EQ(lines[2], "             |2 us    |3 us    |4 us    |5 us    |6 us    |7 us");
}

TEST(ShowText, LeavesOutTicksWithoutRoom) {
  const Placement placement = v(1, 1'500'000'000'000, 4'000'000'000'000);
  const auto lines = lines_of(show_text(plan_of("1f1b", placement, 400), placement, {.width = 90}));
  EXPECT_EQ(lines[2],
            "             |0 ns  |200000 s     |600000 s     |1000000 s    |1400000 s    |1800000 s");
}

TEST(ShowText, AWindowsShareIsOfItsOwnTime) {
  const Placement placement = v(2);
  const auto lines =
      lines_of(show_text(plan_of("1f1b", placement, 2), placement, {.from = 4000, .to = 8000}));
  EXPECT_EQ(lines[1].substr(0, 12), "device0   0%");
  EXPECT_EQ(lines[2].substr(0, 12), "device1 100%");
}

TEST(ShowText, TellsTheTicksOfAShortWindowApart) {
  EXPECT_EQ(tick_label(2'000'000, 1'000'000), "2 ms");
  EXPECT_EQ(tick_label(1'234'567'890, 10), "1234567890 ns");
  EXPECT_EQ(tick_label(1'234'568'000, 1'000), "1234568 us");
}

/// The JSON that the page carries.
Json page_data(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="data">)";
  const std::size_t at = page.find(begin) + begin.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(ShowHtml, CarriesTheWholePlan) {
  const Placement placement = v(4);
  const Plan plan = plan_of("1f1b", placement, 8);
  const Json data = page_data(show_html(plan, placement));
  EXPECT_TRUE(data["measured"].is_null());
  ASSERT_EQ(data["plans"].size(), 1u);
  const Json& shown = data["plans"][0];
  EXPECT_EQ(shown["makespan"], plan.makespan);
  EXPECT_EQ(shown["steps"].size(), plan.schedule.size());
  EXPECT_EQ(shown["devices"].size(), 4u);
  EXPECT_EQ(shown["devices"][0]["peak"], 4);
  EXPECT_TRUE(shown["devices"][0]["memory"].is_null());
  EXPECT_EQ(shown["devices"][0]["busy"], 8 * 6000);
}

TEST(ShowHtml, CarriesTransfersAndWhatBinds) {
  Placement placement = v(2);
  placement.link = {.latency = 500, .bytes_per_second = 0};
  const Json data = page_data(show_html(plan_of("1f1b", placement, 2), placement))["plans"][0];
  for (const Json& block : data["blocks"]) {
    if (block["name"] != "s1.F") continue;
    ASSERT_EQ(block["after"].size(), 1u);
    EXPECT_EQ(data["blocks"][block["after"][0][0].get<int>()]["name"], "s0.F");
    EXPECT_EQ(block["after"][0][2], Json::parse("[[0, 1, 500]]"));
  }
  Nanoseconds at = 0;  // the chain has no holes: each step begins where the one before lets it
  for (const Json& link : data["critical"]) {
    const Json& block = data["blocks"][link[0].get<int>()];
    at += link[4].get<Nanoseconds>() + link[5].get<Nanoseconds>() + block["time"].get<Nanoseconds>();
  }
  EXPECT_EQ(at, data["makespan"]);
  EXPECT_EQ(data["words"][0].get<std::string>().substr(0, 12), "The critical");
}

TEST(ShowHtml, PutsPlansOneBelowAnother) {
  const Placement placement = v(2);
  const Plan one = plan_of("1f1b", placement, 3), other = plan_of("gpipe", placement, 3);
  MeasuredStep step;
  step.ranks = 1;
  step.devices = {{{"F", 0, 0, 0, 2000, 100, 2300}}};
  const Json data = page_data(show_html({{"a.json", one, placement}, {"gpipe", other, placement}}, step));
  ASSERT_EQ(data["plans"].size(), 2u);
  EXPECT_EQ(data["plans"][1]["title"], "gpipe");
  EXPECT_EQ(data["plans"][1]["makespan"], other.makespan);
  EXPECT_EQ(data["measured"]["devices"], Json::parse(R"([[["F", 0, 0, 0, 100, 2300]]])"));
}

TEST(ShowHtml, RefersToNothingOutside) {
  const Placement placement = v(2);
  const std::string page = show_html(plan_of("1f1b", placement, 2), placement);
  for (const char* forbidden : {"http:", "https:", "src=", "@import", "url("}) {
    EXPECT_EQ(page.find(forbidden), std::string::npos) << forbidden;
  }
  for (const char* mark : {"@TITLE@", "@STYLE@", "@DATA@", "@SCRIPT@"})
    EXPECT_EQ(page.find(mark), std::string::npos) << mark;
}

TEST(ShowHtml, TakesNamesThatLookLikeMarkup) {
  Placement placement = v(1);
  placement.name = "</script><b>&";
  placement.blocks[0].name = "<!--";
  const std::string page = show_html(plan_of("1f1b", placement, 1), placement);
  const Json data = page_data(page);
  EXPECT_EQ(data["plans"][0]["name"], placement.name);
  EXPECT_EQ(data["plans"][0]["blocks"][0]["name"], "<!--");
  EXPECT_NE(page.find("<title>&lt;/script>&lt;b>&amp;"), std::string::npos);
}

TEST(ShowHtml, TakesNamesThatLookLikeItsOwnMarks) {
  Placement placement = v(1);
  const Plan plan = plan_of("1f1b", placement, 1);
  placement.name = "@DATA@";
  placement.blocks[0].stage = "@SCRIPT@";
  const std::string page = show_html({{"@STYLE@", plan, placement}});
  const Json data = page_data(page)["plans"][0];
  EXPECT_EQ(data["name"], "@DATA@");
  EXPECT_EQ(data["title"], "@STYLE@");
  EXPECT_EQ(data["blocks"][0]["stage"], "@SCRIPT@");
  EXPECT_NE(page.find("<title>@DATA@ "), std::string::npos);
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
    EXPECT_EQ(count(image, fmt::format("class=\"{} tone1\"><title>", kind)), 3u * 4) << kind;
  }
  EXPECT_EQ(count(image, "class=\"row\"/>"), 4u + 1);  // the last one: the legend's bubble
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

TEST(ShowSvg, TellsChunksApartInThreeTones) {
  const Placement placement = shape("looped", {.devices = 1, .chunks = 3});
  const std::string image = show_svg(plan_of("gpipe", placement, 1), placement);
  for (const char* tone : {"", " tone1", " tone2"})
    EXPECT_EQ(count(image, fmt::format("class=\"forward{}\"><title>", tone)), 1u) << tone;
  EXPECT_NE(image.find("fainter: later chunks"), std::string::npos);
  EXPECT_EQ(show_svg(plan_of("1f1b", v(2), 2), v(2)).find("fainter"), std::string::npos);
}

/// A label names the kind in every block or in none.
TEST(ShowSvg, WritesOneKindOfLabel) {
  for (const int micro_batches : {2, 12, 20, 30}) {
    const Placement placement = v(2);
    const std::string image = show_svg(plan_of("gpipe", placement, micro_batches), placement);
    const std::size_t forwards = count(image, "class=\"label\">F"),
                      backwards = count(image, "class=\"label\">B");
    const std::size_t labels = count(image, "class=\"label\">");
    EXPECT_TRUE(forwards + backwards == labels || forwards + backwards == 0) << image;
    EXPECT_EQ(forwards > 0, micro_batches < 20) << micro_batches;
    EXPECT_GT(labels, 0u);
  }
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
  EXPECT_NE(image.find("<title>&lt;/title>&amp;\\u001b: 1 micro-batch"), std::string::npos) << image;
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

TEST(ShowPerfetto, ABlockHasOneNameAndOneCategory) {
  const Placement placement = v(2);
  const Json trace = Json::parse(show_perfetto(plan_of("1f1b", placement, 4), placement));
  std::map<std::string, std::set<std::string>> categories;
  std::set<int> micro_batches;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    categories[event["name"]].insert(event["cat"].get<std::string>());
    micro_batches.insert(event["args"]["micro_batch"].get<int>());
  }
  EXPECT_EQ(categories.size(), placement.blocks.size());
  for (const auto& [name, list] : categories) EXPECT_EQ(list.size(), 1u) << name;
  EXPECT_EQ(micro_batches, (std::set<int>{0, 1, 2, 3}));
}

TEST(ShowPerfetto, ArrowsLeadFromSendersToReceivers) {
  Placement placement = v(2);
  placement.link = {.latency = 500, .bytes_per_second = 0};
  const Json trace = Json::parse(show_perfetto(plan_of("1f1b", placement, 3), placement));
  std::map<int, std::map<std::string, Json>> transfers;  // by id and phase
  for (const Json& event : trace["traceEvents"])
    if (event.contains("cat") && event["cat"] == "transfer")
      transfers[event["id"].get<int>()][event["ph"].get<std::string>()] = event;
  EXPECT_EQ(transfers.size(), 3u * 2);  // of each micro-batch one forward and one backward
  const auto slice_at = [&](const Json& arrow) {
    for (const Json& event : trace["traceEvents"])
      if (event["ph"] == "X" && event["pid"] == arrow["pid"] && event["ts"] < arrow["ts"] &&
          event["ts"].get<double>() + event["dur"].get<double>() > arrow["ts"])
        return event;
    return Json();
  };
  for (auto& [id, phases] : transfers) {
    const Json from = slice_at(phases["s"]), to = slice_at(phases["f"]);
    EXPECT_EQ(phases["b"]["name"], from["name"].get<std::string>() + " to " + to["name"].get<std::string>());
    EXPECT_EQ(from["args"]["micro_batch"], to["args"]["micro_batch"]);
    EXPECT_NE(from["pid"], to["pid"]);
    EXPECT_EQ(phases["b"]["ts"], from["ts"].get<double>() + from["dur"].get<double>());
    EXPECT_EQ(phases["e"]["ts"].get<double>() - phases["b"]["ts"].get<double>(), 0.5);
    EXPECT_LE(phases["e"]["ts"], to["ts"]);
  }
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
