// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <new>

#include "bindings/cli/command.h"
#include "search/files/printable.h"
#include "search/search.h"

namespace ostinato::cli {
namespace {

std::string help() {
  std::string text =
      "ostinato: pipeline schedules that are searched, proved and enforced\n\n"
      "Usage: ostinato COMMAND [OPTIONS]\n\nCommands, in the order of the pipeline:\n";
  for (const Command& command : commands())
    text += fmt::format("  {:<11} {}\n", command.name, command.summary);
  text +=
      "\nOptions:\n  -h, --help  Print this help; after a command, its options and an example\n  -V, "
      "--version\n              Print the version\n\nExit status: 0 done, 1 internal error, 2 usage, 3 bad "
      "input, 4 infeasible (proved), 5 nothing\nwas found, nor a proof that there is nothing (with --strict: "
      "a limit ended the search), 6 a check\nfailed, 7 a device or library is missing, 130 interrupted.\n";
  return text;
}

/// An error as the user sees it, and the status that it gives the program.
struct Failure {
  ExitStatus status;
  std::string message;
};

/// What the exception that is being handled means.
Failure classify(const std::string& command) {
  try {
    throw;
  } catch (const UsageError& error) {
    return {ExitStatus::usage,
            fmt::format("{}\nTry: ostinato {}{}--help", error.what(), command, command.empty() ? "" : " ")};
  } catch (const InputError& error) {
    return {ExitStatus::bad_input, error.what()};
  } catch (const InfeasibleError& error) {
    return {ExitStatus::infeasible, std::string("infeasible: ") + error.what()};
  } catch (const UndecidedError& error) {
    return {ExitStatus::stopped_at_limit, std::string("undecided: ") + error.what()};
  } catch (const std::bad_alloc&) {
    return {ExitStatus::internal_error, "out of memory"};
  } catch (const std::exception& error) {
    return {ExitStatus::internal_error, std::string("internal error: ") + error.what()};
  }
}

int dispatch(const std::vector<std::string>& args, Io& io) {
  if (args.empty()) {
    io.err << help();
    return to_int(ExitStatus::usage);
  }
  const std::string& name = args.front();
  if (name == "help" && args.size() == 2) return dispatch({args[1], "--help"}, io);
  if (name == "--help" || name == "-h" || name == "help") {
    io.out << help();
    return 0;
  }
  if (name == "--version" || name == "-V") {
    io.out << "ostinato " << version() << '\n';
    return 0;
  }
  const auto command =
      std::find_if(commands().begin(), commands().end(), [&](const Command& c) { return c.name == name; });
  if (command == commands().end()) check_choice("command", name, command_names());
  if (command->run == nullptr) {
    io.err << "ostinato " << name << ": this command needs the Python package; run: python -m ostinato "
           << name << '\n';
    return to_int(ExitStatus::missing);
  }
  return command->run({args.begin() + 1, args.end()}, io);
}

void report(const Failure& failure, const std::string& command, bool json, Io& io) {
  io.err << (command.empty() ? "ostinato" : "ostinato " + command) << ": " << printable(failure.message, true)
         << '\n';
  if (json) print_json({{"status", to_int(failure.status)}, {"error", failure.message}}, io);
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> list = {
      {"profile", "Measure a model: time and memory of each layer and operator, and the cost of transfers",
       nullptr},
      {"placement", "Write a placement of a named shape: V, X, M, NN, K, wave and more", placement_command},
      {"partition", "Split a profiled model into stages and place them on devices", partition_command},
      {"search", "Search for the best schedule of a placement, with proven bounds", search_command},
      {"plan", "Make a plan from a profile in one step: try many partitions, search the best ones",
       plan_command},
      {"simulate", "Replay a plan with varying times, and explain what limits it", simulate_command},
      {"verify", "Check a plan, its bounds and its claims with independent code", verify_command},
      {"lower", "Print each rank's instruction list, proved free of deadlock", lower_command},
      {"show", "Draw a plan in the terminal, as an HTML page or as a Perfetto trace", show_command},
      {"compare", "Compare plans: makespan, bound, period, bubble, memory", compare_command},
      {"report", "Compare a training's measured times with its plan", nullptr},
      {"checkpoint", "Show what a checkpoint holds, or convert it for DeepSpeed without ostinato", nullptr},
      {"config", "Print all options with their defaults, or check an options file", config_command},
      {"doctor", "Report what ostinato can use on this machine", nullptr},
      {"completion", "Print a shell completion script", completion_command},
  };
  return list;
}

std::string version() { return OSTINATO_VERSION; }

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  return names;
}

int run(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
        const std::string& launcher) {
  Io io{out, err, &out == &std::cout && isatty(STDOUT_FILENO) == 1,
        &err == &std::cerr && isatty(STDERR_FILENO) == 1, launcher};
  const auto end = std::find(args.begin(), args.end(), "--");
  const bool json = std::find(args.begin(), end, "--json") != end;
  const std::vector<std::string> names = command_names();
  const bool known = !args.empty() && std::find(names.begin(), names.end(), args.front()) != names.end();
  const std::string command = known ? args.front() : "";
  int status = 0;
  try {
    status = dispatch(args, io);
  } catch (...) {
    const Failure failure = classify(known ? command : "");
    report(failure, command, json, io);
    status = to_int(failure.status);
  }
  out.flush();
  if (!out && status == 0) {
    err << "ostinato: cannot write to standard output\n";
    return to_int(ExitStatus::internal_error);
  }
  return status;
}

}  // namespace ostinato::cli
