#include "search/incumbent.h"

#include <algorithm>
#include <utility>

#include "search/shift.h"

namespace ostinato {

Orders split_by_device(const Instance& in, const std::vector<int>& sequence) {
  Orders orders(static_cast<std::size_t>(in.devices()));
  std::vector<int> count(static_cast<std::size_t>(in.blocks()), 0);
  for (const int b : sequence) {
    const Step step{b, count[b]++};
    for (const int d : in.devices_of(b)) orders[d].push_back(step);
  }
  return orders;
}

bool Incumbent::offer(const std::vector<int>& sequence, const std::string& method) {
  std::vector<ScheduledBlock> schedule = as_early_as_possible(in_, micro_batches_, sequence);
  if (schedule.empty()) return offer(split_by_device(in_, sequence), method);
  if (objective_ == Objective::span) schedule = as_late_as_possible(in_, micro_batches_, schedule);
  return offer(std::move(schedule), method);
}

bool Incumbent::offer(const Orders& orders, const std::string& method) {
  auto schedule = earliest_starts(in_.placement(), micro_batches_, orders);
  if (!schedule) return false;
  if (objective_ == Objective::span) schedule = as_late_as_possible(in_, micro_batches_, *schedule);
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
  if (score.objective > score_.objective) return false;
  std::vector<Bytes> peaks = peak_memory(p, schedule);
  for (std::size_t d = 0; d < peaks.size(); ++d) {
    if (peaks[d] > p.devices[d].memory) return false;
    score.memory += peaks[d];
  }
  if (score >= score_) return false;
  score_ = score;
  sort_schedule(p, schedule);
  schedule_ = std::move(schedule);
  peaks_ = std::move(peaks);
  method_ = method;
  return true;
}

}  // namespace ostinato
