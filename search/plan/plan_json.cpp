// SPDX-License-Identifier: Apache-2.0
#include "search/plan/plan_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "search/files/counted.h"
#include "search/files/file.h"
#include "search/files/json_values.h"
#include "search/files/sha256.h"
#include "search/placement/placement_check.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

constexpr std::string_view kFormat = "ostinato-plan/1";
constexpr std::string_view kExhaustion = "exhaustion";
constexpr std::array kObjectives = {Objective::makespan, Objective::span, Objective::latency};
const std::initializer_list<std::string_view> kKeys = {
    "format",       "placement",     "micro_batches", "objective", "makespan",    "span",
    "steady_state", "lower_bound",   "optimal",       "proof",     "peak_memory", "search",
    "capacity",     "any_placement", "baselines",     "sizes",     "schedule"};
constexpr std::int64_t kMaxCount = std::numeric_limits<int>::max();

class PlanReader {
 public:
  PlanReader(const std::string& file, const Placement& placement) : file_(file), placement_(placement) {
    for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
      index_.emplace(placement.blocks[b].name, static_cast<int>(b));
    }
  }

  void step(const Value& value);
  Plan finish(const Value& root, const std::string& placement_sha256);

 private:
  InputError unknown_block(const std::string& name, int line) const;
  void placement(const Value& value, const std::string& sha256);
  void objective(const Fields& fields);
  void steady_state(const Value& value);
  void claims(const Fields& fields);
  void proofs(const Fields& fields);
  bool by_exhaustion(const Fields& fields, const char* name) const;
  void peak_memory(const Value& list);
  void search(const Value& value);
  void capacity(const Fields& fields);
  void any_placement(const Fields& fields);
  void baselines(const Fields& fields);
  void sizes(const Fields& fields);
  std::vector<std::int64_t> figures(const Fields& fields, std::string_view key, std::int64_t low,
                                    const std::vector<std::int64_t>& absent) const;
  void check_micro_batches() const;

  const std::string& file_;
  const Placement& placement_;
  std::unordered_map<std::string_view, int> index_;  ///< of each block name
  std::vector<int> lines_;                           ///< of each step
  std::optional<InputError> unknown_;                ///< the first step with a block that the placement lacks
  Plan plan_;
};

InputError PlanReader::unknown_block(const std::string& name, int line) const {
  std::vector<std::string_view> names;
  for (const Block& block : placement_.blocks) names.push_back(block.name);
  return {file_, line, "unknown block " + in_quotes(name) + did_you_mean(name, names)};
}

void PlanReader::step(const Value& value) {
  const Fields fields(value, file_, "a step of the schedule", {"block", "micro_batch", "start"});
  const std::string& name = fields.text("block");
  const auto found = index_.find(name);
  if (found == index_.end()) {
    if (!unknown_) unknown_ = unknown_block(name, fields.find("block")->line);
    return;
  }
  plan_.schedule.push_back({.block = found->second,
                            .micro_batch = static_cast<int>(fields.integer("micro_batch", 0, kMaxCount - 1)),
                            .start = fields.integer("start", 0)});
  lines_.push_back(value.line);
}

Plan PlanReader::finish(const Value& root, const std::string& placement_sha256) {
  const Fields fields(root, file_, "a plan", kKeys);
  placement(fields.need("placement", ValueKind::object), placement_sha256);
  if (unknown_) throw *unknown_;  // of another placement is said first
  plan_.micro_batches = static_cast<int>(fields.integer("micro_batches", 1, kMaxCount));
  objective(fields);
  plan_.makespan = fields.integer("makespan", 0);
  plan_.span = fields.integer("span", 0);
  steady_state(fields.need("steady_state", ValueKind::object));
  claims(fields);
  proofs(fields);
  peak_memory(fields.need("peak_memory", ValueKind::array));
  search(fields.need("search", ValueKind::object));
  fields.need("schedule", ValueKind::array);
  check_micro_batches();
  check_totals(placement_, plan_.micro_batches, file_);
  capacity(fields);
  any_placement(fields);
  baselines(fields);
  sizes(fields);
  return std::move(plan_);
}

