// SPDX-License-Identifier: Apache-2.0
#include "search/profile/profile_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "search/files/digest.h"
#include "search/files/file.h"
#include "search/files/json_values.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

constexpr std::string_view kFormat = "ostinato-profile/1";
constexpr std::int64_t kMaxCount = std::numeric_limits<int>::max();
constexpr std::int64_t kMostBuffers = 64;
constexpr std::int64_t kMostSlices = 4096;

class ProfileReader {
 public:
  explicit ProfileReader(const std::string& file) : file_(file) {}

  Profile read(const Value& root);

 private:
  int count(const Fields& fields, std::string_view key, std::int64_t low) const {
    return static_cast<int>(fields.integer(key, low, kMaxCount));
  }

  void model(const Value& value);
  void device(const Value& value);
  void completeness(const Value& value);
  void rank(const Value& value);
  void zero(const Value& value);
  void restriction(const Value& value);
  Rule rule(const Fields& fields) const;
  void run(const Value& value);
  void layer(const Value& value);
  std::vector<LayerInput> inputs(const Value& list, std::int64_t last) const;
  void size(const Value& value);
  std::vector<Nanoseconds> times_of_layers(const Fields& row, std::string_view key) const;
  void operator_row(const Value& value);
  void transfer(const Value& value);
  Spread spread(const Fields& row, std::string_view key) const;

  const std::string& file_;
  Profile profile_;
};

/// What makes a profile incomplete, in words; "": nothing.
std::string lost_events(const Completeness& found) {
  if (found.dropped > 0) return std::to_string(found.dropped) + " events were dropped";
  if (found.out_of_range > 0) return std::to_string(found.out_of_range) + " events are out of range";
  if (found.seen < found.expected)
    return std::to_string(found.seen) + " of " + std::to_string(found.expected) + " events were seen";
  return found.reason.empty() ? "" : "'reason' is " + in_quotes(found.reason);
}

Profile ProfileReader::read(const Value& root) {
  const Fields fields(root, file_, "a profile", {"format",     "model",   "device",    "timer",
                                                 "timer_note", "warm_up", "repeats",   "micro_batch_size",
                                                 "slices",     "tokens",  "sizes",     "completeness",
                                                 "noise",      "rank",    "zero",      "restrictions",
                                                 "run",        "layers",  "operators", "transfers"});
  model(fields.need("model", ValueKind::object));
  device(fields.need("device", ValueKind::object));
  profile_.timer = fields.text("timer");
  if (profile_.timer != "cpu" && profile_.timer != "cupti" && profile_.timer != "device-events") {
    fields.fail(fields.find("timer"),
                "'timer' is " + in_quotes(profile_.timer) + "; it should be cpu, cupti or device-events");
  }
  if (fields.find("timer_note") != nullptr) profile_.timer_note = fields.text("timer_note");
  profile_.warm_up = count(fields, "warm_up", 0);
  profile_.repeats = count(fields, "repeats", 0);
  profile_.micro_batch_size = count(fields, "micro_batch_size", 1);
  if (fields.find("slices") != nullptr)
    profile_.slices = static_cast<int>(fields.integer("slices", 1, kMostSlices));
  completeness(fields.need("completeness", ValueKind::object));
  if (fields.find("noise") != nullptr) fields.text("noise");  // for people: noise_of() computes it
  if (fields.find("rank") != nullptr) rank(fields.need("rank", ValueKind::object));
  if (fields.find("zero") != nullptr) zero(fields.need("zero", ValueKind::object));
  for (const Value& row : fields.need("layers", ValueKind::array).items) layer(row);
  if (fields.find("restrictions") != nullptr)
    for (const Value& row : fields.need("restrictions", ValueKind::array).items) restriction(row);
  if (fields.find("run") != nullptr) run(fields.need("run", ValueKind::object));
  if (fields.find("tokens") != nullptr) profile_.tokens = fields.integer("tokens", 1);
  if (fields.find("sizes") != nullptr)
    for (const Value& row : fields.need("sizes", ValueKind::array).items) size(row);
  for (const Value& row : fields.need("operators", ValueKind::array).items) operator_row(row);
  for (const Value& row : fields.need("transfers", ValueKind::array).items) transfer(row);
  return std::move(profile_);
}

void ProfileReader::model(const Value& value) {
  const Fields fields(value, file_, "'model'", {"name", "sha256"});
  profile_.model = fields.text("name");
  profile_.model_sha256 = fields.text("sha256");
}

