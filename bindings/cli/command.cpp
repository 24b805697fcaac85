// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/command.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ostinato::cli {
CommandLine::CommandLine(const std::string& command, const std::string& description,
                         const std::string& example)
    : app(description, "ostinato " + command) {
  app.footer("Example:\n  ostinato " + example);
  app.get_formatter()->column_width(34);
  app.add_flag("--json", json, "Print one JSON object and nothing else on standard output");
}

bool CommandLine::parse(const std::vector<std::string>& args, Io& io) {
  refuse_unknown_options(args);
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // as CLI11 wants them
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    io.out << app.help();
    return false;
  } catch (const CLI::ValidationError& error) {  // "--devices: needs a number from ..." (numbers.h)
    std::string what = error.what();
    const std::size_t colon = what.find(": needs ");
    if (colon != std::string::npos) what.erase(colon, 1);
    throw UsageError(what);
  } catch (const CLI::ConversionError& error) {
    const std::string what = error.what();  // "Could not convert: --devices = x"
    throw UsageError(what.substr(what.find("--") == std::string::npos ? 0 : what.find("--")) +
                     ": a number is needed");
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  return true;
}

void CommandLine::refuse_unknown_options(const std::vector<std::string>& args) const {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& arg : args) {
    if (arg == "--") return;
    const std::string name = arg.substr(0, arg.find('='));
    if (!name.starts_with("--") || std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw UsageError("unknown option " + name + suggestion(name, known));
  }
}

void print_json(const Json& object, Io& io) {
  io.out << object.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

int to_int(ExitStatus status) { return static_cast<int>(status); }

}  // namespace ostinato::cli
