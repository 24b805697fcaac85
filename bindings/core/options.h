#pragma once
// Every option that has a default, in one table: it declares the option on the command line, its place in an
// options file, its default and its help. `ostinato config` prints it.
//
//   OptionSet options(line, {"search"});    // adds --time-limit, --threads, ..., and --options FILE
//   if (!line.parse(args, io)) return 0;
//   options.resolve();                      // the command line wins over the file, the file over the default
//   options.integer("threads")
//
// Options file (TOML): format = "ostinato-options/1", then a table a section, keys with underscores.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "bindings/cli/command.h"

namespace ostinato::cli {

enum class OptionType {
  integer,  ///< >= 0
  decimal,  ///< >= 0, kept as text: scaled() makes it exact
  text,
  choice,  ///< one of OptionRow::choices
  flag,
};

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

/// The options of some sections, for one command.
class OptionSet {
 public:
  /// `without`: keys of these sections that the command does not have.
  OptionSet(CommandLine& line, const std::vector<std::string>& sections,
            const std::vector<std::string>& without = {});

  /// Fills in file and defaults, and checks every value. Throws UsageError, and InputError for the file.
  void resolve();

  const std::string& text(const std::string& key) const { return values_.at(key); }
  bool flag(const std::string& key) const { return values_.at(key) == "true"; }
  std::int64_t integer(const std::string& key) const { return scaled(key, 1); }
  /// The decimal times `factor`, to the nearest whole number.
  std::int64_t scaled(const std::string& key, std::int64_t factor) const;

 private:
  CommandLine& line_;
  std::vector<const OptionRow*> rows_;
  std::map<std::string, std::string> values_;  ///< by key
  std::map<std::string, bool> flags_;          ///< by key: on the command line
  std::string file_;
};

/// Throws UsageError where `value` is none for the row. `name` stands in the message.
void check_value(const OptionRow& row, const std::string& name, const std::string& value);

/// Section and key to value, as text. Throws InputError with file:line for an unknown section or key, a value
/// of another type, and anything that options_table() does not allow.
std::map<std::pair<std::string, std::string>, std::string> read_options(const std::filesystem::path& path);

/// The file with every option at its default, explained.
std::string default_options();

}  // namespace ostinato::cli