void ProfileReader::device(const Value& value) {
  const Fields fields(value, file_, "'device'", {"name", "kind", "driver", "torch", "cuda", "clocks"});
  profile_.device = {.name = fields.text("name"),
                     .kind = fields.text("kind"),
                     .driver = fields.text("driver"),
                     .torch = fields.text("torch"),
                     .cuda = fields.text("cuda"),
                     .clocks = fields.text("clocks")};
}

void ProfileReader::completeness(const Value& value) {
  const Fields fields(value, file_, "'completeness'",
                      {"complete", "expected", "seen", "dropped", "out_of_range", "reason"});
  profile_.completeness = {.complete = fields.boolean("complete"),
                           .expected = fields.integer("expected", 0),
                           .seen = fields.integer("seen", 0),
                           .dropped = fields.integer("dropped", 0),
                           .out_of_range = fields.integer("out_of_range", 0),
                           .reason = fields.text("reason")};
  if (const std::string lost = lost_events(profile_.completeness);
      profile_.completeness.complete && !lost.empty())
    fields.fail(fields.find("complete"), "'complete' is true, but " + lost);
}

void ProfileReader::rank(const Value& value) {
  const Fields fields(
      value, file_, "'rank'",
      {"held", "step", "buffers", "forward", "backward", "read", "step_time", "computing", "average"});
  const auto time = [&](const char* key) { return fields.find(key) != nullptr ? fields.integer(key, 0) : 0; };
  profile_.rank = {
      .held = fields.integer("held", 0),
      .step = fields.integer("step", 0),
      .buffers = static_cast<int>(fields.integer("buffers", 0, kMostBuffers)),
      .forward = time("forward"),
      .backward = time("backward"),
      .read = time("read"),
      .step_time = time("step_time"),
      .computing = fields.find("computing") == nullptr ? 0 : fields.integer("computing", 0, 1'000'000),
      .average = fields.find("average") == nullptr ? 0 : fields.integer("average", 500'000, 2'000'000)};
}

void ProfileReader::zero(const Value& value) {
  const Fields fields(value, file_, "'zero'", {"ranks", "step"});
  profile_.zero = {.ranks = count(fields, "ranks", 1), .step = fields.boolean("step")};
}

void ProfileReader::restriction(const Value& value) {
  const Fields fields(value, file_, "a restriction", {"rule", "reason", "chunks", "layers", "device"});
  Restriction one{.rule = rule(fields), .reason = fields.text("reason")};
  const bool together = one.rule == Rule::together, one_stage = one.rule == Rule::one_stage;
  const bool of_layers = together || one_stage || one.rule == Rule::spread;
  const auto only_of = [&](const char* key, bool has, const char* rules) {
    if (!has && fields.find(key) != nullptr)
      fields.fail(fields.find(key), fmt::format("'{}' is a key of {} only", key, rules));
  };
  only_of("chunks", one.rule == Rule::most_chunks, "the rule 'most_chunks'");
  only_of("layers", of_layers, "the rules 'together', 'one_stage' and 'spread'");
  only_of("device", together, "the rule 'together'");
  if (one.rule == Rule::most_chunks) one.chunks = count(fields, "chunks", 1);
  if (of_layers) {
    const Value& list = fields.need("layers", ValueKind::array);
    const auto last = static_cast<std::int64_t>(profile_.layers.size()) - 1;
    for (const Value& item : list.items) {
      const std::int64_t next = one.layers.empty() ? 0 : one.layers.back() + 1;
      one.layers.push_back(
          static_cast<int>(integer_in(item, file_, "a layer of 'layers', in ascending order,", next, last)));
    }
    if (fields.find("device") != nullptr) one.device = count(fields, "device", 0);
    if (together && one.layers.size() < (one.device < 0 ? 2 : 1))
      fields.fail(&list, "'layers' needs at least two layers, or one layer and a 'device'");
    if (one_stage && (one.layers.size() < 2 ||
                      one.layers.back() - one.layers.front() >= static_cast<int>(one.layers.size())))
      fields.fail(&list, "'layers' needs at least two layers, each next to the one before it");
    if (one.layers.empty()) fields.fail(&list, "'layers' needs at least one layer");
  }
  profile_.restrictions.push_back(std::move(one));
}

Rule ProfileReader::rule(const Fields& fields) const {
  std::vector<std::string_view> names;
  for (const Rule known : kRules) {
    names.push_back(to_string(known));
    if (names.back() == fields.text("rule")) return known;
  }
  fields.fail(fields.find("rule"),
              fmt::format("unknown rule {}; it should be one of {}{}", in_quotes(fields.text("rule")),
                          fmt::join(names, ", "), did_you_mean(fields.text("rule"), names)));
}

void ProfileReader::run(const Value& value) {
  const Fields fields(value, file_, "'run'", {"layers", "micro_batches", "step"});
  const auto layers = static_cast<std::int64_t>(profile_.layers.size());
  std::int64_t left = layers;
  for (const Value& item : fields.need("layers", ValueKind::array).items) {
    const std::int64_t number = integer_in(item, file_, "'layers' of 'run'", 0, left);
    profile_.run.layers.push_back(static_cast<int>(number));
    left -= number;
  }
  if (left > 0)
    fields.fail(fields.find("layers"), "'layers' of 'run' adds up to " + std::to_string(layers - left) +
                                           ", but the profile has " + std::to_string(layers));
  profile_.run.micro_batches = count(fields, "micro_batches", 1);
  if (fields.find("step") != nullptr) profile_.run.step = spread(fields, "step");
}

Spread ProfileReader::spread(const Fields& row, std::string_view key) const {
  const Value& value = row.need(key, ValueKind::object);
  const std::string name = in_quotes(key);
  const Fields fields(value, file_, name, {"median", "low", "high", "repeats"});
  const Spread spread = {.median = fields.integer("median", 0),
                         .low = fields.integer("low", 0),
                         .high = fields.integer("high", 0),
                         .repeats = count(fields, "repeats", 0)};
  if (spread.low > spread.median || spread.median > spread.high) {
    fields.fail(nullptr, name + " must have low <= median <= high");
  }
  return spread;
}

void ProfileReader::layer(const Value& value) {
  const Fields fields(value, file_, "a layer",
                      {"index",
                       "name",
                       "same_as",
                       "forward",
                       "backward",
                       "backward_input",
                       "backward_weight",
                       "kept",
                       "forward_workspace",
                       "backward_workspace",
                       "parameters",
                       "gradients",
                       "optimizer_state",
                       "input_bytes",
                       "output_bytes",
                       "passed",
                       "released",
                       "after",
                       "shardable",
                       "lane",
                       "digest",
                       "tied",
                       "step_together",
                       "step_alone",
                       "step_time",
                       "recompute",
                       "waiting",
                       "weight_workspace",
                       "inference_workspace",
                       "reduced",
                       "labels",
                       "sent"});
  const auto position = static_cast<std::int64_t>(profile_.layers.size());
  LayerCost layer;
  layer.index = static_cast<int>(fields.integer("index", position, position));
  layer.name = fields.text("name");
  layer.same_as = static_cast<int>(fields.integer("same_as", -1, position - 1));
  layer.forward = spread(fields, "forward");
  layer.backward = spread(fields, "backward");
  layer.backward_input = spread(fields, "backward_input");
  layer.backward_weight = spread(fields, "backward_weight");
  layer.kept = fields.integer("kept", 0);
  layer.forward_workspace = fields.integer("forward_workspace", 0);
  layer.backward_workspace = fields.integer("backward_workspace", 0);
  layer.parameters = fields.integer("parameters", 0);
  layer.gradients = fields.integer("gradients", 0);
  layer.optimizer_state = fields.integer("optimizer_state", 0);
  layer.input_bytes = fields.integer("input_bytes", 0);
  layer.output_bytes = fields.integer("output_bytes", 0);
  if (fields.find("passed") != nullptr)
    layer.passed = inputs(fields.need("passed", ValueKind::array), position - 1);
  if (fields.find("released") != nullptr)
    layer.released = inputs(fields.need("released", ValueKind::array), position);
  const auto optional = [&](const char* key) {
    return fields.find(key) == nullptr ? 0 : fields.integer(key, 0);
  };
  layer.tied = optional("tied");
  layer.step_together = optional("step_together");
  layer.step_alone = optional("step_alone");
  layer.step_time = optional("step_time");
  if (fields.find("recompute") != nullptr) layer.recompute = fields.integer("recompute", 0);
  layer.waiting = optional("waiting");
  layer.weight_workspace = optional("weight_workspace");
  if (fields.find("inference_workspace") != nullptr)
    layer.inference_workspace = fields.integer("inference_workspace", 0);
  if (fields.find("reduced") != nullptr) layer.reduced = fields.integer("reduced", 0);
  layer.labels = optional("labels");
  layer.sent = optional("sent");
  layer.lane = fields.text_or("lane", "");
  if (layer.lane == kComputing || (!layer.lane.empty() && layer.parameters > 0))
    fields.fail(fields.find("lane"), layer.lane == kComputing
                                         ? "'lane' is \"compute\", which is where a layer without it runs"
                                         : "a layer with parameters cannot be on a lane");
  if (fields.find("after") != nullptr)
    layer.after = inputs(fields.need("after", ValueKind::array), position - 1);
  if (fields.find("digest") != nullptr) layer.digest = sha256_field(fields, "digest");
  if (fields.find("shardable") != nullptr) layer.shardable = fields.boolean("shardable");
  profile_.layers.push_back(std::move(layer));
}

/// `last`: the latest layer that one may name.
std::vector<LayerInput> ProfileReader::inputs(const Value& list, std::int64_t last) const {
  std::vector<LayerInput> result;
  for (const Value& item : list.items) {
    const Fields fields(item, file_, "an input of a layer", {"layer", "bytes"});
    LayerInput input;
    input.layer = static_cast<int>(fields.integer("layer", 0, last));
    input.bytes = fields.integer("bytes", 0);
    for (const LayerInput& other : result) {
      if (other.layer == input.layer)
        fields.fail(nullptr, "layer " + std::to_string(input.layer) + " is named twice");
    }
    result.push_back(input);
  }
  return result;
}

void ProfileReader::size(const Value& value) {
  const Fields fields(value, file_, "a row of 'sizes'", {"size", "forward", "backward"});
  const std::int64_t before = profile_.sizes.empty() ? 0 : profile_.sizes.back().size;
  if (fields.integer("size", 1) <= before)
    fields.fail(fields.find("size"), "the rows of 'sizes' must be in ascending order");
  profile_.sizes.push_back({.size = fields.integer("size", 1),
                            .forward = times_of_layers(fields, "forward"),
                            .backward = times_of_layers(fields, "backward")});
}

std::vector<Nanoseconds> ProfileReader::times_of_layers(const Fields& row, std::string_view key) const {
  const Value& list = row.need(key, ValueKind::array);
  if (list.items.size() != profile_.layers.size())
    row.fail(&list, in_quotes(key) + " must have one time per layer, that is, " +
                        std::to_string(profile_.layers.size()));
  std::vector<Nanoseconds> times;
  for (const Value& item : list.items)
    times.push_back(integer_in(item, file_, in_quotes(key), 0, Fields::kLargest));
  return times;
}

void ProfileReader::operator_row(const Value& value) {
  const Fields fields(value, file_, "an operator",
                      {"layer", "name", "phase", "calls", "self_time", "allocated", "flops"});
  OperatorCost row;
  row.layer =
      static_cast<int>(fields.integer("layer", -1, static_cast<std::int64_t>(profile_.layers.size()) - 1));
  row.name = fields.text("name");
  row.phase = fields.text("phase");
  if (row.phase != "forward" && row.phase != "backward") {
    fields.fail(fields.find("phase"),
                "'phase' is " + in_quotes(row.phase) + "; it should be forward or backward");
  }
  row.calls = fields.integer("calls", 0);
  row.self_time = spread(fields, "self_time");
  row.allocated = fields.integer("allocated", 0);
  if (fields.find("flops") != nullptr) row.flops = fields.integer("flops", 0);
  profile_.operators.push_back(std::move(row));
}

void ProfileReader::transfer(const Value& value) {
  const Fields fields(value, file_, "a transfer",
                      {"from", "to", "latency", "bytes_per_second", "residual", "backend"});
  TransferCost row;
  row.from = count(fields, "from", 0);
  row.to = count(fields, "to", 0);
  row.link = {.latency = fields.integer("latency", 0),
              .bytes_per_second = fields.integer("bytes_per_second", 0)};
  row.residual = fields.decimal("residual");
  if (fields.find("backend") != nullptr) row.backend = fields.text("backend");
  const auto same_pair = [&](const TransferCost& other) {
    return other.from == row.from && other.to == row.to;
  };
  if (row.from == row.to) fields.fail(nullptr, "a transfer from " + std::to_string(row.from) + " to itself");
  if (std::any_of(profile_.transfers.begin(), profile_.transfers.end(), same_pair)) {
    fields.fail(nullptr,
                "duplicate transfer from " + std::to_string(row.from) + " to " + std::to_string(row.to));
  }
  profile_.transfers.push_back(row);
}

}  // namespace

Profile read_profile(const std::filesystem::path& path) {
  return parse_profile(read_file(path, kMaxProfileBytes), path.string());
}

Profile parse_profile(std::string_view text, const std::string& name) {
  if (text.size() > kMaxProfileBytes) {
    throw InputError(name, 0, "is larger than " + format_memory(kMaxProfileBytes));
  }
  return ProfileReader(name).read(read_json(text, name, kFormat, "", [](const Value&) {}));
}

}  // namespace ostinato
