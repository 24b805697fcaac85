#include "bindings/cli/progress.h"

#include <fmt/format.h>

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

std::string gap(Nanoseconds value, Nanoseconds bound) {
  if (bound <= 0) return value <= bound ? "0 %" : "unknown";
  const __int128 hundredths = (static_cast<__int128>(value) - bound) * 10000 / bound;
  std::string text = fmt::format("{:.2f}", static_cast<double>(hundredths) / 100);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " %";
}

}  // namespace ostinato::cli
