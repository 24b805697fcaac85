// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page that show_html() fills in: one file without references outside itself.

#include <string_view>

namespace ostinato {

/// Stands in kShowPage where the title and the JSON of the plan belong.
inline constexpr std::string_view kShowPageTitle = "@TITLE@";
inline constexpr std::string_view kShowPagePlan = "@PLAN@";

/// HTML, CSS and script. The plan is
///   { name, micro_batches, makespan, bound, period, unroll, optimal, method, objective,
///     devices: [{ name, memory, static, peak, busy }],            bytes; memory null: unlimited; busy in ns
///     blocks:  [{ name, stage, kind, chunk, devices, time, memory, workspace }],     time in ns
///     steps:   [[block, micro_batch, start], ...] }               start in ns
extern const std::string_view kShowPage;

}  // namespace ostinato
