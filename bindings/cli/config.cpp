// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/plan_files.h"
#include "search/files/counted.h"
#include "search/files/file.h"

namespace ostinato::cli {
namespace {

const char* type_name(OptionType type) {
  switch (type) {
    case OptionType::integer:
      return "integer";
    case OptionType::decimal:
      return "decimal";
    case OptionType::flag:
      return "flag";
    default:
      return "text";
  }
}

Json table() {
  Json list = Json::array();
  for (const OptionRow& row : option_table()) {
    Json json = {{"section", row.section},
                 {"key", row.key},
                 {"type", type_name(row.type)},
                 {"default", row.fallback},
                 {"help", row.help}};
    if (!row.choices.empty()) json["choices"] = row.choices;
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

int config_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "config",
      "Prints every option that has a default, as a file for --options of partition, search, plan and "
      "simulate.\n--output writes that file; with FILE, the command checks an existing one.",
      "config --output ostinato.toml");
  std::string file, output;
  line.text("file", file, "Options file to check (TOML)").type_name("FILE");
  line.text("--output", output, "File to write with all defaults").type_name("FILE");
  if (!line.parse(args, io)) return 0;
  if (!file.empty() && !output.empty()) throw UsageError("give a file to check, or --output, not both");
  if (!file.empty()) {
    const std::size_t count = read_options(file).size();
    if (line.json) print_json({{"status", 0}, {"file", file}, {"count", count}}, io);
    if (!line.json) io.out << fmt::format("{}: {}, all valid\n", printable(file), counted(count, "option"));
    return 0;
  }
  if (!output.empty()) {
    check_can_write(output);
    write_file(output, default_options());
  }
  if (line.json) {
    Json json = {{"status", 0}, {"options", table()}};
    if (!output.empty()) json["output"] = output;
    print_json(json, io);
  } else {
    io.out << (output.empty() ? default_options() : printable(output) + ": written\n");
  }
  return 0;
}

}  // namespace ostinato::cli
