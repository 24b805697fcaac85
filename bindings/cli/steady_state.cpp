// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/steady_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bindings/cli/run_search.h"
#include "search/files/wrapped.h"
#include "search/placement/quantity.h"
#include "search/repetend/repeating_part.h"

namespace ostinato::cli {
namespace {

using Clock = std::chrono::steady_clock;

Json to_json(const RepeatingPart& report, int status) {
  const Repetend& r = report.repetend;
  Json json = {{"status", status},
               {"period", r.period},
               {"unroll", r.unroll},
               {"lower_bound", report.bound},
               {"period_proved", r.period_proved},
               {"peak_memory", report.held},
               {"memory_proved", r.memory_proved}};
  if (!report.steady) {
    json["peak_memory"] = nullptr;
    json["left_behind"] = report.left_behind;
  }
  return json;
}

/// In place of the memory, where it is never the same twice.
std::string left_behind(const RepeatingPart& report) {
  std::string each;
  for (const Bytes left : report.left_behind) each += (each.empty() ? "" : ", ") + format_memory(left);
  return fmt::format(
      "  memory            never the same twice: each micro-batch leaves {} behind, per device\n", each);
}

std::string to_text(const Placement& placement, const RepeatingPart& report) {
  const Repetend& r = report.repetend;
  if (r.period == 0) return fmt::format("{}: no repeating part was found\n", placement.name);
  const char* period = r.period_proved ? "the least (proved)" : "no shorter one was found";
  const std::string text = fmt::format(
      "{}: the repeating part\n"
      "  period            {} for {} micro-batch{}, {}; work and memory need {}\n",
      placement.name, format_time(r.period), r.unroll, r.unroll == 1 ? "" : "es", period,
      format_time(report.bound));
  if (!report.steady) return wrapped(text + left_behind(report), 20);
  const char* memory = r.memory_proved ? "the least (proved)" : "no less was found";
  std::string peaks;
  for (const Bytes held : report.held) peaks += (peaks.empty() ? "" : ", ") + format_memory(held);
  return wrapped(text + fmt::format("  largest memory    {}, {} at this period\n"
                                    "  peak memory       {} per device\n",
                                    format_memory(*std::max_element(report.held.begin(), report.held.end())),
                                    memory, peaks),
                 20);
}

}  // namespace

int report_steady_state(const Placement& placement, double seconds, bool strict, const InterruptGuard& guard,
                        bool json, Io& io) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  bool cut = false;
  RepetendOptions options;
  options.stop = [&] {
    cut = cut || guard.caught() || (seconds > 0 && Clock::now() > end);
    return cut;
  };
  const RepeatingPart report = repeating_part(placement, options);
  const bool none = report.repetend.period == 0;
  const bool proved = report.repetend.period_proved && (report.repetend.memory_proved || !report.steady);
  const ExitStatus status = status_of_cut(none || (cut && !proved), strict || none, guard);
  if (json) {
    print_json(to_json(report, to_int(status)), io);
  } else {
    io.say(to_text(placement, report));
  }
  return to_int(status);
}

}  // namespace ostinato::cli
