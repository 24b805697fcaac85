// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bindings/cli/cli.h"
#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "search/files/printable.h"
#include "search/placement/shapes.h"

namespace ostinato::cli {
namespace {

using Words = std::vector<std::string>;

const Words kShells = {"bash", "zsh"};

/// zsh reads completions of bash, once its own are there: compinit takes long, and asks again what a user has
/// answered.
const std::string kZsh =
    "autoload -Uz compinit bashcompinit\n(( $+functions[compdef] )) || compinit\nbashcompinit\n";

/// Of a command of this half, with both halves of `partition`.
Words options_of(const Command& command) {
  std::set<std::string> names;
  for (const Words& args : {Words{}, Words{"--strategy=best"}}) {
    Words found;
    std::ostringstream none;
    Io io{.out = none, .err = none, .options = &found};
    command.run(args, io);
    names.insert(found.begin(), found.end());
  }
  return {names.begin(), names.end()};
}

std::string branch(const std::string& pattern, const Words& words) {
  return fmt::format("    {}) words=\"{}\" ;;\n", pattern, fmt::join(words, " "));
}

/// What follows an option that has choices.
std::string choices() {
  std::map<std::string, Words> by_option;
  for (const OptionRow& row : option_table())
    if (!row.choices.empty()) by_option[dashed(row.key)] = row.choices;
  std::string text;
  for (const auto& [option, words] : by_option) text += branch(option, words);
  return text;
}

/// Those of the Python half are read from their help, when they are first wanted.
std::string options() {
  std::string text;
  std::string python;
  for (const Command& command : commands()) {
    if (command.run != nullptr) {
      text += branch(command.name, options_of(command));
    } else {
      python += (python.empty() ? "" : "|") + std::string(command.name);
    }
  }
  return text + "    " + python +
         R"sh()
      local kept="_ostinato_${COMP_WORDS[1]}"
      eval "words=\$$kept"
      if [ -z "$words" ]; then
        words="$(ostinato "${COMP_WORDS[1]}" --help 2>/dev/null |
          grep -oE -- '--[a-z][a-z-]*' | sort -u | tr '\n' ' ')"
        eval "$kept=\$words"
      fi ;;
)sh";
}

/// The first word after the command that is no file.
std::string first_words() {
  return branch("placement", shape_names()) + branch("completion", kShells) +
         branch("checkpoint", {"show", "convert"});
}

std::string bash() {
  return R"sh(# Completion of ostinato. bash: eval "$(ostinato completion bash)"
_ostinato() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words=")sh" +
         fmt::format("{}", fmt::join(command_names(), " ")) + R"sh( --help --version"
  elif [[ "$word" == -* ]]; then
    case "${COMP_WORDS[1]}" in
)sh" + options() +
         R"sh(    esac
  else
    case "$before" in
)sh" + choices() +
         R"sh(    esac
    [ "$COMP_CWORD" -ne 2 ] || case "${COMP_WORDS[1]}" in
)sh" + first_words() +
         R"sh(    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _ostinato ostinato
)sh";
}

}  // namespace

int completion_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line("completion",
                   "Prints a script with which the shell completes commands, options and their choices. In "
                   ".bashrc (or, with zsh, .zshrc): eval \"$(ostinato completion bash)\"",
                   "completion bash");
  std::string shell;
  line.text("shell", shell, "bash or zsh").required().type_name("SHELL");
  if (!line.parse(args, io)) return 0;
  if (std::find(kShells.begin(), kShells.end(), shell) == kShells.end())
    throw UsageError(
        fmt::format("shell \"{}\": only {} have completions", printable(shell), fmt::join(kShells, " and ")));
  const std::string text = (shell == "zsh" ? kZsh : "") + bash();
  if (line.json) {
    print_json({{"status", 0}, {"script", text}}, io);
  } else {
    io.out << text;
  }
  return 0;
}

}  // namespace ostinato::cli
