// SPDX-License-Identifier: Apache-2.0
#include "search/placement/placement_toml.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "search/files/digest.h"
#include "search/files/file.h"
#include "search/files/sha256.h"
#include "search/files/toml_values.h"
#include "search/files/unit_field.h"
#include "search/files/units.h"
#include "search/placement/lanes.h"
#include "search/placement/placement_check.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

constexpr std::string_view kFormat = "ostinato-placement/1";
constexpr std::array kEveryKind = {Kind::forward, Kind::backward, Kind::backward_input, Kind::backward_weight,
                                   Kind::offload, Kind::load,     Kind::other};
constexpr Nanoseconds kLongestStep = std::numeric_limits<Nanoseconds>::max() / 4;  // of an optimizer

/// An entry of `after` before its name is looked up.
struct NamedInput {
  int block;  ///< that waits
  std::string name;
  Bytes bytes;
  int line;
};

/// The elements of an optional list; nothing where it is absent.
const std::vector<Value>& elements(const Value* list, const std::string& file, const char* what) {
  static const std::vector<Value> none;
  if (list == nullptr) return none;
  if (list->kind == ValueKind::array) return list->items;
  throw InputError(file, list->line,
                   "'" + std::string(what) + "' must be a list, not " + to_string(list->kind));
}

/// `kind` of a block.
Kind parse_kind(const Fields& fields, const std::string& kind, const std::string& block) {
  const auto found =
      std::find_if(kEveryKind.begin(), kEveryKind.end(), [&](Kind k) { return to_string(k) == kind; });
  if (found != kEveryKind.end()) return *found;
  std::vector<std::string> names;
  for (const Kind k : kEveryKind) names.emplace_back(to_string(k));
  const std::string near = did_you_mean(kind, names);
  fields.fail(fields.find("kind"),
              "unknown kind " + in_quotes(kind) + " of block " + in_quotes(block) +
                  (near.empty() ? fmt::format("; the kinds are {}", fmt::join(names, ", ")) : near));
}

class PlacementReader {
 public:
  explicit PlacementReader(const std::string& file) : file_(file) {}

  void root(const Value& root);
  void row(const Value& value) {
    faults_.in([&] { block(value); });
  }
  Placement finish();
  ModelFacts& model() { return model_; }

 private:
  int device_index(const Value& value, const std::string& what) const {
    return static_cast<int>(integer_in(value, file_, what, 0, count_without_lanes(placement_) - 1));
  }

  /// Reads the rows of an optional list, behind one that is wrong, too.
  template <typename Read>
  void each(const Value* list, const char* what, const Read& read) {
    for (const Value& row : elements(list, file_, what)) faults_.in([&] { read(row); });
  }
  void devices(const Value* list);
  void links(const Value* list);
  void hosts(const Value* list);
  void stages(const Value* list);
  void model(const Value& value);
  void block(const Value& value);
  void check_step_memory(const Fields& fields) const;
  LayerRun run_of_layers(const Fields& fields, const Value& run, const std::string& stage) const;
  void place_stages();
  Link link(const Fields& fields) const;
  void add(const Value& lane, int device);
  std::vector<int> on_lanes(const Fields& fields, const std::vector<int>& devices) const;
  std::vector<int> devices_of(const Value& list, const std::string& what) const;
  void inputs(const Value& list, int block);
  void resolve_inputs();
  void resolve(const NamedInput& input);

  const std::string& file_;
  Placement placement_;
  ModelFacts model_;
  std::int64_t time_factor_ = 1;                ///< nanoseconds a unit
  std::int64_t memory_factor_ = 1;              ///< bytes a unit
  bool knows_memory_ = false;                   ///< what the unit is
  std::unordered_map<std::string, int> index_;  ///< of each block name
  PlacementLines lines_;
  std::vector<NamedInput> inputs_;
  Faults faults_;
};

