// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/lower.h"

#include <fmt/format.h>

#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/plan_files.h"
#include "plugin/lowering/program_text.h"

namespace ostinato::cli {

int lower_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line("lower",
                   "Prints what each rank runs, one row per rank, in the format of "
                   "torch.distributed.pipelining: 0F0 is stage 0, forward, micro-batch 0. It first checks "
                   "the plan and proves the programs free of deadlock.",
                   "lower plan.json placement.toml --rank 0");
  const PlanArguments files(line);
  std::string form = "transfers";
  int rank = -1;
  line.whole_number("--rank", rank, {0, 65'535}, "Print only this rank").type_name("R");
  line.text("--form", form, "transfers, or compute: without sends and receives (default: transfers)")
      .type_name("FORM");
  if (!line.parse(args, io)) return 0;
  const bool one = line.given("--rank");
  check_choice("--form", form, {"transfers", "compute"});
  const Program program = lower_files(files.plan, files.placement_file());
  const TextForm text_form = form == "compute" ? TextForm::compute : TextForm::transfers;
  const int ranks = static_cast<int>(program.ranks.size());
  if (one && rank >= ranks) {
    throw UsageError(fmt::format("--rank must be between 0 and {}, got {}", ranks - 1, rank));
  }
  std::vector<std::string> rows;
  for (int r = 0; r < ranks; ++r) {
    if (!one || r == rank) rows.push_back(format_rank(program, r, text_form));
  }
  if (line.json) {
    Json json = {{"status", 0}, {"form", form}, {"keeps_order", keeps_order(program)}, {"ranks", rows}};
    if (one) json["rank"] = rank;
    print_json(json, io);
    return 0;
  }
  for (const std::string& row : rows) io.out << row << '\n';
  return 0;
}

}  // namespace ostinato::cli
