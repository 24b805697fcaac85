// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the parts of the checker (checker.h) share: a report, and the starts of a plan by block and
// micro-batch. Nothing here is shared with the search but the placement and plan types.
//
//   Report report;
//   const Timetable table(plan, placement, report);   // every (block, micro-batch) once, with a start
//   if (!table.complete()) return report.take();      // says which step is missing or doubled

#include <string>
#include <vector>

#include "search/checker/checker.h"

namespace ostinato::checker {

/// Sums that int64 may not hold.
__extension__ using Wide = __int128;

std::string to_text(Wide value);

/// Collects failures up to a limit, and what holds.
class Report {
 public:
  static constexpr std::size_t kMaxFailures = 20;

  void fail(const std::string& message);
  void pass(const std::string& message);
  bool full() const { return result_.failures.size() >= kMaxFailures; }
  std::size_t failures() const { return result_.failures.size(); }
  CheckResult take() { return std::move(result_); }

 private:
  CheckResult result_;
};

/// The starts of a schedule by block and micro-batch. Reports each step that is missing, doubled, out of
/// range, or ends beyond int64; complete() only without any of these. O(steps log steps), whatever the plan
/// claims as N.
class Timetable {
 public:
  /// `of_blocks` > 0: the placement is unrolled() from this many blocks; messages name those and their
  /// micro-batches.
  Timetable(const Plan& plan, const Placement& placement, Report& report, int of_blocks = 0);

  bool complete() const { return complete_; }
  int blocks() const { return static_cast<int>(placement_.blocks.size()); }
  int devices() const { return static_cast<int>(placement_.devices.size()); }
  int micro_batches() const { return plan_.micro_batches; }
  const Plan& plan() const { return plan_; }
  const Placement& placement() const { return placement_; }
  const Block& block(int b) const { return placement_.blocks[b]; }

  Nanoseconds start(int block, int micro_batch) const {
    return starts_[static_cast<std::size_t>(micro_batch) * placement_.blocks.size() + block];
  }
  Nanoseconds end(int b, int micro_batch) const { return start(b, micro_batch) + block(b).time; }

  /// "block 'x' of micro-batch 3"
  std::string step_name(int block, int micro_batch) const;
  /// "device 2 ('gpu2')"
  std::string device_name(int device) const;

 private:
  bool check_range(const ScheduledBlock& step, Report& report) const;
  void check_every_step_once(Report& report) const;

  const Plan& plan_;
  const Placement& placement_;
  int of_blocks_;
  std::vector<Nanoseconds> starts_;
  bool complete_ = false;
};

/// Nanoseconds from the end of `input` to the earliest start of `block` (docs/formats.md, "Meaning"). In 128
/// bits: no saturation.
Wide transfer_time(const Placement& placement, const Dependency& input, const Block& block);

}  // namespace ostinato::checker
