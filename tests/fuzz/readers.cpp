// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "plugin/lowering/lower.h"
#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/files/json_values.h"
#include "search/files/toml_values.h"
#include "search/graph/csv.h"
#include "search/named/named.h"
#include "search/plan/modes.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "search/profile/cluster_toml.h"
#include "search/profile/profile_json.h"
#include "search/show/show.h"
#include "search/simulate/simulate.h"
#include "tests/support/source_dir.h"

namespace ostinato::fuzz {
namespace {

std::string config(const std::string& name) {
  return read_file(test::source_dir() / "configs" / name, std::size_t{1} << 20);
}

std::vector<std::string> placements() {
  std::vector<std::string> texts;
  for (const char* name :
       {"v-shape-4.toml", "m-shape-4.toml", "choices-4.toml", "wave-2x4.toml", "placement.toml"})
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

void must(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

bool take_placement(std::string_view text) {
  const PlacementFile file = parse_placement(text, "p.toml");
  const std::string written = format_placement(file.placement);
  must(format_placement(parse_placement(written, "again.toml").placement) == written,
       "a placement is not what was read when it is written and read again");
  return true;
}

/// What the commands do with a plan: whoever passes the checker can be drawn, replayed and lowered.
bool run_plan(const Plan& plan, const Placement& as_written) {
  if (!check_schedule(plan, as_written).ok()) return false;
  const Placement placement = as_planned(as_written, plan);
  must(!show_text(plan, placement, {}).empty(), "nothing is drawn");
  if (plan.schedule.size() < 2000) {
    show_html(plan, placement);
    show_svg(plan, placement);
    show_perfetto(plan, placement);
  }
  try {
    lower(plan, as_written);
  } catch (const InputError&) {  // kinds that cannot be enforced
    return false;
  }
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

/// `file`: what messages begin with.
Reader reader(std::string name, const std::string& file, std::vector<std::string> seeds,
              const std::function<bool(std::string_view)>& take) {
  return {std::move(name), std::move(seeds), [file, take](std::string_view text) {
            try {
              return take(text);
            } catch (const InputError& error) {
              const std::string_view what = error.what();
              must(what.starts_with(file) || what.starts_with("plan.json"),
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
  const std::string graph =
      "id,successors,predecessors,colocated,tensor size,operations,memory,device "
      "kind,name\n0,1;2,,,8,3,1,NO,a\n"
      "1,3,0,2,8,5,1,NO,b\n2,3,0,1,8,4,1,GPU,c\n3,,1;2,,0,2,1,NO,d\n";
  const std::string devices = "id,memory,operations,rates,kind\n0,100,2,1;1,GPU\n1,100,4,1;1,CPU\n";
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
      reader("graph", "g.csv", {graph},
             [](std::string_view text) { return graph::parse_graph_csv(text, "g.csv"), true; }),
      reader("graph-devices", "d.csv", {devices},
             [](std::string_view text) { return graph::parse_devices_csv(text, "d.csv"), true; }),
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
