// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/readers.h"

#include <fmt/format.h>

#include <random>
#include <sstream>
#include <stdexcept>

#include "bindings/core/options.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/files/json_values.h"
#include "search/files/toml_values.h"
#include "search/graph/csv.h"
#include "search/named/named.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "search/plan/sizes_toml.h"
#include "search/profile/cluster_toml.h"
#include "search/profile/profile_json.h"
#include "search/show/show.h"
#include "tests/fuzz/commands.h"
#include "tests/support/source_dir.h"

namespace ostinato::fuzz {
namespace {

/// Without comments, which no reader keeps.
std::string config(const std::string& name) {
  std::istringstream lines(read_file(test::source_dir() / "configs" / name, std::size_t{1} << 20));
  std::string text;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != '#') text += line.substr(0, line.find("  #")) + "\n";
  return text;
}

std::vector<std::string> placements() {
  std::vector<std::string> texts;
  for (const char* name : {"v-shape-4.toml", "m-shape-4.toml", "wave-2x4.toml", "placement.toml"})
    texts.push_back(config(name));
  return texts;
}

/// One that a named schedule gives: no search, so the same everywhere.
std::string plan_of(const PlacementFile& file, const std::string& schedule, int micro_batches) {
  const NamedSchedule named = named_schedule(schedule, file.placement, micro_batches);
  Plan plan;
  plan.placement_name = file.placement.name;
  plan.placement_sha256 = "";
  plan.micro_batches = micro_batches;
  plan.schedule = earliest_starts(file.placement, micro_batches, named.orders.value()).value();
  sort_schedule(file.placement, plan.schedule);
  plan.makespan = makespan_of(file.placement, plan.schedule);
  plan.span = span_of(file.placement, plan.schedule);
  plan.peak_memory = peak_memory(file.placement, plan.schedule);
  return format_plan(plan, file.placement);
}

const PlacementFile& fixed() {
  static const PlacementFile file = parse_placement(config("v-shape-4.toml"), "v.toml");
  return file;
}

bool take_placement(std::string_view text) {
  const PlacementFile file = parse_placement(text, "p.toml");
  const std::string written = format_placement(file.placement);
  must(format_placement(parse_placement(written, "again.toml").placement) == written,
       "a placement is not what was read when it is written and read again");
  return true;
}

bool take_plan(std::string_view text) {
  const Placement& placement = fixed().placement;
  const Plan plan = parse_plan(text, "plan.json", placement, "");
  const std::string written = format_plan(plan, placement);
  must(format_plan(parse_plan(written, "plan.json", placement, ""), placement) == written,
       "a plan is not what was read when it is written and read again");
  return run_plan(plan, placement);
}

bool take_pair(std::string_view text) {
  const std::size_t between = text.find(kBetween);
  if (between == std::string_view::npos) return false;
  const PlacementFile file = parse_placement(text.substr(0, between), "p.toml");
  return run_plan(parse_plan(text.substr(between + kBetween.size()), "plan.json", file.placement, ""),
                  file.placement);
}

bool take_sizes(std::string_view text) {
  run_sizes(fixed().placement, parse_sizes(text, "s.toml", fixed().placement));
  return true;
}

bool take_trace(std::string_view text) {
  const std::size_t between = text.find(kBetween);
  std::vector<TraceText> files = {{"rank-0.json", text.substr(0, between)}};
  if (between != std::string_view::npos)
    files.push_back({"rank-1.json", text.substr(between + kBetween.size())});
  const MeasuredStep step = parse_trace(files);
  if (step.devices.size() > 8 || text.size() % 16 > 0) return true;  // a page is long
  static const Plan plan = parse_plan(plan_of(fixed(), "1f1b", 4), "plan.json", fixed().placement, "");
  show_html({{"plan", plan, fixed().placement}}, step);
  return true;
}

bool take_profile(std::string_view text) {
  const std::string written = format_profile(parse_profile(text, "p.json"));
  must(format_profile(parse_profile(written, "p.json")) == written,
       "a profile is not what was read when it is written and read again");
  return true;
}

std::string pair_of(const std::string& placement, const std::string& schedule) {
  return placement + std::string(kBetween) + plan_of(parse_placement(placement, "p.toml"), schedule, 4);
}

std::string profile_seed() {
  Profile profile;
  profile.model = "test";
  profile.model_sha256 = std::string(64, 'a');
  profile.device.name = profile.device.kind = profile.timer = "cpu";
  profile.repeats = profile.micro_batch_size = 1;
  profile.completeness.complete = true;
  for (int i = 0; i < 3; ++i) {
    LayerCost layer;
    layer.index = i;
    layer.name = fmt::format("{}:Layer", i);
    layer.forward = {10, 9, 12, 5};
    layer.backward = {20, 19, 22, 5};
    layer.kept = 1000;
    layer.parameters = layer.gradients = 100;
    layer.input_bytes = layer.output_bytes = 10;
    profile.layers.push_back(layer);
  }
  return format_profile(profile);
}

std::string trace_seed(int rank) {
  return fmt::format(
      R"({{"format": "ostinato-trace/1", "rank": {0}, "device": {0}, "step": 1, "plan_sha256": "ab", )"
      R"("makespan": 300, "step_seconds": [1.5], "peak_memory": 7, "beside": [["x", 400, 0]], "instructions": [)"
      R"({{"text": "0F0", "action": "F", "stage": 0, "micro_batch": 2, "planned_start": 5, )"
      R"("planned_end": 9, "start": 6, "end": 11}}, {{"text": "0S", "action": "SEND_F", "stage": 0, )"
      R"("micro_batch": 2, "peer": 1, "peer_stage": 1, "planned_start": 9, "planned_end": 9, "start": 11, )"
      R"("end": 12}}]}})",
      rank);
}

/// Of a graph and of devices, each with a fixed one of the other.
constexpr const char* kGraph =
    "id,successors,predecessors,colocated,tensor size,operations,memory,device kind,name\n"
    "0,1;2,,,8,3,1,NO,a\n1,3,0,2,8,5,1,NO,b\n2,3,0,1,8,4,1,GPU,c\n3,,1;2,,0,2,1,NO,d\n";
constexpr const char* kDevices = "id,memory,operations,rates,kind\n0,100,2,1;1,GPU\n1,100,4,1;1,CPU\n";

bool take_graph(std::string_view text) {
  static const graph::GraphDevices devices = graph::parse_devices_csv(kDevices, "d.csv");
  run_graph(graph::parse_graph_csv(text, "g.csv"), devices, text.size());
  return true;
}

bool take_graph_devices(std::string_view text) {
  static const graph::OperatorGraph graph = graph::parse_graph_csv(kGraph, "g.csv");
  run_graph(graph, graph::parse_devices_csv(text, "d.csv"), text.size());
  return true;
}

/// Long enough for all that a placement has.
std::vector<std::string> random_bytes(int count) {
  std::mt19937 engine(1);
  std::vector<std::string> texts(count, std::string(64, '\0'));
  for (std::string& text : texts)
    for (char& byte : text) byte = static_cast<char>(engine());
  return texts;
}

/// `file`: what messages begin with.
Reader reader(std::string name, const std::string& file, std::vector<std::string> seeds,
              const std::function<bool(std::string_view)>& take) {
  return {std::move(name), std::move(seeds), [file, take](std::string_view text) {
            try {
              return take(text);
            } catch (const InputError& error) {
              const std::string_view what = error.what();
              must(what.starts_with(file) || what.starts_with("plan.json") || what.starts_with("rank-1.json"),
                   "a refusal does not name its file");
              return false;
            }
          }};
}

std::vector<Reader> all() {
  const std::string v = config("v-shape-4.toml");
  const auto toml = [](std::string_view text) {
    read_toml(
        text, "f.toml", "blocks", [](const Value&) {}, [](const Value&) {});
    return true;
  };
  const auto json = [](std::string_view text) {
    read_json(text, "f.json", "x/1", "list", [](const Value&) {});
    return true;
  };
  return {
      reader("toml", "f.toml",
             {v, "a = 1\n[b.'c d']\ne = [1, 2.5, '''x''', \"\\u00e9\"] # \u00e9\nf = 2026-01-02T03:04:05Z\n",
              "x = {y.z = true}\n", "s = ['''x'x'''', \"\"\"y\"\"\"\"\"] # \u00e9\n"},
             toml),
      reader("json", "f.json", {R"({"format": "x/1", "list": [{"a": [1, 2.5e3, "\u00e9"]}], "b": null})"},
             json),
      reader("placement", "p.toml", placements(), take_placement),
      reader("plan", "plan.json", {plan_of(fixed(), "1f1b", 4), plan_of(fixed(), "gpipe", 3)}, take_plan),
      reader("pair", "p.toml", {pair_of(v, "1f1b"), pair_of(config("wave-2x4.toml"), "gpipe")}, take_pair),
      reader("profile", "p.json", {profile_seed()}, take_profile),
      reader("devices", "d.toml", {config("devices.toml")},
             [](std::string_view text) { return !parse_cluster(text, "d.toml").nodes.empty(); }),
      reader("graph", "g.csv", {kGraph}, take_graph),
      reader("graph-devices", "d.csv", {kDevices}, take_graph_devices),
      reader(
          "sizes", "s.toml",
          {"format = \"ostinato-sizes/1\"\nsize = 1024\n[[micro_batches]]\nsize = 2000\n[[micro_batches]]\n"
           "size = 512\ntimes = { \"s0.F\" = 9000.5 }\n[[micro_batches]]\ntimes = { \"s0.F\" = 100 }\n"
           "memory = { \"s0.F\" = 30, \"s0.B\" = -30 }\nworkspace = { \"s1.F\" = 1 }\n"},
          take_sizes),
      reader(
          "bare-sizes", "s.toml",
          {"format = \"ostinato-sizes/1\"\nsize = 10\n[[micro_batches]]\nsize = 0\n[[micro_batches]]\nsize "
           "= 9\n"},
          [](std::string_view text) { return !parse_bare_sizes(text, "s.toml").sizes.empty(); }),
      reader("options", "o.toml", {config("options.toml")},
             [](std::string_view text) { return !core::parse_options(text, "o.toml").empty(); }),
      reader("trace", "rank-0.json", {trace_seed(0), trace_seed(0) + std::string(kBetween) + trace_seed(1)},
             take_trace),
      reader("search", "p.toml", random_bytes(16), run_search),
  };
}

}  // namespace

const std::vector<Reader>& readers() {
  static const std::vector<Reader> made = all();
  return made;
}

const Reader& find_reader(std::string_view name) {
  for (const Reader& reader : readers()) {
    if (reader.name == name) return reader;
  }
  throw std::out_of_range("no reader is called '" + std::string(name) + "'");
}

}  // namespace ostinato::fuzz