void PlacementReader::root(const Value& root) {
  check_format(root, file_, kFormat);
  const Fields fields(root, file_, "a placement",
                      {"format", "name", "time_unit", "memory_unit", "link", "links", "devices", "hosts",
                       "blocks", "stages", "model"},
                      &faults_);
  placement_.name = fields.text_or("name", "");
  faults_.in([&] { time_factor_ = unit_field(fields, "time_unit", kTimeUnits, "us"); });
  faults_.in([&] {
    memory_factor_ = unit_field(fields, "memory_unit", kMemoryUnits, "MiB");
    knows_memory_ = fields.sound();
  });
  faults_.in([&] { elements(fields.find("blocks"), file_, "blocks"); });  // here only where it is no list
  if (const Value* value = fields.find("link"))
    faults_.in([&] {
      placement_.link = link(Fields(*value, file_, "[link]", {"latency", "bandwidth"}, &faults_));
    });
  faults_.in([&] { devices(fields.find("devices")); });
  if (placement_.devices.empty()) {
    faults_.raise();
    throw InputError(file_, 0, "no [[devices]]: a placement needs at least one");
  }
  faults_.in([&] { links(fields.find("links")); });
  faults_.in([&] { hosts(fields.find("hosts")); });
  faults_.in([&] { stages(fields.find("stages")); });
  if (const Value* value = fields.find("model")) faults_.in([&] { model(*value); });
}

Link PlacementReader::link(const Fields& fields) const {
  return {.latency = fields.scaled("latency", time_factor_, 0, 0),
          .bytes_per_second = fields.scaled("bandwidth", kGigabyte, 0, 0)};
}

void PlacementReader::devices(const Value* list) {
  std::unordered_map<std::string, int> seen;
  std::vector<const Value*> lanes;
  each(list, "devices", [&](const Value& value) {
    const Fields fields(value, file_, "[[devices]]", {"name", "kind", "memory", "static", "lanes"}, &faults_);
    Device& device = placement_.devices.emplace_back();  // blocks may be on it, even where a field is wrong
    lanes.push_back(fields.find("lanes"));
    device.name = fields.text_or("name", "device" + std::to_string(placement_.devices.size() - 1));
    device.kind = fields.text_or("kind", "");
    device.memory = fields.scaled("memory", memory_factor_, 0, kUnlimited);
    device.static_memory = fields.scaled("static", memory_factor_, 0, 0);
    const auto [first, is_new] = seen.emplace(device.name, value.line);
    if (!is_new && fields.sound()) {
      fields.fail(nullptr, "duplicate device name " + in_quotes(device.name) + ", first on line " +
                               std::to_string(first->second));
    }
  });
  for (std::size_t d = 0; d < lanes.size(); ++d)
    each(lanes[d], "lanes", [&](const Value& lane) { add(lane, static_cast<int>(d)); });
}

void PlacementReader::add(const Value& lane, int device) {
  const std::string name = in_quotes(placement_.devices[device].name);
  if (lane.kind != ValueKind::text || lane.text.empty())
    throw InputError(file_, lane.line, "'lanes' of device " + name + " must hold names, such as \"network\"");
  if (lane.text == kComputing)
    throw InputError(file_, lane.line, "\"compute\" is device " + name + " itself, and no lane of it");
  if (find_lane(placement_, device, lane.text) >= 0)
    throw InputError(file_, lane.line, "device " + name + " has lane " + in_quotes(lane.text) + " twice");
  add_lane(placement_, device, lane.text);
}

void PlacementReader::links(const Value* list) {
  each(list, "links", [&](const Value& value) {
    const Fields fields(value, file_, "[[links]]", {"from", "to", "latency", "bandwidth"}, &faults_);
    const Link made = link(fields);
    const int from = device_index(fields.need("from", ValueKind::integer), "'from'");
    const int to = device_index(fields.need("to", ValueKind::integer), "'to'");
    if (from == to) fields.fail(nullptr, "a link from device " + std::to_string(from) + " to itself");
    if (!placement_.links.emplace(std::pair{from, to}, made).second) {
      fields.fail(nullptr,
                  "duplicate link from device " + std::to_string(from) + " to " + std::to_string(to));
    }
  });
}

