// SPDX-License-Identifier: Apache-2.0
#include "search/show/repetend_spans.h"

#include <algorithm>
#include <limits>

namespace ostinato {
namespace {

/// Starts of one block that are a period apart.
struct Series {
  Nanoseconds first = 0, last = 0;
  Nanoseconds time = 0;  ///< of the block
};

/// Start of each block and micro-batch: starts[block][micro_batch].
std::vector<std::vector<Nanoseconds>> starts_of(const Plan& plan, const Placement& placement) {
  std::vector<std::vector<Nanoseconds>> starts(placement.blocks.size(),
                                               std::vector<Nanoseconds>(plan.micro_batches));
  for (const ScheduledBlock& s : plan.schedule) starts[s.block][s.micro_batch] = s.start;
  return starts;
}

/// The longest series around the micro-batch `within`.
Series series_around(const std::vector<Nanoseconds>& starts, int within, const SteadyState& steady) {
  const int count = static_cast<int>(starts.size());
  const auto repeats = [&](int i) { return starts[i + steady.unroll] == starts[i] + steady.period; };
  int low = within, high = within;
  while (low >= steady.unroll && repeats(low - steady.unroll)) low -= steady.unroll;
  while (high + steady.unroll < count && repeats(high)) high += steady.unroll;
  return {starts[low], starts[high], 0};
}

RepetendSpan span_of(const std::vector<Series>& all, Nanoseconds period) {
  Nanoseconds latest_first = 0, horizon = std::numeric_limits<Nanoseconds>::max();
  for (const Series& series : all) {
    latest_first = std::max(latest_first, series.first);
    horizon = std::min(horizon, series.last + period);
  }
  // Each window of a period's length that begins after `latest_first - period` and ends by `horizon` holds
  // one start of every series.
  if (all.empty() || horizon < latest_first) return {};
  RepetendSpan span{std::numeric_limits<Nanoseconds>::max(), 0, 0};
  for (const Series& series : all) {
    const Nanoseconds skipped = (latest_first - series.first) / period * period;
    span.begin = std::min(span.begin, series.first + skipped);
    const Nanoseconds periods = (horizon - 1 - series.first) / period;
    span.end = std::max(span.end, series.first + periods * period + series.time);
  }
  span.count = static_cast<int>((horizon - span.begin) / period);
  return span.count > 0 ? span : RepetendSpan{};
}

}  // namespace

std::vector<RepetendSpan> repetend_spans(const Plan& plan, const Placement& placement) {
  std::vector<RepetendSpan> spans(placement.devices.size());
  const SteadyState& steady = plan.steady_state;
  if (steady.count <= 0 || steady.period <= 0) return spans;
  const auto starts = starts_of(plan, placement);
  std::vector<std::vector<Series>> by_device(placement.devices.size());
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    for (int r = 0; r < steady.unroll; ++r) {
      Series series = series_around(starts[b], steady.first + r, steady);
      series.time = placement.blocks[b].time;
      for (const int d : placement.blocks[b].devices) by_device[d].push_back(series);
    }
  }
  for (std::size_t d = 0; d < spans.size(); ++d) spans[d] = span_of(by_device[d], steady.period);
  return spans;
}

}  // namespace ostinato
