// SPDX-License-Identifier: Apache-2.0
// Reading and writing ostinato-options/1.

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "bindings/core/options.h"
#include "bindings/core/usage_error.h"
#include "search/files/file.h"
#include "search/files/toml_values.h"
#include "search/files/value.h"
#include "search/files/wrapped.h"

namespace ostinato::core {
namespace {

constexpr const char* kFormat = "ostinato-options/1";
constexpr std::size_t kMaxOptionsBytes = std::size_t{1} << 20;

class OptionsReader {
 public:
  explicit OptionsReader(std::string file) : file_(std::move(file)) {}

  OptionsFile read(const Value& root) {
    check_format(root, file_, kFormat);
    for (std::size_t i = 0; i < root.keys.size(); ++i) {
      if (root.keys[i] != "format") refuse_bare(root.keys[i], root.items[i]);
    }
    for (std::size_t i = 0; i < root.keys.size(); ++i) {
      if (root.keys[i] != "format") read_section(root.keys[i], root.items[i]);
    }
    return std::move(values_);
  }

 private:
  [[noreturn]] void refuse(int line, const std::string& message) const {
    throw InputError(file_, line, message);
  }

  /// An option above the first section.
  void refuse_bare(const std::string& key, const Value& value) const {
    for (const OptionRow& row : option_table()) {
      if (row.key == key && value.kind != ValueKind::object)
        refuse(value.line, fmt::format("{} belongs in a section: write [{}] above it", key, row.section));
    }
  }

  void read_section(const std::string& section, const Value& table) {
    std::vector<std::string> keys, sections;
    for (const OptionRow& row : option_table()) {
      if (row.section == section) keys.push_back(row.key);
      if (sections.empty() || sections.back() != row.section) sections.push_back(row.section);
    }
    if (keys.empty()) refuse_unknown(table.line, "section", section, sections);
    if (table.kind != ValueKind::object)
      refuse(table.line, fmt::format("{} must be a table: [{}]", section, section));
    for (std::size_t i = 0; i < table.keys.size(); ++i) {
      const auto row = std::find_if(option_table().begin(), option_table().end(), [&](const OptionRow& r) {
        return r.section == section && r.key == table.keys[i];
      });
      if (row == option_table().end()) refuse_unknown(table.items[i].line, "option", table.keys[i], keys);
      values_[{section, row->key}] = value_of(*row, table.items[i]);
    }
  }

  [[noreturn]] void refuse_unknown(int line, const char* what, const std::string& word,
                                   const std::vector<std::string>& known) const {
    refuse(line, fmt::format("unknown {} {}{}", what, in_quotes(word), did_you_mean(word, known)));
  }

  std::string value_of(const OptionRow& row, const Value& value) const {
    const bool quoted = is_text(row.type), text_given = value.kind == ValueKind::text;
    const bool one = text_given || value.kind == ValueKind::boolean || value.kind == ValueKind::integer ||
                     value.kind == ValueKind::decimal;
    if (quoted != text_given || !one) {
      refuse(value.line, fmt::format("{} must be {}, not {}", row.key,
                                     quoted       ? "text in quotes"
                                     : text_given ? "without quotes"
                                                  : "one value",
                                     to_string(value.kind)));
    }
    const std::string text = text_of(value);
    if (text.find('\0') != std::string::npos)
      refuse(value.line, fmt::format("{} holds a NUL character: {}", row.key, in_quotes(text)));
    try {
      check_value(row, row.key, text);
    } catch (const UsageError& error) {
      refuse(value.line, error.what());
    }
    return text;
  }

  static std::string text_of(const Value& value) {
    switch (value.kind) {
      case ValueKind::boolean:
        return value.integer != 0 ? "true" : "false";
      case ValueKind::integer:
        return std::to_string(value.integer);
      default:
        return value.text;
    }
  }

  std::string file_;
  OptionsFile values_;
};

/// Each line behind "# ".
std::string commented(const std::string& help) {
  std::istringstream lines(wrapped(help, 0, kColumns - 2));
  std::string text;
  for (std::string line; std::getline(lines, line);) text += "# " + line + "\n";
  return text;
}

}  // namespace

OptionsFile read_options(const std::filesystem::path& path) {
  return parse_options(read_file(path, kMaxOptionsBytes), path.string());
}

OptionsFile parse_options(std::string_view text, const std::string& name) {
  OptionsReader reader(name);
  OptionsFile values;
  read_toml(
      text, name, "", [&](const Value& root) { values = reader.read(root); }, [](const Value&) {});
  return values;
}

std::string default_options() {
  std::string text = fmt::format(
      "# Options of the ostinato command at their defaults.\n"
      "# Use: ostinato COMMAND --options FILE\n"
      "format = \"{}\"\n",
      kFormat);
  std::string section;
  for (const OptionRow& row : option_table()) {
    if (row.section != section) text += fmt::format("\n[{}]\n", section = row.section);
    const bool quoted = is_text(row.type);
    std::string help = row.help;
    for (const std::string& choice : row.choices)
      help += (choice == row.choices.front() ? ": " : ", ") + choice;
    text += commented(help) +
            fmt::format("{} = {}\n", row.key, quoted ? toml_string(row.fallback) : row.fallback);
  }
  return text;
}

}  // namespace ostinato::core
