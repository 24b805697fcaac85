// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/steady_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "bindings/cli/run_search.h"
#include "bindings/core/repeating.h"
#include "search/files/counted.h"
#include "search/files/wrapped.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"

namespace ostinato::cli {
namespace {

std::string each_device(const Placement& placement, std::vector<Bytes> held) {
  held.resize(count_without_lanes(placement));
  std::vector<std::string> texts;
  std::ranges::transform(held, std::back_inserter(texts), format_memory);
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// In place of the memory, where it is never the same twice.
std::string left_behind(const Placement& placement, const RepeatingPart& report) {
  return fmt::format("  memory            never repeats: each micro-batch leaves {} behind, per device\n",
                     each_device(placement, report.left_behind));
}

std::string to_text(const Placement& placement, const RepeatingPart& report) {
  const Repetend& r = report.repetend;
  if (r.period == 0) return fmt::format("{}: no repeating part was found\n", placement.name);
  // A part of more micro-batches may still take less for each of them.
  const char* period = r.period == report.bound ? "the shortest (proved)"
                       : r.period_proved        ? "the shortest for as many (proved)"
                                                : "the shortest found";
  const std::string text = fmt::format(
      "{}: the repeating part\n  period            {} for {}, {}; lower bound from work and memory {}\n",
      placement.name, format_time(r.period), counted(r.unroll, "micro-batch"), period,
      format_time(report.bound));
  if (!report.steady) return wrapped(text + left_behind(placement, report), 20);
  const char* memory =
      r.memory_proved ? "the least at this period (proved)" : "the least found at this period";
  return wrapped(text + fmt::format("  largest memory    {}, {}\n  peak memory       {} per device\n",
                                    format_memory(*std::max_element(report.held.begin(), report.held.end())),
                                    memory, each_device(placement, report.held)),
                 20);
}

}  // namespace

int report_steady_state(const Placement& placement, double seconds, bool strict, const InterruptGuard& guard,
                        bool json, Io& io) {
  const core::Repeating found = core::repeating(placement, seconds, [&] { return guard.caught(); });
  const ExitStatus status = status_of_cut(found.none() || found.cut, strict || found.none(), guard);
  if (json) {
    Json said = {{"status", to_int(status)}};
    said.update(core::repeating_json(found.part));
    print_json(said, io);
  } else {
    io.say(to_text(placement, found.part));
  }
  return to_int(status);
}

}  // namespace ostinato::cli
