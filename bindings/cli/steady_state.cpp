#include "bindings/cli/steady_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "search/bounds/feasible.h"
#include "search/placement/quantity.h"
#include "search/repetend/repetend.h"

namespace ostinato::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct SteadyReport {
  Repetend repetend;
  Nanoseconds bound = 0;         ///< of its period
  std::vector<Bytes> held = {};  ///< per device, static memory included
};

SteadyReport find(const Placement& placement, const std::function<bool()>& stop) {
  const Instance in(placement);
  const Bounds bounds(in);
  fitting_order(in, bounds, 1);
  RepetendOptions options;
  options.stop = stop;
  const std::vector<Repetend> found = repetends_of_growing_rate(in, bounds, kMostUnroll, options);
  if (found.empty()) return {};
  SteadyReport report{with_least_memory(in, found.back(), options), bounds.period(found.back().unroll)};
  report.held = held_by(in, report.repetend);
  for (std::size_t d = 0; d < report.held.size(); ++d) {
    report.held[d] += placement.devices[d].static_memory;
  }
  return report;
}

Json to_json(const SteadyReport& report, int status) {
  const Repetend& r = report.repetend;
  return {{"status", status},
          {"period", r.period},
          {"unroll", r.unroll},
          {"lower_bound", report.bound},
          {"period_proved", r.period_proved},
          {"peak_memory", report.held},
          {"memory_proved", r.memory_proved}};
}

std::string to_text(const Placement& placement, const SteadyReport& report) {
  const Repetend& r = report.repetend;
  if (r.period == 0) return fmt::format("{}: no repeating part was found\n", placement.name);
  const char* period = r.period_proved ? "the least (proved)" : "no shorter one was found";
  const char* memory = r.memory_proved ? "the least (proved)" : "no less was found";
  std::string peaks;
  for (const Bytes held : report.held) peaks += (peaks.empty() ? "" : ", ") + format_memory(held);
  return fmt::format(
      "{}: the repeating part\n"
      "  period            {} for {} micro-batch{}, {}; work and memory need {}\n"
      "  largest memory    {}, {} at this period\n"
      "  peak memory       {} per device\n",
      placement.name, format_time(r.period), r.unroll, r.unroll == 1 ? "" : "es", period,
      format_time(report.bound), format_memory(*std::max_element(report.held.begin(), report.held.end())),
      memory, peaks);
}

}  // namespace

int report_steady_state(const Placement& placement, double seconds, const InterruptGuard& guard, bool json,
                        Io& io) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  bool cut = false;
  const SteadyReport report = find(placement, [&] {
    cut = cut || guard.caught() || (seconds > 0 && Clock::now() > end);
    return cut;
  });
  ExitStatus status = cut || report.repetend.period == 0 ? ExitStatus::stopped_at_limit : ExitStatus::done;
  if (guard.caught()) status = ExitStatus::interrupted;
  if (json) {
    print_json(to_json(report, to_int(status)), io);
  } else {
    io.out << to_text(placement, report);
  }
  return to_int(status);
}

}  // namespace ostinato::cli
