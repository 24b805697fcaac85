// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parser of one command: `--help`, `--json`, and messages with suggestions.
//
//   CommandLine line("show", "Draws a plan.", "show plan.json placement.toml --html plan.html");
//   line.text("plan", plan, "Plan file (JSON)").required().type_name("PLAN");
//   line.whole_number("--width", width, {40, 10'000}, "Columns of the timeline").type_name("W");
//   if (!line.parse(args, io)) return 0;
//
// CLI11 does the parsing, in command_line.cpp alone: a file that includes it takes ten times as long to
// compile.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/cli/command.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ostinato::cli {

/// The least and the largest number that an option takes.
struct Range {
  std::int64_t low, high;
};

/// What was declared, to say more of it.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  /// An error where it is missing, unless `yes` is false.
  Argument& required(bool yes = true);
  /// What follows the name in the help: "FILE".
  Argument& type_name(const std::string& name);

 private:
  CLI::Option* option_;  ///< the CommandLine's
};

class CommandLine {
 public:
  /// `example` is what a user could type, without the leading "ostinato ".
  CommandLine(const std::string& command, const std::string& description, const std::string& example);
  ~CommandLine();

  bool json = false;

  /// The help calls whole numbers N and decimals X, unless type_name() says otherwise.
  /// What is declared is written to `value` by parse(), and `value` stays where nothing was typed. A name
  /// with dashes is an option, any other the next positional argument; --output is -o, too. Numbers are as in
  /// core/numbers.h:
  /// "--runs needs a whole number from 1 to 1000000, got "-1"".
  Argument text(const std::string& name, std::string& value, const std::string& help,
                bool may_be_empty = false);
  Argument whole_number(const std::string& name, int& value, Range range, const std::string& help);
  Argument whole_number(const std::string& name, std::uint64_t& value, Range range, const std::string& help);
  Argument decimal(const std::string& name, double& value, Range range, const std::string& help);
  void flag(const std::string& name, bool& value, const std::string& help);
  /// As often as it is typed; a positional one takes all that is left.
  Argument texts(const std::string& name, std::vector<std::string>& values, const std::string& help);

  /// Adds --quiet, which leaves nothing of Io::say() and of the progress.
  void may_be_quiet();

  /// Text of the help between the options and the example.
  void explain(const std::string& text);

  /// False where help was asked for and printed, or only the options were wanted (Io::options). Throws
  /// UsageError. Options must be declared before.
  bool parse(const std::vector<std::string>& args, Io& io);

  /// Whether the option was typed.
  bool given(const std::string& name) const;

 private:
  void parse_reversed(std::vector<std::string> reversed);
  void refuse_unknown_options(const std::vector<std::string>& args) const;
  void refuse_short_options() const;
  std::vector<std::string> option_names() const;
  std::string missing() const;

  std::unique_ptr<CLI::App> app_;
  bool quiet_ = false;
};

}  // namespace ostinato::cli
