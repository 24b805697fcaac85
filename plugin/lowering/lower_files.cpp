// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/lengthen.h"
#include "plugin/lowering/lower.h"
#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/files/sha256.h"
#include "search/named/named.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"

namespace ostinato {
namespace {

Nanoseconds one_f_one_b(const Placement& placement, int micro_batches) {
  for (const char* name : {"1f1b", "interleaved-1f1b"}) {
    const NamedSchedule named = named_schedule(name, placement, micro_batches);
    if (!named.orders) continue;
    const auto schedule = earliest_starts(placement, micro_batches, *named.orders);
    if (schedule) return makespan_of(placement, *schedule);
  }
  return 0;
}

}  // namespace

Program lower_files(const std::filesystem::path& plan_path, const std::filesystem::path& placement_path,
                    int micro_batches) {
  const auto [file, plan, placement] = read_plan_and_placement(plan_path, placement_path);
  refuse_unless_it_runs(plan, file.placement, plan_path.string(), placement_path.string());
  Program program = lower(lengthened(plan, file.placement, micro_batches), file.placement);
  program.plan_sha256 = sha256(read_file(plan_path, kMaxPlanBytes));
  program.placement_sha256 = file.sha256;
  program.one_f_one_b = one_f_one_b(placement, plan.micro_batches);
  return program;
}

}  // namespace ostinato
