// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "bindings/core/numbers.h"
#include "bindings/core/options.h"
#include "bindings/core/usage_error.h"

namespace ostinato::cli {
namespace {

std::string refusal(const std::string& wanted, const std::string& text) {
  return fmt::format("needs {}, got \"{}\"", wanted, text);
}

/// CLI11 by itself takes 010 for 8, and -1 for a number without sign.
CLI::Validator whole_number_check(Range range) {
  const auto check = [range](std::string& text) {
    if (!core::is_whole_number(text, range.low, range.high))
      return refusal(core::whole_number_text(range.low, range.high), text);
    text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
    return std::string();
  };
  return CLI::Validator(check, "");
}

/// CLI11 by itself takes nan.
CLI::Validator decimal_check(Range range) {
  const auto check = [range](std::string& text) {
    if (core::is_decimal(text, range.low, range.high)) return std::string();
    return refusal(core::decimal_text(range.low, range.high), text);
  };
  return CLI::Validator(check, "");
}

}  // namespace

Argument& Argument::required(bool yes) {
  option_->required(yes);
  return *this;
}

Argument& Argument::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

CommandLine::CommandLine(const std::string& command, const std::string& description,
                         const std::string& example)
    : app_(std::make_unique<CLI::App>(description, "ostinato " + command)) {
  app_->footer("Example:\n  ostinato " + example);
  app_->get_formatter()->column_width(34);
  flag("--json", json, "Print one JSON object and nothing else on standard output");
}

CommandLine::~CommandLine() = default;

Argument CommandLine::text(const std::string& name, std::string& value, const std::string& help) {
  return Argument(app_->add_option(name, value, help));
}

Argument CommandLine::whole_number(const std::string& name, int& value, Range range,
                                   const std::string& help) {
  return Argument(app_->add_option(name, value, help)->transform(whole_number_check(range)));
}

Argument CommandLine::whole_number(const std::string& name, std::uint64_t& value, Range range,
                                   const std::string& help) {
  return Argument(app_->add_option(name, value, help)->transform(whole_number_check(range)));
}

Argument CommandLine::decimal(const std::string& name, double& value, Range range, const std::string& help) {
  return Argument(app_->add_option(name, value, help)->transform(decimal_check(range)));
}

void CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  app_->add_flag(name, value, help);
}

void CommandLine::explain(const std::string& text) { app_->footer(text + "\n" + app_->get_footer()); }

bool CommandLine::given(const std::string& name) const { return app_->count(name) > 0; }

bool CommandLine::parse(const std::vector<std::string>& args, Io& io) {
  refuse_unknown_options(args);
  try {
    parse_reversed({args.rbegin(), args.rend()});
    return true;
  } catch (const CLI::CallForHelp&) {
    io.out << app_->help();
    return false;
  }
}

/// `reversed`: as CLI11 wants them. Its errors become ours; a call for help passes.
void CommandLine::parse_reversed(std::vector<std::string> reversed) {
  try {
    app_->parse(reversed);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::ValidationError& error) {  // "--devices: needs a number from ..." (refusal())
    std::string what = error.what();
    const std::size_t colon = what.find(": needs ");
    if (colon != std::string::npos) what.erase(colon, 1);
    throw core::UsageError(what);
  } catch (const CLI::ConversionError& error) {
    const std::string what = error.what();  // "Could not convert: --devices = x"
    const std::size_t name = what.find("--");
    throw core::UsageError(what.substr(name == std::string::npos ? 0 : name) + ": a number is needed");
  } catch (const CLI::ParseError& error) {
    throw core::UsageError(error.what());
  }
}

void CommandLine::refuse_unknown_options(const std::vector<std::string>& args) const {
  std::vector<std::string> known;
  for (const CLI::Option* option : app_->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& arg : args) {
    if (arg == "--") return;
    const std::string name = arg.substr(0, arg.find('='));
    if (!name.starts_with("--") || std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw core::UsageError("unknown option " + name + core::suggestion(name, known));
  }
}

}  // namespace ostinato::cli