void PlanReader::placement(const Value& value, const std::string& sha256) {
  const Fields fields(value, file_, "'placement'", {"name", "sha256"});
  plan_.placement_name = fields.text("name");
  plan_.placement_sha256 = fields.text("sha256");
  const std::string& digest = plan_.placement_sha256;
  const bool is_digest =
      digest.size() == 64 && digest.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!digest.empty() && !is_digest) {
    fields.fail(fields.find("sha256"),
                "'sha256' must be 64 lower-case hexadecimal digits, not " + in_quotes(digest));
  }
  if (digest.empty() || sha256.empty() || digest == sha256) return;
  fields.fail(fields.find("sha256"),
              "the plan was made for another placement: " + in_quotes(plan_.placement_name) + " (sha256 " +
                  digest.substr(0, 12) + "), and this is " + in_quotes(placement_.name) + " (sha256 " +
                  sha256.substr(0, 12) + "): give the original placement, or search again");
}

void PlanReader::objective(const Fields& fields) {
  const std::string& name = fields.text("objective");
  std::vector<std::string> names;
  for (const Objective objective : kObjectives) {
    names.emplace_back(to_string(objective));
    if (names.back() != name) continue;
    plan_.objective = objective;
    return;
  }
  fields.fail(fields.find("objective"),
              "unknown objective " + in_quotes(name) + "; it should be makespan, span or latency");
}

void PlanReader::steady_state(const Value& value) {
  const Fields fields(value, file_, "'steady_state'", {"period", "unroll", "first", "count"});
  plan_.steady_state = {.period = fields.integer("period", 0),
                        .unroll = static_cast<int>(fields.integer("unroll", 1, kMaxCount)),
                        .first = static_cast<int>(fields.integer("first", 0, kMaxCount)),
                        .count = static_cast<int>(fields.integer("count", 0, kMaxCount))};
  const SteadyState& steady = plan_.steady_state;
  const std::int64_t end = steady.first + static_cast<std::int64_t>(steady.count) * steady.unroll;
  if (steady.count > 0 && end > plan_.micro_batches)
    fields.fail(nullptr, fmt::format("'steady_state' covers micro-batches {} to {}, but the plan has {}",
                                     steady.first, end - 1, plan_.micro_batches));
}

void PlanReader::claims(const Fields& fields) {
  const Fields bound(fields.need("lower_bound", ValueKind::object), file_, "'lower_bound'",
                     {"makespan", "period", "span", "latency"});
  plan_.lower_bound.makespan = bound.integer("makespan", 0);
  plan_.lower_bound.period = bound.integer("period", 0);
  const Fields optimal(fields.need("optimal", ValueKind::object), file_, "'optimal'",
                       {"makespan", "period", "span", "latency"});
  plan_.optimal.makespan = optimal.boolean("makespan");
  plan_.optimal.period = optimal.boolean("period");
  for (const Objective objective : {Objective::span, Objective::latency}) {
    const char* name = to_string(objective);
    for (const Fields& claim : {bound, optimal}) {
      if (claim.find(name) == nullptr || plan_.objective == objective) continue;
      claim.fail(claim.find(name), fmt::format("'{}' needs the objective {}; this plan has {}", name, name,
                                               to_string(plan_.objective)));
    }
    if (bound.find(name) != nullptr) plan_.lower_bound.objective = bound.integer(name, 0);
    if (optimal.find(name) != nullptr) plan_.optimal.objective = optimal.boolean(name);
  }
}

/// Optional: what shows a bound where no statement does.
bool PlanReader::by_exhaustion(const Fields& fields, const char* name) const {
  if (fields.find(name) == nullptr) return false;
  if (fields.text(name) == kExhaustion) return true;
  fields.fail(fields.find(name),
              fmt::format("'{}' must be \"{}\", not {}", name, kExhaustion, in_quotes(fields.text(name))));
}

