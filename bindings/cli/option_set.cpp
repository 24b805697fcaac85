// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/option_set.h"

namespace ostinato::cli {
namespace {

using enum OptionType;

/// What follows the option in the help.
std::string type_name(const OptionRow& row) {
  switch (row.type) {
    case integer:
      return "N";
    case decimal:
      return "X";
    case choice:
      return "NAME";
    case list:
      return "LIST";
    case count:
      return "N|auto";
    default:
      return "TEXT";
  }
}

std::string help_of(const OptionRow& row) {
  std::string help = row.help;
  if (!row.choices.empty()) {
    std::string names;
    for (const std::string& name : row.choices) names += (names.empty() ? "" : ", ") + name;
    help += ": " + names;
  }
  const bool has_default = row.type != flag && !row.fallback.empty();
  return has_default ? help + " (default: " + row.fallback + ")" : help;
}

}  // namespace

OptionSet::OptionSet(CommandLine& line, const std::vector<std::string>& sections,
                     const std::vector<std::string>& without)
    : Options(sections, without), line_(line) {
  for (const OptionRow* row : rows()) {
    if (row->type == OptionType::flag) {
      line.flag(dashed(row->key), flags_[row->key], help_of(*row));
    } else {
      line.text(dashed(row->key), typed_[row->key], help_of(*row), true).type_name(type_name(*row));
    }
  }
  line.text("--options", file_,
            "Options file (see: ostinato config); options on the command line override it")
      .type_name("FILE");
}

void OptionSet::resolve() {
  for (const OptionRow* row : rows()) {
    const std::string name = dashed(row->key);
    if (!line_.given(name)) continue;
    set(row->key, row->type == OptionType::flag ? (flags_[row->key] ? "true" : "false") : typed_[row->key],
        name);
  }
  if (!file_.empty()) fill(read_options(file_));
}

}  // namespace ostinato::cli