void PlacementReader::hosts(const Value* list) {
  std::unordered_map<int, int> seen;  // device, line
  each(list, "hosts", [&](const Value& value) {
    const Fields fields(value, file_, "[[hosts]]", {"devices", "cores", "ranks"}, &faults_);
    Host host;
    host.cores = static_cast<int>(fields.integer("cores", 1, std::numeric_limits<int>::max()));
    if (fields.find("ranks") != nullptr)
      host.ranks = static_cast<int>(fields.integer("ranks", 1, std::numeric_limits<int>::max()));
    host.devices = devices_of(fields.need("devices", ValueKind::array), "the host");
    for (const int device : host.devices) {
      const auto [first, is_new] = seen.emplace(device, value.line);
      if (is_new) continue;
      fields.fail(nullptr, "device " + std::to_string(device) + " is on the host of line " +
                               std::to_string(first->second) + ", too");
    }
    placement_.hosts.push_back(std::move(host));
  });
}

void PlacementReader::stages(const Value* list) {
  std::unordered_set<std::string> seen;
  each(list, "stages", [&](const Value& value) {
    const Fields fields(value, file_, "[[stages]]", {"name", "layers", "recompute"}, &faults_);
    Stage stage;
    stage.name = fields.text("name");
    stage.recompute = fields.find("recompute") != nullptr && fields.boolean("recompute");
    if (!seen.insert(stage.name).second && fields.sound())
      fields.fail(nullptr, "duplicate stage name " + in_quotes(stage.name));
    const Value& layers = fields.need("layers", ValueKind::array);
    const bool several = !layers.items.empty() && layers.items[0].kind == ValueKind::array;
    for (const Value& run : several ? layers.items : std::vector{layers}) {
      const auto [first, end] = run_of_layers(fields, run, stage.name);
      if (!stage.layers.empty() && first <= stage.layers.runs().back().end)
        fields.fail(&run, "the ranges of 'layers' must be in ascending order, with a gap between two ranges");
      stage.layers.add(Layers::run(first, end));
    }
    placement_.stages.push_back(std::move(stage));
    lines_.stages.push_back(value.line);
  });
}

void PlacementReader::model(const Value& value) {
  const Fields fields(value, file_, "[model]",
                      {"sha256", "layers", "micro_batch_size", "step_memory", "step_time"}, &faults_);
  if (fields.find("sha256") != nullptr) model_.sha256 = sha256_field(fields, "sha256");
  if (fields.find("micro_batch_size") != nullptr)
    model_.micro_batch_size =
        static_cast<int>(fields.integer("micro_batch_size", 1, std::numeric_limits<int>::max()));
  for (const Value& bytes : elements(fields.find("step_memory"), file_, "step_memory"))
    model_.step_memory.push_back(integer_in(bytes, file_, "'step_memory' of a device", 0, Fields::kLargest));
  check_step_memory(fields);
  for (const Value& time : elements(fields.find("step_time"), file_, "step_time"))
    model_.step_time.push_back(integer_in(time, file_, "'step_time' of a device", 0, kLongestStep));
  const auto devices = static_cast<std::size_t>(count_without_lanes(placement_));
  if (const Value* list = fields.find("step_time"); list && model_.step_time.size() != devices)
    fields.fail(list, "'step_time' needs one number of nanoseconds per device");
  for (const Value& layer : elements(fields.find("layers"), file_, "layers")) {
    if (layer.kind != ValueKind::text)
      fields.fail(&layer,
                  "'layers' of [model] must hold \"NAME DIGEST\", not " + std::string(to_string(layer.kind)));
    model_.layers.push_back(layer.text);
  }
}

void PlacementReader::check_step_memory(const Fields& fields) const {
  const Value* list = fields.find("step_memory");
  if (list == nullptr || !knows_memory_) return;
  const auto devices = static_cast<std::size_t>(count_without_lanes(placement_));
  if (model_.step_memory.size() != devices)
    fields.fail(list, "'step_memory' needs one number of bytes per device");
  for (std::size_t d = 0; d < devices; ++d) {
    const Device& device = placement_.devices[d];
    const Bytes room = device.memory - device.static_memory;
    if (device.memory == kUnlimited || room < 0 || model_.step_memory[d] <= room) continue;
    const auto [wanted, left] = format_apart(model_.step_memory[d], room);
    fields.fail(list, "the end of a step needs " + wanted + " above the static memory of device " +
                          in_quotes(device.name) + ", which leaves " + left);
  }
}

