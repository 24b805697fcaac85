#pragma once
// What the commands share: their streams, their arguments, the list of them.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "search/files/error.h"

namespace ostinato::cli {

using Json = nlohmann::ordered_json;

/// Where a command writes. `is_terminal` is false for anything but the standard streams.
struct Io {
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
};

/// The user called a command wrongly (exit status 2). `what()` says how, with a suggestion where there is
/// one.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>& args, Io& io);  ///< nullptr: it lives in the Python half
};

/// In the order of the pipeline.
const std::vector<Command>& commands();

/// The parser of one command: `--help`, `--json`, and messages with suggestions.
class CommandLine {
 public:
  /// `example` is what a user could type, without the leading "ostinato ".
  CommandLine(const std::string& command, const std::string& description, const std::string& example);

  CLI::App app;
  bool json = false;

  /// False where help was asked for and printed. Throws UsageError. Options must be declared before.
  bool parse(const std::vector<std::string>& args, Io& io);

 private:
  void refuse_unknown_options(const std::vector<std::string>& args) const;
};

/// Throws UsageError ("did you mean ...?") unless `value` is one of `choices`.
void check_choice(const std::string& what, const std::string& value, const std::vector<std::string>& choices);

/// Prints the object as the one thing on standard output.
void print_json(const Json& object, Io& io);

int to_int(ExitStatus status);

int placement_command(const std::vector<std::string>& args, Io& io);
int partition_command(const std::vector<std::string>& args, Io& io);
int search_command(const std::vector<std::string>& args, Io& io);
int plan_command(const std::vector<std::string>& args, Io& io);
int simulate_command(const std::vector<std::string>& args, Io& io);
int verify_command(const std::vector<std::string>& args, Io& io);
int lower_command(const std::vector<std::string>& args, Io& io);
int show_command(const std::vector<std::string>& args, Io& io);
int config_command(const std::vector<std::string>& args, Io& io);

}  // namespace ostinato::cli
