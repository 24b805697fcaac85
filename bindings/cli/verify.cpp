// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/plan_files.h"
#include "search/checker/checker.h"

namespace ostinato::cli {

int verify_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "verify",
      "Checks a plan with code that shares nothing with the search: every step, device, dependency and "
      "byte,\n"
      "every figure, the lower bounds and the claims of optimality. Exit status 6 where something fails.",
      "verify plan.json placement.toml");
  const PlanArguments files(line);
  if (!line.parse(args, io)) return 0;
  const auto [file, plan, placement] = files.read();
  const CheckResult result = check_plan(plan, file.placement);
  const int status = to_int(result.ok() ? ExitStatus::done : ExitStatus::check_failed);
  if (line.json) {
    print_json(
        {{"status", status}, {"ok", result.ok()}, {"passed", result.passed}, {"failures", result.failures}},
        io);
    return status;
  }
  for (const std::string& text : result.passed) io.out << "ok      " << text << '\n';
  for (const std::string& text : result.failures) io.out << "FAILED  " << text << '\n';
  io.out << (result.ok() ? "The plan holds.\n" : "The plan does not hold.\n");
  return status;
}

}  // namespace ostinato::cli