LayerRun PlacementReader::run_of_layers(const Fields& fields, const Value& run,
                                        const std::string& stage) const {
  constexpr std::int64_t largest = std::numeric_limits<int>::max();
  if (run.kind != ValueKind::array || run.items.size() != 2)
    fields.fail(&run, "'layers' must be two whole numbers [first, end), or a list of such ranges");
  const auto first = integer_in(run.items[0], file_, "the first layer", 0, largest);
  const auto end = integer_in(run.items[1], file_, "the end of the layers", 0, largest);
  if (first >= end) fields.fail(&run, "stage " + in_quotes(stage) + " has no layers");
  return {static_cast<int>(first), static_cast<int>(end)};
}

void PlacementReader::block(const Value& value) {
  const Fields fields(value, file_, "[[blocks]]",
                      {"name", "stage", "kind", "devices", "lane", "time", "memory", "workspace", "after"},
                      &faults_);
  const int index = static_cast<int>(placement_.blocks.size());
  Block block;
  block.name = fields.text("name");
  block.stage = fields.text_or("stage", block.name);
  block.time = fields.scaled("time", time_factor_, 0);
  block.memory = fields.scaled("memory", memory_factor_, -Fields::kLargest, 0);
  block.workspace = fields.scaled("workspace", memory_factor_, 0, 0);
  const std::string kind = fields.text_or("kind", "other");
  if (fields.sound()) faults_.in([&] { block.kind = parse_kind(fields, kind, block.name); });
  block.devices = on_lanes(
      fields, devices_of(fields.need("devices", ValueKind::array), "block " + in_quotes(block.name)));
  const auto [first, is_new] = index_.emplace(block.name, index);
  if (!is_new && fields.sound()) {
    fields.fail(nullptr, "duplicate block name " + in_quotes(block.name) + ", first on line " +
                             std::to_string(lines_.blocks[first->second]));
  }
  placement_.blocks.push_back(std::move(block));
  lines_.blocks.push_back(value.line);
  if (fields.find("after") != nullptr) inputs(fields.need("after", ValueKind::array), index);
}

std::vector<int> PlacementReader::on_lanes(const Fields& fields, const std::vector<int>& devices) const {
  const Value* lane = fields.find("lane");
  if (lane == nullptr) return devices;
  std::vector<int> all;
  for (const Value& name : lane->kind == ValueKind::array ? lane->items : std::vector{*lane}) {
    if (name.kind != ValueKind::text)
      fields.fail(&name, "'lane' must be the name of a lane, or a list of names");
    for (const int device : devices) {
      const int found = find_lane(placement_, device, name.text);
      if (found < 0)
        fields.fail(&name, "device " + in_quotes(placement_.devices[device].name) + " has no lane " +
                               in_quotes(name.text) + "; [[devices]] names a device's 'lanes'");
      all.push_back(found);
    }
  }
  std::sort(all.begin(), all.end());
  if (all.empty() || std::adjacent_find(all.begin(), all.end()) != all.end())
    fields.fail(lane, "'lane' must name at least one lane, and none twice");
  return all;
}

std::vector<int> PlacementReader::devices_of(const Value& list, const std::string& what) const {
  std::vector<int> devices;
  for (const Value& item : list.items) devices.push_back(device_index(item, "a device of " + what));
  if (devices.empty()) throw InputError(file_, list.line, what + " has no devices");
  std::sort(devices.begin(), devices.end());
  const auto twice = std::adjacent_find(devices.begin(), devices.end());
  if (twice != devices.end()) {
    throw InputError(file_, list.line, what + " names device " + std::to_string(*twice) + " twice");
  }
  return devices;
}

