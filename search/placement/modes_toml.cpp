// SPDX-License-Identifier: Apache-2.0
#include "search/placement/modes_toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "search/files/toml_values.h"

namespace ostinato {
namespace {

constexpr std::array kEveryKind = {Kind::forward, Kind::backward, Kind::backward_input, Kind::backward_weight,
                                   Kind::offload, Kind::load,     Kind::other};

class ChoicesReader {
 public:
  explicit ChoicesReader(const ChoiceContext& context) : context_(context) {}

  std::vector<Choice> run(const Value& list) {
    for (const Value& value : items_of(list, "'choices'")) choices_.push_back(choice(value));
    if (!absent_.empty() && absent_.size() == context_.blocks.size())
      throw InputError(context_.file, list.line,
                       "the modes together leave out every block; at least one must remain");
    return std::move(choices_);
  }

 private:
  const std::vector<Value>& items_of(const Value& list, const std::string& what) const {
    if (list.kind == ValueKind::array) return list.items;
    throw InputError(context_.file, list.line, what + " must be a list, not " + to_string(list.kind));
  }

  Choice choice(const Value& value) {
    const Fields fields(value, context_.file, "[[choices]]", {"name", "modes"});
    Choice choice{fields.text("name"), {}};
    if (!names_.insert(choice.name).second)
      fields.fail(nullptr, "duplicate choice name " + in_quotes(choice.name));
    std::set<std::string> modes;
    std::set<int> blocks;
    for (const Value& item : fields.need("modes", ValueKind::array).items) {
      Mode next = mode(item, choice.name, choice.modes.empty());
      if (!modes.insert(next.name).second) {
        throw InputError(context_.file, item.line,
                         "duplicate mode " + in_quotes(next.name) + " of choice " + in_quotes(choice.name));
      }
      for (const BlockChange& change : next.changes) blocks.insert(change.block);
      choice.modes.push_back(std::move(next));
    }
    if (choice.modes.empty()) fields.fail(nullptr, "choice " + in_quotes(choice.name) + " has no modes");
    claim(blocks, choice.name, fields);
    return choice;
  }

  /// A block belongs to one choice: how two changes of it would add up is for whoever writes the modes to
  /// say.
  void claim(const std::set<int>& blocks, const std::string& choice, const Fields& fields) {
    for (const int b : blocks) {
      const auto [owner, is_new] = owner_.emplace(b, choice);
      if (is_new) continue;
      fields.fail(nullptr, "choices " + in_quotes(owner->second) + " and " + in_quotes(choice) +
                               " both change block " + in_quotes(name_of(b)) +
                               "; make one choice of them, with a mode for each combination");
    }
  }

  std::string name_of(int block) const {
    const auto found = std::find_if(context_.blocks.begin(), context_.blocks.end(),
                                    [&](const auto& entry) { return entry.second == block; });
    return found->first;
  }

  Mode mode(const Value& value, const std::string& choice, bool first) {
    const Fields fields(value, context_.file, "a mode of choice " + in_quotes(choice), {"name", "blocks"});
    Mode mode{fields.text("name"), {}};
    std::set<int> seen;
    if (const Value* list = fields.find("blocks")) {
      for (const Value& item : items_of(*list, "'blocks'")) {
        mode.changes.push_back(change(item));
        if (!seen.insert(mode.changes.back().block).second)
          throw InputError(context_.file, item.line,
                           "a block is listed twice in mode " + in_quotes(mode.name));
      }
    }
    if (first && !mode.changes.empty()) {
      fields.fail(nullptr, "the first mode of choice " + in_quotes(choice) +
                               " stands for the blocks as written; it must have no 'blocks'");
    }
    if (!first && mode.changes.empty()) {
      fields.fail(nullptr, "mode " + in_quotes(mode.name) + " of choice " + in_quotes(choice) +
                               " changes nothing; it needs 'blocks'");
    }
    return mode;
  }

  BlockChange change(const Value& value) {
    const Fields fields(value, context_.file, "a block of a mode",
                        {"block", "kind", "time", "memory", "workspace", "absent"});
    const std::string& name = fields.text("block");
    const auto found = context_.blocks.find(name);
    if (found == context_.blocks.end()) refuse_block(fields, name);
    BlockChange change;
    change.block = found->second;
    change.absent = fields.find("absent") != nullptr && fields.boolean("absent");
    if (fields.find("kind") != nullptr) change.kind = parse_kind(fields, fields.text("kind"), name);
    if (fields.find("time") != nullptr) change.time = fields.scaled("time", context_.time_factor, 0);
    if (fields.find("memory") != nullptr)
      change.memory = fields.scaled("memory", context_.memory_factor, -Fields::kLargest);
    if (fields.find("workspace") != nullptr)
      change.workspace = fields.scaled("workspace", context_.memory_factor, 0);
    const bool figures = change.kind || change.time || change.memory || change.workspace;
    if (change.absent && figures)
      fields.fail(nullptr, "block " + in_quotes(name) + " is absent: it must have no other key");
    if (!change.absent && !figures)
      fields.fail(nullptr, "nothing changes for block " + in_quotes(name) +
                               "; give its kind, time, memory or workspace, or absent = true");
    if (change.absent) absent_.insert(change.block);
    return change;
  }

  [[noreturn]] void refuse_block(const Fields& fields, const std::string& name) const {
    std::vector<std::string_view> names;
    for (const auto& entry : context_.blocks) names.push_back(entry.first);
    std::sort(names.begin(), names.end());
    fields.fail(fields.find("block"), "unknown block " + in_quotes(name) + did_you_mean(name, names));
  }

  const ChoiceContext& context_;
  std::vector<Choice> choices_;
  std::set<std::string> names_;
  std::unordered_map<int, std::string> owner_;  ///< choice of each block that one changes
  std::set<int> absent_;
};

}  // namespace

std::vector<Choice> read_choices(const Value& list, const ChoiceContext& context) {
  return ChoicesReader(context).run(list);
}

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

void format_choices(std::string& text, const Placement& placement, const Unit& time, const Unit& memory) {
  const auto put = [&]<typename... A>(fmt::format_string<A...> format, A&&... arguments) {
    fmt::format_to(std::back_inserter(text), format, std::forward<A>(arguments)...);
  };
  for (const Choice& choice : placement.choices) {
    put("\n[[choices]]\nname = {}\nmodes = [\n", toml_string(choice.name));
    for (const Mode& mode : choice.modes) {
      put("  {{ name = {}", toml_string(mode.name));
      const char* separator = ", blocks = [\n";
      for (const BlockChange& change : mode.changes) {
        put("{}    {{ block = {}", separator, toml_string(placement.blocks[change.block].name));
        if (change.absent) put(", absent = true");
        if (change.kind) put(", kind = \"{}\"", to_string(*change.kind));
        if (change.time) put(", time = {}", *change.time / time.factor);
        if (change.memory) put(", memory = {}", *change.memory / memory.factor);
        if (change.workspace) put(", workspace = {}", *change.workspace / memory.factor);
        put(" }}");
        separator = ",\n";
      }
      put("{} }},\n", mode.changes.empty() ? "" : " ]");
    }
    put("]\n");
  }
}

}  // namespace ostinato
