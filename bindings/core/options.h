// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every option that has a default, in one table: its place on the command line, in an options file and among
// the keywords of the Python API, its default and its help. `ostinato config` prints it.
//
//   Options options({"search"});
//   options.set("time_limit", "2.5", "--time-limit");
//   options.fill(read_options("ostinato.toml"));      // what is not set; then the default
//   options.integer("threads")
//
// Options file (TOML): format = "ostinato-options/1", then a table a section, keys with underscores.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato::core {

enum class OptionType {
  integer,  ///< >= 0
  decimal,  ///< >= 0, kept as text: scaled() makes it exact
  memory,   ///< "40GiB", or "unlimited"
  list,     ///< words, comma-separated; each one of OptionRow::choices, if there are any
  count,    ///< a number, or "auto"; its default may be neither
  choice,   ///< one of OptionRow::choices
  flag,
};

/// The words of a list.
std::vector<std::string> words_of(const std::string& list);

/// Bytes of a memory. Throws UsageError where `value` is none; `name` stands in the message.
Bytes memory_of(const std::string& name, const std::string& value);

/// In the options file its values stand in quotes, and on the command line they are words.
bool is_text(OptionType type);

struct OptionRow {
  std::string section;
  std::string key;  ///< "time_limit"; "--time-limit" on the command line
  OptionType type;
  std::string fallback;  ///< the default, as text; "true" or "false" for a flag
  std::vector<std::string> choices;
  std::string help;
  std::int64_t low = 0, high = std::numeric_limits<std::int64_t>::max();  ///< of a number
};

const std::vector<OptionRow>& option_table();

/// Section and key to value, as text.
using OptionsFile = std::map<std::pair<std::string, std::string>, std::string>;

/// The options of some sections, each at its default until it is set.
class Options {
 public:
  /// `without`: keys of these sections that are not wanted.
  explicit Options(const std::vector<std::string>& sections, const std::vector<std::string>& without = {});

  const std::vector<const OptionRow*>& rows() const { return rows_; }

  /// `name` stands in messages. Throws UsageError for an unknown key ("did you mean") and where `value` is
  /// none for the option.
  void set(const std::string& key, const std::string& value, const std::string& name);

  /// Sets what the file has and set() did not. Throws UsageError as set().
  void fill(const OptionsFile& file);

  const std::string& text(const std::string& key) const;
  const std::vector<std::string>& choices(const std::string& key) const { return find(key)->choices; }
  bool flag(const std::string& key) const { return text(key) == "true"; }
  std::int64_t integer(const std::string& key) const { return scaled(key, 1); }
  /// The decimal times `factor`, to the nearest whole number.
  std::int64_t scaled(const std::string& key, std::int64_t factor) const;

 private:
  const OptionRow* find(const std::string& key) const;

  std::vector<const OptionRow*> rows_;
  std::map<std::string, std::string> values_;  ///< by key, those that were set
};

/// "--time-limit" of "time_limit".
std::string dashed(const std::string& key);

/// Throws UsageError where `value` is none for the row. `name` stands in the message.
void check_value(const OptionRow& row, const std::string& name, const std::string& value);

/// Throws UsageError ("did you mean ...?") unless `value` is one of `choices`.
void check_choice(const std::string& what, const std::string& value, const std::vector<std::string>& choices);

/// "; did you mean X?", or nothing where no candidate is near.
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates);

/// Throws InputError with file:line for an unknown section or key, a value of another type, and anything that
/// option_table() does not allow.
OptionsFile read_options(const std::filesystem::path& path);
OptionsFile parse_options(std::string_view text, const std::string& name);

/// The file with every option at its default, explained.
std::string default_options();

}  // namespace ostinato::core
