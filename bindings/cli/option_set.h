// SPDX-License-Identifier: Apache-2.0
#pragma once
// The options of some sections of the table (core/options.h) as a command has them.
//
//   OptionSet options(line, {"search"});    // adds --time-limit, --threads, ..., and --options FILE
//   if (!line.parse(args, io)) return 0;
//   options.resolve();                      // the command line wins over the file, the file over the default

#include <map>
#include <string>
#include <vector>

#include "bindings/cli/command_line.h"
#include "bindings/core/options.h"

namespace ostinato::cli {

class OptionSet : public Options {
 public:
  /// `without`: keys of these sections that the command does not have.
  OptionSet(CommandLine& line, const std::vector<std::string>& sections,
            const std::vector<std::string>& without = {});

  /// Takes over what was typed, and the file. Throws UsageError, and InputError for the file.
  void resolve();

  const std::string& file() const { return file_; }  ///< "": none was given

 private:
  CommandLine& line_;
  std::map<std::string, std::string> typed_;  ///< by key
  std::map<std::string, bool> flags_;         ///< by key
  std::string file_;
};

}  // namespace ostinato::cli
