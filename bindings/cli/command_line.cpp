// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "bindings/core/numbers.h"
#include "bindings/core/options.h"
#include "bindings/core/usage_error.h"
#include "search/files/wrapped.h"

namespace ostinato::cli {
namespace {

/// CLI11 by itself takes 010 for 8, and -1 for a number without sign.
CLI::Validator whole_number_check(Range range) {
  const auto check = [range](std::string& text) {
    if (!core::is_whole_number(text, range.low, range.high))
      return core::needs_text(core::whole_number_text(range.low, range.high), text);
    text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
    return std::string();
  };
  return CLI::Validator(check, "");
}

/// CLI11 by itself takes nan.
CLI::Validator decimal_check(Range range) {
  const auto check = [range](std::string& text) {
    if (core::is_decimal(text, range.low, range.high)) return std::string();
    return core::needs_text(core::decimal_text(range.low, range.high), text);
  };
  return CLI::Validator(check, "");
}

/// Lines that every terminal has room for. What stands below the options is laid out as it is.
class InColumns : public CLI::Formatter {
 public:
  InColumns() { column_width(kNames); }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), 0, kColumns - kNames);
  }

  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description()) + "\n\n";
  }

 private:
  static constexpr std::size_t kNames = 30;
};

/// An empty variable of a shell, more often than not: it would be found out after the search, or never.
CLI::Validator value_check() {
  return CLI::Validator(
      [](std::string& text) { return text.empty() ? core::needs_text("a value", text) : std::string(); }, "");
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
  app_->formatter(std::make_shared<InColumns>());
  flag("--json", json, "Print one JSON object on standard output, and nothing else");
}

CommandLine::~CommandLine() = default;

Argument CommandLine::text(const std::string& name, std::string& value, const std::string& help,
                           bool may_be_empty) {
  CLI::Option* option = app_->add_option(name == "--output" ? "-o,--output" : name, value, help);
  return Argument(may_be_empty ? option : option->check(value_check()));
}

Argument CommandLine::whole_number(const std::string& name, int& value, Range range,
                                   const std::string& help) {
  return Argument(app_->add_option(name, value, help)->transform(whole_number_check(range))).type_name("N");
}

Argument CommandLine::whole_number(const std::string& name, std::uint64_t& value, Range range,
                                   const std::string& help) {
  return Argument(app_->add_option(name, value, help)->transform(whole_number_check(range))).type_name("N");
}

Argument CommandLine::decimal(const std::string& name, double& value, Range range, const std::string& help) {
  return Argument(app_->add_option(name, value, help)->transform(decimal_check(range))).type_name("X");
}

void CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  app_->add_flag(name, value, help);
}

Argument CommandLine::texts(const std::string& name, std::vector<std::string>& values,
                            const std::string& help) {
  CLI::Option* option = app_->add_option(name, values, help)->check(value_check());
  if (name.starts_with('-')) return Argument(option->allow_extra_args(false));
  return Argument(option);
}

void CommandLine::may_be_quiet() { flag("-q,--quiet", quiet_, "Print only errors (and JSON with --json)"); }

void CommandLine::explain(const std::string& text) { app_->footer(text + "\n" + app_->get_footer()); }

bool CommandLine::given(const std::string& name) const { return app_->count(name) > 0; }

bool CommandLine::parse(const std::vector<std::string>& args, Io& io) {
  if (io.options != nullptr) {
    *io.options = option_names();
    return false;
  }
  refuse_unknown_options(args);
  try {
    parse_reversed({args.rbegin(), args.rend()});
    io.quiet = quiet_;
    io.err_is_terminal = io.err_is_terminal && !quiet_;  // no progress
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
  } catch (const CLI::ExtrasError&) {
    refuse_short_options();
    std::string extra;
    for (const std::string& word : app_->remaining()) extra += (extra.empty() ? "" : " ") + word;
    throw core::UsageError("unexpected argument: " + extra);
  } catch (const CLI::RequiredError&) {
    refuse_short_options();
    throw core::UsageError("missing: " + missing());
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
    const std::string what = error.what();
    if (const auto twice = what.find(": At Most 1 required"); twice != std::string::npos)
      throw core::UsageError(what.substr(0, twice) + " is given more than once");
    throw core::UsageError(what);
  }
}

std::vector<std::string> CommandLine::option_names() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// "PLACEMENT, --micro-batches N": all that is required and was not typed.
std::string CommandLine::missing() const {
  std::string list;
  for (const CLI::Option* option : app_->get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    const std::string name = option->get_positional() ? "" : option->get_name() + " ";
    list += (list.empty() ? "" : ", ") + name + option->get_type_name();
  }
  return list;
}

void CommandLine::refuse_unknown_options(const std::vector<std::string>& args) const {
  const std::vector<std::string> known = option_names();
  for (const std::string& arg : args) {
    if (arg == "--") return;
    const std::string name = arg.substr(0, arg.find('='));
    if (!name.starts_with("--") || std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw core::UsageError("unknown option " + name + core::suggestion(name, known));
  }
}

/// "-x", but not "-1". Only CLI11 knows which words are values of the option before them.
void CommandLine::refuse_short_options() const {
  for (const std::string& word : app_->remaining())
    if (word.size() > 1 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[1])) != 0)
      throw core::UsageError("unknown option " + word);
}

}  // namespace ostinato::cli
