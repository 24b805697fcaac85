#include "search/simulate.h"

#include <fmt/format.h>

#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/options.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/progress.h"
#include "search/quantity.h"

namespace ostinato::cli {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

SimulateOptions resolve(OptionSet& options) {
  options.resolve();
  SimulateOptions result;
  result.jitter_ppm = options.scaled("jitter", kMillion);
  result.transfer_ppm = options.scaled("transfer_factor", kMillion);
  result.seed = static_cast<std::uint64_t>(options.integer("seed"));
  const std::int64_t runs = options.integer("runs");
  if (result.jitter_ppm > kMillion)
    throw UsageError("--jitter must be at most 1: a time cannot become negative");
  if (result.transfer_ppm > kMillion * kMillion)
    throw UsageError("--transfer-factor must be at most 1000000");
  if (runs < 1 || runs > kMillion) throw UsageError("--runs must be between 1 and 1000000");
  result.runs = static_cast<int>(runs);
  return result;
}

std::string beside(Nanoseconds value, Nanoseconds planned) {
  if (planned <= 0) return "";
  return fmt::format("  ({:+.2f} %)",
                     100.0 * static_cast<double>(value - planned) / static_cast<double>(planned));
}

std::string text_of(const Simulation& s) {
  std::string text = fmt::format("planned  {}\n", format_time(s.planned));
  text += fmt::format("best     {}{}\n", format_time(s.makespans.front()),
                      beside(s.makespans.front(), s.planned));
  text += fmt::format("median   {}{}\n", format_time(s.median()), beside(s.median(), s.planned));
  text += fmt::format("worst    {}{}\n", format_time(s.worst()), beside(s.worst(), s.planned));
  return text + fmt::format("runs     {}\n", s.makespans.size());
}

}  // namespace

int simulate_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "simulate",
      "Replays a plan's order on each device with times that vary, and prints the makespans. The same seed\n"
      "gives the same makespans. --explain tells what binds the plan as it is.",
      "simulate plan.json placement.toml --jitter 0.1 --transfer-factor 2 --explain");
  const PlanArguments files(line);
  bool wants_explanation = false;
  OptionSet options(line, {"simulate"});
  line.app.add_flag("--explain", wants_explanation, "Tell in words what holds up the makespan");
  if (!line.parse(args, io)) return 0;
  const SimulateOptions wanted = resolve(options);
  const auto [file, plan, placement] = files.read();
  const Simulation result = simulate(placement, plan.micro_batches, plan.schedule, wanted);
  std::vector<std::string> reasons;
  if (wants_explanation) {
    reasons = explain(placement, critical_chain(placement, plan.micro_batches, plan.schedule));
  }
  if (line.json) {
    Json json = {{"status", 0},
                 {"planned", result.planned},
                 {"best", result.makespans.front()},
                 {"median", result.median()},
                 {"worst", result.worst()},
                 {"runs", result.makespans.size()}};
    if (wants_explanation) json["explanation"] = reasons;
    print_json(json, io);
    return 0;
  }
  io.out << text_of(result);
  for (const std::string& reason : reasons) io.out << reason << '\n';
  return 0;
}

}  // namespace ostinato::cli
