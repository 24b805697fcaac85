// SPDX-License-Identifier: Apache-2.0
#include "search/checker/timetable.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "search/files/counted.h"
#include "search/files/printable.h"

namespace ostinato::checker {
namespace {

constexpr Nanoseconds kLargest = std::numeric_limits<Nanoseconds>::max();

/// Order and identity of a step without its start.
bool by_step(const ScheduledBlock& a, const ScheduledBlock& b) {
  return a.micro_batch != b.micro_batch ? a.micro_batch < b.micro_batch : a.block < b.block;
}

bool same_step(const ScheduledBlock& a, const ScheduledBlock& b) {
  return a.block == b.block && a.micro_batch == b.micro_batch;
}

}  // namespace

std::string to_text(Wide value) {
  const bool negative = value < 0;
  std::string digits;
  if (negative) value = -value;
  for (; digits.empty() || value > 0; value /= 10)
    digits.push_back(static_cast<char>('0' + static_cast<int>(value % 10)));
  if (negative) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

void Report::fail(const std::string& message) {
  if (!full()) result_.failures.push_back(printable(message));
}

void Report::pass(const std::string& message) { result_.passed.push_back(printable(message)); }

Timetable::Timetable(const Plan& plan, const Placement& placement, Report& report, int of_blocks)
    : plan_(plan), placement_(placement), of_blocks_(of_blocks) {
  const std::size_t before = report.failures();
  if (plan.micro_batches < 1)
    report.fail(fmt::format("a plan needs at least one micro-batch, not {}", plan.micro_batches));
  for (const ScheduledBlock& step : plan.schedule) {
    if (!check_range(step, report) && report.full()) return;
  }
  if (report.failures() != before) return;
  check_every_step_once(report);
  if (report.failures() != before) return;
  complete_ = true;
  starts_.resize(plan.schedule.size());
  for (const ScheduledBlock& step : plan.schedule) {
    starts_[static_cast<std::size_t>(step.micro_batch) * placement.blocks.size() + step.block] = step.start;
  }
  report.pass(fmt::format("{}, {}: each block runs exactly once for each micro-batch",
                          counted(of_blocks > 0 ? of_blocks : blocks(), "block"),
                          counted(of_blocks > 0 ? blocks() / of_blocks : micro_batches(), "micro-batch")));
}

bool Timetable::check_range(const ScheduledBlock& step, Report& report) const {
  if (step.block < 0 || step.block >= blocks()) {
    report.fail(
        fmt::format("a step names block {}; the placement has {}", step.block, counted(blocks(), "block")));
    return false;
  }
  if (step.micro_batch < 0 || step.micro_batch >= micro_batches()) {
    report.fail(fmt::format("{} is listed, but the micro-batches are 0 to {}",
                            step_name(step.block, step.micro_batch), micro_batches() - 1));
    return false;
  }
  if (step.start < 0) {
    report.fail(
        fmt::format("{} starts at {} ns, before 0", step_name(step.block, step.micro_batch), step.start));
    return false;
  }
  if (step.start > kLargest - block(step.block).time) {
    report.fail(fmt::format("{} starts at {} ns and ends beyond 2^63 ns",
                            step_name(step.block, step.micro_batch), step.start));
    return false;
  }
  return true;
}

void Timetable::check_every_step_once(Report& report) const {
  std::vector<ScheduledBlock> steps = plan_.schedule;
  std::sort(steps.begin(), steps.end(), by_step);
  auto at = steps.begin();
  for (int i = 0; i < micro_batches() && !report.full(); ++i) {
    for (int b = 0; b < blocks() && !report.full(); ++b) {
      const ScheduledBlock wanted{b, i, 0};
      const auto next =
          std::find_if_not(at, steps.end(), [&](const ScheduledBlock& s) { return same_step(s, wanted); });
      if (next == at) report.fail(step_name(b, i) + " is missing");
      if (next - at > 1)
        report.fail(fmt::format("{} is listed {}", step_name(b, i), counted(next - at, "time")));
      at = next;
    }
  }
}

std::string Timetable::step_name(int block, int micro_batch) const {
  const std::string& name = this->block(block).name;
  if (of_blocks_ == 0) return fmt::format("block '{}' of micro-batch {}", name, micro_batch);
  return fmt::format("block '{}' of micro-batch {}", name.substr(0, name.rfind('#')), block / of_blocks_);
}

std::string Timetable::device_name(int device) const {
  return fmt::format("device {} ('{}')", device, placement_.devices[device].name);
}

Wide transfer_time(const Placement& placement, const Dependency& input, const Block& block) {
  const std::vector<int>& sources = placement.blocks[input.block].devices;
  Wide slowest = 0;
  for (const int to : block.devices) {
    if (std::find(sources.begin(), sources.end(), to) != sources.end()) continue;
    Wide quickest = -1;
    for (const int from : sources) {
      const auto override = placement.links.find({from, to});
      const Link& link = override == placement.links.end() ? placement.link : override->second;
      Wide time = link.latency;
      if (link.bytes_per_second > 0) {
        const Wide scaled = static_cast<Wide>(input.bytes) * 1'000'000'000;
        time += scaled / link.bytes_per_second + (scaled % link.bytes_per_second != 0 ? 1 : 0);
      }
      if (quickest < 0 || time < quickest) quickest = time;
    }
    slowest = std::max(slowest, quickest);
  }
  return slowest;
}

}  // namespace ostinato::checker