void PlanReader::proofs(const Fields& fields) {
  if (fields.find("proof") == nullptr) return;
  const Fields proof(fields.need("proof", ValueKind::object), file_, "'proof'", {"makespan", "span"});
  plan_.by_exhaustion.makespan = by_exhaustion(proof, "makespan");
  plan_.by_exhaustion.span = by_exhaustion(proof, "span");
}

void PlanReader::peak_memory(const Value& list) {
  for (const Value& item : list.items) {
    plan_.peak_memory.push_back(integer_in(item, file_, "'peak_memory'", 0, Fields::kLargest));
  }
  if (plan_.peak_memory.size() == placement_.devices.size()) return;
  throw InputError(file_, list.line,
                   "'peak_memory' has " + counted(plan_.peak_memory.size(), "entry") +
                       "; the placement has " + counted(placement_.devices.size(), "device"));
}

void PlanReader::search(const Value& value) {
  const Fields fields(value, file_, "'search'", {"method", "seed", "cut_by_limit"});
  plan_.search.method = fields.text("method");
  plan_.search.seed = fields.unsigned_integer("seed");
  plan_.search.cut_by_limit = fields.boolean("cut_by_limit");
}

void PlanReader::capacity(const Fields& fields) {
  const Value* value = fields.find("capacity");
  if (value == nullptr) return;
  const Fields capacity(*value, file_, "'capacity'", {"memory", "lower_bound", "proof"});
  plan_.capacity = {capacity.integer("memory", 0), capacity.integer("lower_bound", 0),
                    by_exhaustion(capacity, "proof")};
}

void PlanReader::any_placement(const Fields& fields) {
  const Value* value = fields.find("any_placement");
  if (value == nullptr) return;
  const Fields any(*value, file_, "'any_placement'",
                   {"devices", "sharded", "split", "zero_ranks", "lower_bound"});
  AnyPlacement& claim = plan_.any_placement.emplace();
  claim.devices = static_cast<int>(any.integer("devices", 1, kMaxCount));
  for (const Value& item : any.need("sharded", ValueKind::array).items) {
    const std::int64_t least = claim.sharded.empty() ? 0 : claim.sharded.back() + 1;
    claim.sharded.push_back(static_cast<int>(integer_in(item, file_, "'sharded'", least, kMaxCount)));
  }
  claim.split = any.boolean("split");
  if (any.find("zero_ranks") != nullptr)
    claim.zero_ranks = static_cast<int>(any.integer("zero_ranks", 1, kMaxCount));
  claim.lower_bound = any.integer("lower_bound", 0);
}

void PlanReader::baselines(const Fields& fields) {
  if (fields.find("baselines") == nullptr) return;
  for (const Value& item : fields.need("baselines", ValueKind::array).items) {
    const Fields one(item, file_, "a baseline",
                     {"name", "makespan", "objective_value", "fits", "shared_makespan", "measured_step"});
    const auto optional = [&](const char* key) {
      return one.find(key) == nullptr ? Nanoseconds{0} : one.integer(key, 0);
    };
    plan_.baselines.push_back({one.text("name"), one.integer("makespan", 0),
                               one.integer("objective_value", 0), one.boolean("fits"),
                               optional("shared_makespan"), optional("measured_step")});
  }
}

std::vector<std::int64_t> PlanReader::figures(const Fields& fields, std::string_view key, std::int64_t low,
                                              const std::vector<std::int64_t>& absent) const {
  if (fields.find(key) == nullptr) return absent;
  std::vector<std::int64_t> list;
  for (const Value& item : fields.need(key, ValueKind::array).items)
    list.push_back(integer_in(item, file_, fmt::format("'{}'", key), low, Fields::kLargest));
  return list;
}

