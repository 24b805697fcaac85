// SPDX-License-Identifier: Apache-2.0
#include "search/checker/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "search/files/counted.h"
#include "search/placement/quantity.h"

namespace ostinato::checker {
namespace {

/// A step on one device.
struct Occupation {
  Nanoseconds start;
  Nanoseconds end;
  int block;
  int micro_batch;
};

std::vector<std::vector<Occupation>> occupations(const Timetable& table) {
  std::vector<std::vector<Occupation>> result(table.devices());
  for (int i = 0; i < table.micro_batches(); ++i) {
    for (int b = 0; b < table.blocks(); ++b) {
      for (const int d : table.block(b).devices) {
        result[d].push_back({table.start(b, i), table.end(b, i), b, i});
      }
    }
  }
  for (auto& steps : result) {
    std::sort(steps.begin(), steps.end(), [](const Occupation& x, const Occupation& y) {
      return x.start != y.start ? x.start < y.start : x.end < y.end;
    });
  }
  return result;
}

/// A block of no time may stand at the border of another, not inside it.
void check_devices(const Timetable& table, Report& report) {
  const auto by_device = occupations(table);
  for (int d = 0; d < table.devices(); ++d) {
    const Occupation* running = nullptr;  // the one with the latest end so far
    for (const Occupation& step : by_device[d]) {
      if (running != nullptr && step.start < running->end) {
        report.fail(fmt::format("{} runs {} from {} to {} ns, but {} starts there at {} ns, {} ns too early",
                                table.device_name(d), table.step_name(running->block, running->micro_batch),
                                running->start, running->end, table.step_name(step.block, step.micro_batch),
                                step.start, running->end - step.start));
      }
      if (running == nullptr || step.end > running->end) running = &step;
    }
  }
}

void check_dependencies(const Timetable& table, Report& report) {
  for (int b = 0; b < table.blocks(); ++b) {
    for (const Dependency& input : table.block(b).after) {
      const Wide transfer = transfer_time(table.placement(), input, table.block(b));
      for (int i = 0; i < table.micro_batches(); ++i) {
        const Wide arrival = table.end(input.block, i) + transfer;
        if (table.start(b, i) >= arrival) continue;
        report.fail(fmt::format("{} starts at {} ns, {} ns before its input from block '{}' arrives at {} ns",
                                table.step_name(b, i), table.start(b, i),
                                to_text(arrival - table.start(b, i)), table.block(input.block).name,
                                to_text(arrival)));
      }
    }
  }
}

/// A change of a device's memory. At one instant all that ends gives back before anything that starts takes.
struct MemoryChange {
  Nanoseconds at;
  bool take;
  Bytes bytes;  ///< > 0 where taken, < 0 where given back
  int block;
  int micro_batch;
};

/// The changes of every device, in order. The workspace of a block of no time is never in use: it runs at no
/// instant.
std::vector<std::vector<MemoryChange>> memory_changes(const Timetable& table) {
  std::vector<std::vector<MemoryChange>> result(table.devices());
  for (int i = 0; i < table.micro_batches(); ++i) {
    for (int b = 0; b < table.blocks(); ++b) {
      const Block& block = table.block(b);
      for (const int d : block.devices) {
        if (table.placement().devices[d].lane_of >= 0) continue;  // its device counts it
        auto& changes = result[d];
        if (block.memory > 0) changes.push_back({table.start(b, i), true, block.memory, b, i});
        if (block.memory < 0) changes.push_back({table.end(b, i), false, block.memory, b, i});
        if (block.workspace == 0 || block.time == 0) continue;
        changes.push_back({table.start(b, i), true, block.workspace, b, i});
        changes.push_back({table.end(b, i), false, -block.workspace, b, i});
      }
    }
  }
  for (auto& changes : result) {
    std::sort(changes.begin(), changes.end(), [](const MemoryChange& x, const MemoryChange& y) {
      if (x.at != y.at) return x.at < y.at;
      if (x.take != y.take) return y.take;
      return x.micro_batch != y.micro_batch ? x.micro_batch < y.micro_batch : x.block < y.block;
    });
  }
  return result;
}

/// Peak of one device; tells the first step that takes it over its capacity.
Wide peak_of(const Device& device, const std::vector<MemoryChange>& changes,
             const MemoryChange** first_over) {
  Wide used = device.static_memory;
  Wide peak = used;
  *first_over = nullptr;
  for (const MemoryChange& change : changes) {
    used += change.bytes;
    peak = std::max(peak, used);
    if (*first_over == nullptr && change.take && used > device.memory) *first_over = &change;
  }
  return peak;
}

void check_memory(const Timetable& table, Report& report) {
  const auto changes = memory_changes(table);
  for (int d = 0; d < table.devices(); ++d) {
    const Device& device = table.placement().devices[d];
    if (device.static_memory > device.memory) {
      report.fail(fmt::format("{} always holds {}, {} more than its {}", table.device_name(d),
                              format_memory(device.static_memory),
                              format_memory(device.static_memory - device.memory),
                              format_memory(device.memory)));
      continue;
    }
    const MemoryChange* over = nullptr;
    const Wide peak = peak_of(device, changes[d], &over);
    if (over == nullptr || device.memory == kUnlimited) continue;
    report.fail(fmt::format(
        "{} exceeds its {} from {} ns on, when {} starts there; at its peak it exceeds them by {}",
        table.device_name(d), format_memory(device.memory), over->at,
        table.step_name(over->block, over->micro_batch),
        format_memory(static_cast<Bytes>(std::min<Wide>(peak - device.memory, kUnlimited - 1)))));
  }
}

template <typename Check>
void run(const Timetable& table, Report& report, Check check, const char* what) {
  const std::size_t before = report.failures();
  if (report.full()) return;
  check(table, report);
  if (report.failures() == before) report.pass(what);
}

void expect_figure(Report& report, const std::string& what, const char* unit, std::int64_t claimed,
                   Wide actual) {
  if (claimed == actual) return report.pass(fmt::format("{} is {} {}", what, claimed, unit));
  report.fail(fmt::format("{} is {} {}, not {} as the plan says: {} {}", what, to_text(actual), unit, claimed,
                          to_text(actual > claimed ? actual - claimed : claimed - actual),
                          actual > claimed ? "more" : "less"));
}

}  // namespace

void check_schedule(const Timetable& table, Report& report) {
  run(table, report, check_devices, "every device runs one block at a time");
  run(table, report, check_dependencies, "every block starts after its inputs have arrived");
  run(table, report, check_memory, "no device ever exceeds its memory");
}

void check_listing(const Plan& plan, const Placement& placement, Report& report) {
  if (report.full()) return;
  const std::size_t before = report.failures();
  const auto block = [&](const ScheduledBlock& step) -> const Block& { return placement.blocks[step.block]; };
  const auto key = [&](const ScheduledBlock& step) {
    return std::tuple<Nanoseconds, int, std::string_view, int>(step.start, block(step).devices.front(),
                                                               block(step).name, step.micro_batch);
  };
  const auto name = [&](const ScheduledBlock& step) {
    return fmt::format("block '{}' of micro-batch {}", block(step).name, step.micro_batch);
  };
  for (std::size_t s = 1; s < plan.schedule.size(); ++s) {
    if (key(plan.schedule[s - 1]) <= key(plan.schedule[s])) continue;
    report.fail(
        fmt::format("{} is listed before {}; steps are listed by start, first device, name, micro-batch",
                    name(plan.schedule[s - 1]), name(plan.schedule[s])));
  }
  if (report.failures() == before)
    report.pass("the steps are listed by start, first device, name, micro-batch");
}

void check_figures(const Timetable& table, Report& report) {
  const Plan& plan = table.plan();
  Nanoseconds makespan = 0;
  for (int i = 0; i < table.micro_batches(); ++i) {
    for (int b = 0; b < table.blocks(); ++b) makespan = std::max(makespan, table.end(b, i));
  }
  expect_figure(report, "the makespan", "ns", plan.makespan, makespan);

  Nanoseconds span = 0;
  for (const auto& steps : occupations(table)) {
    Nanoseconds last = 0;
    for (const Occupation& step : steps) last = std::max(last, step.end);
    if (!steps.empty()) span = std::max(span, last - steps.front().start);
  }
  expect_figure(report, "the span", "ns", plan.span, span);

  if (plan.peak_memory.size() != table.placement().devices.size()) {
    report.fail(fmt::format("peak_memory has {}; the placement has {}",
                            counted(plan.peak_memory.size(), "entry"), counted(table.devices(), "device")));
    return;
  }
  const auto changes = memory_changes(table);
  for (int d = 0; d < table.devices(); ++d) {
    const std::size_t at = d;
    const MemoryChange* over = nullptr;
    expect_figure(report, "the peak memory of " + table.device_name(d) + " in the schedule", "bytes",
                  plan.peak_memory[at], peak_of(table.placement().devices[at], changes[at], &over));
  }
  for (std::size_t d = 0; plan.capacity && d < plan.peak_memory.size(); ++d) {
    if (plan.peak_memory[d] <= plan.capacity->memory) continue;
    report.fail(fmt::format("peak_memory of device {} is {} bytes, above capacity.memory of {}", d,
                            plan.peak_memory[d], plan.capacity->memory));
  }
}

Nanoseconds latency_of(const Timetable& table) {
  Nanoseconds longest = 0;
  for (int i = 0; i < table.micro_batches(); ++i) {
    Nanoseconds first = table.start(0, i), last = 0;
    for (int b = 0; b < table.blocks(); ++b) {
      first = std::min(first, table.start(b, i));
      last = std::max(last, table.end(b, i));
    }
    longest = std::max(longest, last - first);
  }
  return longest;
}

}  // namespace ostinato::checker
