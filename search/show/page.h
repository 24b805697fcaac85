// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page that show_html() puts together: one file without references outside itself. Its parts lie in
// page/, and the build makes texts of them (cmake/EmbedText.cmake).

#include <string_view>

namespace ostinato {

/// Stand in kShowPage where title, styles, data and script belong.
inline constexpr std::string_view kShowPageTitle = "@TITLE@";
inline constexpr std::string_view kShowPageStyle = "@STYLE@";
inline constexpr std::string_view kShowPageData = "@DATA@";
inline constexpr std::string_view kShowPageScript = "@SCRIPT@";

/// page/page.html, page/page.css, and the .js files, one after another. The data is, times in ns and memory
/// in bytes,
///   { plans: [{ title, name, micro_batches, makespan, bound, period, unroll, optimal, method, objective,
///       shared, on_shared_cores,           makespan where devices share processors, else 0; the same as text
///       baselines: [{ name, makespan, shared, measured, fits }],
///       devices: [{ name, memory, static, peak, busy, lane, row, repetend }],  memory: null where unlimited;
///                                          repetend: null, or [begin, end, count] (repetend_spans.h)
///       blocks: [{ name, stage, kind, chunk, devices, time, memory, workspace,
///                  after: [[block, bytes, [[from, to, time], ...]], ...] }],      between devices (routes.h)
///       steps: [[block, micro_batch, start], ...],
///       critical: [[block, micro_batch, why, device, transfer, idle, missing], ...],   as CriticalStep
///       words: ["The critical chain ...", ...] }],                                     as explain(), behind
///       held_up_by_cores()
///     measured: null, or
///       { ranks, devices: [[[action, stage, micro_batch, planned_start, start, end], ...]] }
///   }
extern const std::string_view kShowPage;
extern const std::string_view kShowStyle;
extern const std::string_view kShowScript;

}  // namespace ostinato
