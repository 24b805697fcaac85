// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/progress.h"

#include <fmt/format.h>

#include "bindings/core/plan_summary.h"
#include "search/placement/quantity.h"

namespace ostinato::cli {

ProgressLine::~ProgressLine() {
  if (shown_) io_.err << "\r\x1b[K" << std::flush;
}

void ProgressLine::show(const Progress& progress) {
  if (!io_.err_is_terminal) return;
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && now - drawn_ < std::chrono::milliseconds(100)) return;
  io_.err << fmt::format("\r\x1b[K{}{:.1f} s  {}: best {}, bound {}, gap {}",
                         label_.empty() ? "" : label_ + "  ", progress.seconds, progress.phase,
                         format_time(progress.best), format_time(progress.bound),
                         gap(progress.best, progress.bound))
          << std::flush;
  drawn_ = now;
  shown_ = true;
}

}  // namespace ostinato::cli
