// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/incumbent.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "search/bounds/feasible.h"
#include "search/schedule/shift.h"
#include "search/schedule/steady.h"
#include "search/schedule/stretch.h"

namespace ostinato {

Orders split_by_device(const Instance& in, const std::vector<int>& sequence) {
  Orders orders(in.devices());
  std::vector<int> count(in.blocks(), 0);
  for (const int b : sequence) {
    const Step step{b, count[b]++};
    for (const int d : in.devices_of(b)) orders[d].push_back(step);
  }
  return orders;
}

bool Incumbent::offer(const std::vector<int>& sequence, const std::string& method) {
  std::vector<ScheduledBlock> schedule = as_early_as_possible(in_, micro_batches_, sequence);
  if (schedule.empty()) return offer(split_by_device(in_, sequence), method);
  if (objective_ == Objective::span) {
    schedule = as_late_as_possible(in_, micro_batches_, std::move(schedule));
  }
  return offer(std::move(schedule), method);
}

/// False where some device's order needs more memory than it has, which costs less to see than its schedule.
bool Incumbent::may_fit(const Orders& orders) const {
  const Placement& p = in_.placement();
  for (int d = 0; d < in_.devices(); ++d) {
    if (!in_.limited(d)) continue;
    __int128 used = p.devices[d].static_memory;
    for (const Step& step : orders[d]) {
      const Block& block = p.blocks[step.block];
      if (block.time == 0) break;  // it may run at the same instant as what stands beside it
      if (used + std::max<Bytes>(0, block.memory) + block.workspace > p.devices[d].memory) return false;
      used += block.memory;
    }
  }
  return true;
}

bool Incumbent::offer(const Orders& orders, const std::string& method) {
  if (!may_fit(orders)) return false;
  auto schedule = earliest_starts(in_.placement(), micro_batches_, orders);
  if (!schedule) return false;
  if (objective_ == Objective::span) {
    sort_as_run(in_, *schedule);
    schedule = as_late_as_possible(in_, micro_batches_, std::move(*schedule));
  }
  return offer(std::move(*schedule), method);
}

bool Incumbent::offer(std::vector<ScheduledBlock> schedule, const std::string& method) {
  const Placement& p = in_.placement();
  Score score;
  score.makespan = makespan_of(p, schedule);
  score.span = span_of(p, schedule);
  score.objective = objective_ == Objective::makespan ? score.makespan
                    : objective_ == Objective::span   ? score.span
                                                      : latency_of(p, schedule);
  SteadyState steady;
  if (more_ > 0 && !add_repetition(score, schedule, steady)) return false;
  if (score.objective > score_.objective) return false;
  std::vector<Bytes> peaks = peak_memory(p, schedule);
  for (std::size_t d = 0; d < peaks.size(); ++d) {
    if (peaks[d] > p.devices[d].memory) return false;
    score.memory += peaks[d];
  }
  if (score >= score_) return false;
  score_ = score;
  steady_ = steady;
  sort_schedule(p, schedule);
  schedule_ = std::move(schedule);
  peaks_ = std::move(peaks);
  method_ = method;
  return true;
}

/// False if the schedule cannot be repeated for more_ micro-batches.
bool Incumbent::add_repetition(Score& score, const std::vector<ScheduledBlock>& schedule,
                               SteadyState& steady) const {
  steady = find_steady_state(in_, micro_batches_, schedule);
  if (steady.count == 0 || more_ % steady.unroll != 0) return false;
  const Nanoseconds longer = more_ / steady.unroll * steady.period;
  score.makespan += longer;
  score.span += longer;
  if (objective_ != Objective::latency) score.objective += longer;
  return true;
}

void Incumbent::repeat() {
  if (more_ > 0 && !empty()) {
    schedule_ = stretch(in_, schedule_, steady_, more_ / steady_.unroll);
    count_what_adds_up();
  }
  micro_batches_ += std::exchange(more_, 0);
}

/// Where memory is not limited, each of the micro-batches that were added may leave some of it behind.
void Incumbent::count_what_adds_up() {
  bool adds_up = false;
  for (int d = 0; d < in_.devices(); ++d) adds_up = adds_up || left_behind(in_, d) != 0;
  if (!adds_up) return;
  peaks_ = peak_memory(in_.placement(), schedule_);
  score_.memory = 0;
  for (const Bytes peak : peaks_) score_.memory += peak;
}

std::vector<int> Incumbent::sequence() const {
  std::vector<ScheduledBlock> steps = schedule_;
  // What takes no time runs before what starts with it, and inputs run first.
  const auto place = [this](const ScheduledBlock& s) {
    return std::tuple(s.start, in_.time(s.block) > 0, in_.rank(s.block));
  };
  std::stable_sort(steps.begin(), steps.end(),
                   [&](const ScheduledBlock& a, const ScheduledBlock& b) { return place(a) < place(b); });
  std::vector<int> sequence;
  for (const ScheduledBlock& step : steps) sequence.push_back(step.block);
  return sequence;
}

}  // namespace ostinato
