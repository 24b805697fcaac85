// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/options.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "bindings/core/numbers.h"
#include "bindings/core/usage_error.h"
#include "search/files/nearest.h"
#include "search/named/named.h"
#include "search/placement/quantity.h"

namespace ostinato::core {
namespace {

using enum OptionType;

std::vector<std::string> methods() {
  std::vector<std::string> names = {"auto"};
  names.insert(names.end(), named_schedules().begin(), named_schedules().end());
  return names;
}

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

OptionRow number_row(OptionType type, const char* section, const char* key, const char* fallback,
                     std::int64_t low, std::int64_t high, const char* help) {
  return {section, key, type, fallback, {}, help, low, high};
}

OptionRow words_row(OptionType type, const char* section, const char* key, const char* fallback,
                    std::vector<std::string> choices, const char* help) {
  return {section, key, type, fallback, std::move(choices), help};
}

OptionRow flag_row(const char* section, const char* key, const char* help) {
  return {section, key, flag, "false", {}, help};
}

}  // namespace

const std::vector<OptionRow>& option_table() {
  static const std::vector<std::string> features = {"chunks",   "split", "shards", "recompute",
                                                    "branches", "moves", "lanes",  "fewer-devices"};
  static const std::vector<OptionRow> table = {
      number_row(decimal, "search", "time_limit", "10", 0, 100'000'000,
                 "Stop after this many seconds with the best plan so far; 0: no limit"),
      number_row(integer, "search", "threads", "0", 0, 1024,
                 "Search threads; 0: one per core. The plan does not depend on their number"),
      number_row(integer, "search", "seed", "0", 0, kNoLimit,
                 "Seed of the search; the same seed gives the same plan"),
      number_row(integer, "search", "effort", "100", 1, 1'000'000,
                 "Work of a search that does not prove its plan optimal, in percent of the usual; more may "
                 "shorten the plan or prove it, if --time-limit allows"),
      words_row(choice, "search", "objective", "makespan", {"makespan", "span", "latency"},
                "What to minimize"),
      words_row(choice, "search", "method", "auto", methods(), "Search (auto), or use one known schedule"),
      number_row(
          decimal, "search", "robust", "0", 0, 1,
          "Among plans that are as short, take the one that times which vary by up to this share stretch "
          "the least: 0.1 is 10 %"),
      number_row(integer, "search", "points", "24", 2, 10'000,
                 "Maximum number of plans with --pareto, at least 2"),
      number_row(integer, "partition", "chunks", "1", 1, 65'536, "Stages per device"),
      words_row(choice, "partition", "layout", "looped", {"looped", "wave"},
                "Path through the devices: always first to last, or back and forth"),
      words_row(choice, "partition", "stages", "chain", {"chain", "graph"},
                "Split the layers as a list, or as a graph of which layer reads which"),
      words_row(memory, "partition", "device_memory", "unlimited", {},
                "Memory per device, with a unit: 40GiB, or 40GB (10^9 bytes); not with a device file"),
      words_row(
          list, "partition", "shard", "", {},
          "Layers to shard over all devices (names or indices, comma-separated); plan may leave them whole"),
      words_row(choice, "partition", "recompute", "never", {"never", "needed", "partly", "always"},
                "Which stages keep only their input and recompute their forward"),
      flag_row("partition", "inference",
               "Plan forwards only: memory holds parameters and messages, nothing for a backward"),
      flag_row("partition", "split_backward", "Split backwards into input and weight gradients"),
      flag_row("partition", "allow_incomplete", "Accept a profile that lost events"),
      number_row(integer, "plan", "max_chunks", "64", 1, 64,
                 "Maximum number of stages per device to try, looped and wave"),
      words_row(list, "plan", "without", "", features, "What not to try, comma-separated"),
      words_row(list, "plan", "only", "", features, "Try only these of them, comma-separated"),
      flag_row(
          "plan", "exact_losses",
          "Keep losses equal to 1F1B's: try no split backwards and no shards, which change the rounding"),
      flag_row("plan", "fixed_ends",
               "Keep the inputs on the first device and the loss on the last, as in 1F1B: no waves"),
      flag_row(
          "plan", "fewer_devices",
          "Try every smaller number of devices, and with --objective latency also leave any of them idle "
          "(default: every number up to 8; beyond, half, a quarter, ..., and whole nodes; for latency, "
          "none)"),
      flag_row("plan", "all_devices", "Use every device"),
      number_row(
          count, "plan", "replicas", "1", 1, 65'536,
          "Data-parallel replicas of the pipeline, which share the devices and the micro-batches; auto: "
          "the number with the shortest step, including the sum of gradients"),
      number_row(
          count, "plan", "slices", "", 1, 65'536,
          "Ranks that hold slices of each layer (tensor parallelism): of the profiles, the one with this "
          "number, or auto, the one with the shortest step; --devices then counts ranks. Without it a "
          "device stands for all slices of its layers"),
      number_row(decimal, "simulate", "jitter", "0", 0, 1,
                 "Vary each block's time by up to this share: 0.1 is 10 %"),
      number_row(
          decimal, "simulate", "unequal", "0", 0, 1,
          "Vary all blocks of a micro-batch alike by up to this share, as sequences of different length do"),
      number_row(decimal, "simulate", "transfer_factor", "1", 0, 1'000'000,
                 "Multiply the time of every transfer by this"),
      number_row(integer, "simulate", "runs", "100", 1, 1'000'000, "Replays"),
      number_row(integer, "simulate", "seed", "0", 0, kNoLimit, "Seed of the random variation"),
  };
  return table;
}

bool is_text(OptionType type) { return type != integer && type != decimal && type != flag; }

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> found;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    found.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return found;
}

Bytes memory_of(const std::string& name, const std::string& value) {
  if (value == "unlimited") return kUnlimited;
  if (const auto bytes = parse_memory(value, "")) return *bytes;
  throw UsageError(name + " needs a number with a unit (kB, MB, GB, KiB, MiB or GiB), like 40GiB, got \"" +
                   value + "\"");
}

std::string dashed(const std::string& key) {
  std::string name = "--" + key;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

void check_choice(const std::string& what, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  std::string names;
  for (const std::string& choice : choices) names += (names.empty() ? "" : ", ") + choice;
  throw UsageError(what + " \"" + value + "\" is not one of " + names + suggestion(value, choices));
}

void check_value(const OptionRow& row, const std::string& name, const std::string& value) {
  const auto refuse = [&](const std::string& wanted) {
    throw UsageError(name + " " + needs_text(wanted, value));
  };
  switch (row.type) {
    case integer:
      if (!is_whole_number(value, row.low, row.high)) refuse(whole_number_text(row.low, row.high));
      break;
    case decimal:
      if (!is_decimal(value, row.low, row.high)) refuse(decimal_text(row.low, row.high));
      break;
    case choice:
      check_choice(name, value, row.choices);
      break;
    case flag:
      if (value != "true" && value != "false") refuse("true or false");
      break;
    case list:
      for (const std::string& word : words_of(value))
        if (!row.choices.empty()) check_choice(name, word, row.choices);
      break;
    case count:
      if (value != "auto" && value != row.fallback && !is_whole_number(value, row.low, row.high))
        refuse(whole_number_text(row.low, row.high) + ", or auto");
      break;
    case memory:
      memory_of(name, value);
      break;
  }
}

Options::Options(const std::vector<std::string>& sections, const std::vector<std::string>& without) {
  const auto has = [](const auto& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  for (const OptionRow& row : option_table())
    if (has(sections, row.section) && !has(without, row.key)) rows_.push_back(&row);
}

const OptionRow* Options::find(const std::string& key) const {
  const auto row =
      std::find_if(rows_.begin(), rows_.end(), [&](const OptionRow* r) { return r->key == key; });
  return row == rows_.end() ? nullptr : *row;
}

void Options::set(const std::string& key, const std::string& value, const std::string& name) {
  const OptionRow* row = find(key);
  if (row == nullptr) {
    std::vector<std::string> keys;
    for (const OptionRow* known : rows_) keys.push_back(known->key);
    throw UsageError("unknown option " + name + suggestion(key, keys));
  }
  check_value(*row, name, value);
  values_[key] = value;
}

void Options::fill(const OptionsFile& file) {
  for (const OptionRow* row : rows_) {
    const auto found = file.find({row->section, row->key});
    if (found != file.end() && !values_.contains(row->key)) set(row->key, found->second, row->key);
  }
}

const std::string& Options::text(const std::string& key) const {
  const auto set = values_.find(key);
  return set == values_.end() ? find(key)->fallback : set->second;
}

std::int64_t Options::scaled(const std::string& key, std::int64_t factor) const {
  return parse_scaled(text(key), factor).value_or(std::numeric_limits<std::int64_t>::max());
}

}  // namespace ostinato::core