void PlacementReader::inputs(const Value& list, int block) {
  for (const Value& item : list.items) {
    if (item.kind == ValueKind::text) {
      inputs_.push_back({block, item.text, 0, item.line});
      continue;
    }
    if (item.kind != ValueKind::object) {
      throw InputError(file_, item.line,
                       "'after' must hold block names or { block = \"name\", bytes = 0 }, not " +
                           std::string(to_string(item.kind)));
    }
    const Fields fields(item, file_, "'after'", {"block", "bytes"});
    const Bytes bytes = fields.find("bytes") == nullptr ? 0 : fields.integer("bytes", 0);
    inputs_.push_back({block, fields.text("block"), bytes, item.line});
  }
}

void PlacementReader::resolve_inputs() {
  for (const NamedInput& input : inputs_) faults_.in([&] { resolve(input); });
  faults_.raise();
}

void PlacementReader::resolve(const NamedInput& input) {
  Block& waiting = placement_.blocks[input.block];
  const auto found = index_.find(input.name);
  if (found == index_.end()) {
    std::vector<std::string_view> names;
    for (const Block& block : placement_.blocks) names.push_back(block.name);
    throw InputError(file_, input.line,
                     "block " + in_quotes(waiting.name) + " comes after unknown block " +
                         in_quotes(input.name) + did_you_mean(input.name, names));
  }
  if (found->second == input.block) {
    throw InputError(file_, input.line, "block " + in_quotes(waiting.name) + " comes after itself");
  }
  waiting.after.push_back({found->second, input.bytes});
}

/// On the devices of their blocks.
void PlacementReader::place_stages() {
  std::unordered_map<std::string_view, Stage*> of;
  for (Stage& stage : placement_.stages) of.emplace(stage.name, &stage);
  for (const Block& block : placement_.blocks) {
    const auto found = of.find(block.stage);
    if (found == of.end()) continue;  // check_placement() says so
    std::vector<int> all;
    std::set_union(block.devices.begin(), block.devices.end(), found->second->devices.begin(),
                   found->second->devices.end(), std::back_inserter(all));
    found->second->devices = std::move(all);
  }
}

Placement PlacementReader::finish() {
  faults_.raise();
  link_lanes(placement_);
  resolve_inputs();
  place_stages();
  check_placement(placement_, lines_, file_);
  return std::move(placement_);
}

}  // namespace

std::string format_model(const ModelFacts& model) {
  const bool steps = std::ranges::any_of(model.step_memory, [](Bytes bytes) { return bytes > 0; });
  if (model.sha256.empty() && model.micro_batch_size == 0 && !steps && model.step_time.empty()) return "";
  std::string text = "\n[model]\n";
  if (!model.sha256.empty()) text += "sha256 = " + toml_string(model.sha256) + "\n";
  if (model.micro_batch_size > 0) text += fmt::format("micro_batch_size = {}\n", model.micro_batch_size);
  if (steps) text += fmt::format("step_memory = [{}]\n", fmt::join(model.step_memory, ", "));
  if (!model.step_time.empty()) text += fmt::format("step_time = [{}]\n", fmt::join(model.step_time, ", "));
  if (model.layers.empty()) return text;
  text += "layers = [\n";
  for (const std::string& layer : model.layers) text += "  " + toml_string(layer) + ",\n";
  return text + "]\n";
}

PlacementFile read_placement(const std::filesystem::path& path) {
  return parse_placement(read_file(path, kMaxPlacementBytes), path.string());
}

PlacementFile parse_placement(std::string_view text, const std::string& name) {
  if (text.size() > kMaxPlacementBytes) {
    throw InputError(name, 0, "is larger than " + format_memory(kMaxPlacementBytes));
  }
  PlacementReader reader(name);
  read_toml(
      text, name, "blocks", [&](const Value& root) { reader.root(root); },
      [&](const Value& block) { reader.row(block); });
  return {.placement = reader.finish(), .sha256 = sha256(text), .model = std::move(reader.model())};
}

}  // namespace ostinato
