// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the commands share: their streams, the list of them.

#include <ostream>
#include <string>
#include <vector>

#include "bindings/core/options.h"
#include "bindings/core/usage_error.h"
#include "search/files/error.h"
#include "search/files/json.h"
#include "search/files/printable.h"

namespace ostinato::cli {

using namespace core;  // the half of a command that the Python API shares

/// Where a command writes. `is_terminal` is false for anything but the standard streams.
struct Io {
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  std::string launcher = {};  ///< cli.h
  bool quiet = false;         ///< --quiet was typed
  /// Where it is there, a command only tells its options and does nothing (`ostinato completion`).
  std::vector<std::string>* options = nullptr;

  /// What is for people, and not the command's product: nothing under --quiet. Names come from files: no
  /// control character of one reaches a terminal.
  void say(const std::string& text) {
    if (!quiet) out << printable(text, true);
  }
};

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>& args, Io& io);  ///< nullptr: it lives in the Python half
};

/// In the order of the pipeline.
const std::vector<Command>& commands();

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
int compare_command(const std::vector<std::string>& args, Io& io);
int completion_command(const std::vector<std::string>& args, Io& io);
int config_command(const std::vector<std::string>& args, Io& io);

}  // namespace ostinato::cli