/// What is absent of a micro-batch is as the placement says.
void PlanReader::sizes(const Fields& fields) {
  if (fields.find("sizes") == nullptr) return;
  const Value& list = fields.need("sizes", ValueKind::array);
  for (const char* other : {"capacity", "any_placement"})
    if (const Value* value = fields.find(other))
      fields.fail(value, fmt::format("a plan with 'sizes' has no '{}'", other));
  const MicroBatch written = as_written(placement_);
  for (const Value& item : list.items) {
    const Fields one(item, file_, "a micro-batch of 'sizes'", {"times", "memory", "workspace", "bytes"});
    one.need("times", ValueKind::array);
    plan_.sizes.push_back(
        {figures(one, "times", 0, written.times), figures(one, "memory", -Fields::kLargest, written.memory),
         figures(one, "workspace", 0, written.workspace), figures(one, "bytes", 0, written.bytes)});
  }
  if (static_cast<int>(plan_.sizes.size()) != plan_.micro_batches)
    throw InputError(file_, list.line,
                     fmt::format("'sizes' has {}; the plan has {}",
                                 counted(plan_.sizes.size(), "micro-batch"), plan_.micro_batches));
  try {
    check_sizes(placement_, plan_.sizes);
  } catch (const InputError& error) {
    throw InputError(file_, list.line, error.what());
  }
}

void PlanReader::check_micro_batches() const {
  for (std::size_t i = 0; i < plan_.schedule.size(); ++i) {
    const int micro_batch = plan_.schedule[i].micro_batch;
    if (micro_batch < plan_.micro_batches) continue;
    throw InputError(file_, lines_[i],
                     "'micro_batch' is " + std::to_string(micro_batch) + ", out of range: from 0 to " +
                         std::to_string(plan_.micro_batches - 1));
  }
}

}  // namespace

Plan read_plan(const std::filesystem::path& path, const Placement& placement,
               const std::string& placement_sha256) {
  return parse_plan(read_file(path, kMaxPlanBytes), path.string(), placement, placement_sha256);
}

Plan parse_plan(std::string_view text, const std::string& name, const Placement& placement,
                const std::string& placement_sha256) {
  if (text.size() > kMaxPlanBytes) {
    throw InputError(name, 0, "is larger than " + format_memory(kMaxPlanBytes));
  }
  PlanReader reader(name, placement);
  const Value root =
      read_json(text, name, kFormat, "schedule", [&](const Value& step) { reader.step(step); });
  return reader.finish(root, placement_sha256);
}

namespace {

/// "": the plan names none.
std::string placement_digest(const std::filesystem::path& plan) {
  const std::string file = plan.string();
  const Value root =
      read_json(read_file(plan, kMaxPlanBytes), file, kFormat, "schedule", [](const Value&) {});
  const Fields fields(root, file, "a plan", kKeys);
  return Fields(fields.need("placement", ValueKind::object), file, "'placement'", {"name", "sha256"})
      .text("sha256");
}

}  // namespace

std::filesystem::path placement_of(const std::filesystem::path& plan, const std::vector<std::string>& given) {
  const std::string digest = placement_digest(plan);
  std::vector<std::filesystem::path> files(given.begin(), given.end());
  if (digest.empty() && files.size() == 1) return files.front();
  const std::filesystem::path folder =
      plan.has_parent_path() ? plan.parent_path() : std::filesystem::path(".");
  std::error_code error;
  std::vector<std::filesystem::path> beside;
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().extension() == ".toml" && entry.is_regular_file(error))
      beside.push_back(entry.path().lexically_normal());
  std::sort(beside.begin(), beside.end());
  for (const std::filesystem::path& file : files)
    if (sha256(read_file(file, kMaxPlacementBytes)) == digest) return file;
  for (const std::filesystem::path& file : beside) {
    try {
      if (sha256(read_file(file, kMaxPlacementBytes)) == digest) return file;
    } catch (const InputError&) {  // too large for a placement, or this user may not read it
    }
  }
  throw InputError(
      plan.string(), 0,
      "its placement is not in the same folder: give its file too, with --placement where there are several "
      "plans" +
          (digest.empty() ? std::string() : fmt::format(" (its sha256 begins with {:.12})", digest)));
}

PlanAndPlacement read_plan_and_placement(const std::filesystem::path& plan,
                                         const std::filesystem::path& placement) {
  PlanAndPlacement result;
  result.file = read_placement(placement);
  result.plan = read_plan(plan, result.file.placement, result.file.sha256);
  return result;
}

}  // namespace ostinato
