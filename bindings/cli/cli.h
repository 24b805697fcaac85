// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command line as a function: `ostinato ARGS...`, everything that needs no torch.
//
//   int status = ostinato::cli::run({"verify", "plan.json", "placement.toml"}, std::cout, std::cerr);
//
// Nothing escapes it: every error becomes a message on `err` and one of the statuses of search/files/error.h.
// With
// --json, `out` gets exactly one JSON object, which holds "status", and "error" where there was one.

#include <ostream>
#include <string>
#include <vector>

namespace ostinato::cli {

/// `args` without the program's name. Colours, progress and the width of lines follow the terminal where
/// `out` and `err` are the standard streams. `launcher`: the device file that `--devices launcher` stands
/// for;
/// "": nothing was launched.
int run(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
        const std::string& launcher = "");

/// Every command, in the order of the pipeline, including the Python half's.
std::vector<std::string> command_names();

std::string version();

}  // namespace ostinato::cli
