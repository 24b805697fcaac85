// SPDX-License-Identifier: Apache-2.0
#include "search/plan/orders.h"

#include <algorithm>
#include <numeric>

namespace ostinato {
namespace {

/// Blocks in the order in which equal starts are listed: by first device, then name. rank[b] is b's place in
/// it.
std::vector<int> listing_ranks(const Placement& placement) {
  std::vector<int> order(placement.blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const Block& x = placement.blocks[a];
    const Block& y = placement.blocks[b];
    if (x.devices.front() != y.devices.front()) return x.devices.front() < y.devices.front();
    return x.name < y.name;
  });
  std::vector<int> rank(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<int>(i);
  return rank;
}

/// Runs the steps of `orders` as soon as they stand at the head of all their devices and their inputs have
/// arrived.
class Relaxation {
 public:
  Relaxation(const Placement& placement, int micro_batches, const Orders& orders)
      : placement_(placement), orders_(orders), blocks_(placement.blocks.size()) {
    const std::size_t steps = blocks_ * micro_batches;
    start_.assign(steps, 0);
    waiting_.resize(steps);
    followers_.resize(blocks_);
    for (std::size_t b = 0; b < blocks_; ++b) {
      for (const Dependency& input : placement.blocks[b].after) {
        followers_[input.block].push_back(
            {static_cast<int>(b), placement.transfer(input, static_cast<int>(b))});
      }
    }
    for (std::size_t s = 0; s < steps; ++s) {
      waiting_[s] = static_cast<int>(placement.blocks[s % blocks_].after.size());
    }
    position_.assign(placement.devices.size(), 0);
    free_.assign(placement.devices.size(), 0);
  }

  /// False if some step can never run.
  bool run() {
    for (std::size_t d = 0; d < position_.size(); ++d) pending_.push_back(static_cast<int>(d));
    while (!pending_.empty()) {
      const int device = pending_.back();
      pending_.pop_back();
      while (run_head(device)) {
      }
    }
    return done_ == start_.size();
  }

  const std::vector<Nanoseconds>& starts() const { return start_; }

 private:
  struct Follower {
    int block;
    Nanoseconds transfer;
  };

  std::size_t index(const Step& step) const {
    return static_cast<std::size_t>(step.micro_batch) * blocks_ + step.block;
  }

  bool at_head(const Step& step, int device) const {
    return position_[device] < orders_[device].size() && orders_[device][position_[device]] == step;
  }

  bool run_head(int device) {
    if (position_[device] == orders_[device].size()) return false;
    const Step step = orders_[device][position_[device]];
    const std::size_t s = index(step);
    const Block& block = placement_.blocks[step.block];
    if (waiting_[s] != 0) return false;
    for (const int d : block.devices) {
      if (!at_head(step, d)) return false;
    }
    for (const int d : block.devices) start_[s] = std::max(start_[s], free_[d]);
    const Nanoseconds end = start_[s] + block.time;
    for (const int d : block.devices) {
      free_[d] = end;
      ++position_[d];
      if (d != device) pending_.push_back(d);
    }
    release_followers(step, end);
    ++done_;
    return true;
  }

  void release_followers(const Step& step, Nanoseconds end) {
    for (const Follower& f : followers_[step.block]) {
      const std::size_t s = index({f.block, step.micro_batch});
      start_[s] = std::max(start_[s], end + f.transfer);
      if (--waiting_[s] == 0) pending_.push_back(placement_.blocks[f.block].devices.front());
    }
  }

  const Placement& placement_;
  const Orders& orders_;
  std::size_t blocks_;
  std::vector<Nanoseconds> start_;  ///< per step: until it runs, when its last input known so far arrives
  std::vector<int> waiting_;        ///< per step: inputs that have not run
  std::vector<std::vector<Follower>> followers_;
  std::vector<std::size_t> position_;  ///< per device: next step in its order
  std::vector<Nanoseconds> free_;      ///< per device: end of its last step
  std::vector<int> pending_;           ///< devices whose head may have become ready
  std::size_t done_ = 0;
};

/// The longest distance from the first start to the last end within a group of steps.
class Extents {
 public:
  explicit Extents(std::size_t groups)
      : first_(groups, std::numeric_limits<Nanoseconds>::max()), last_(groups, 0) {}
  void add(std::size_t group, Nanoseconds start, Nanoseconds end) {
    first_[group] = std::min(first_[group], start);
    last_[group] = std::max(last_[group], end);
  }
  Nanoseconds longest() const {
    Nanoseconds longest = 0;
    for (std::size_t g = 0; g < first_.size(); ++g) {
      if (first_[g] <= last_[g]) longest = std::max(longest, last_[g] - first_[g]);
    }
    return longest;
  }

 private:
  std::vector<Nanoseconds> first_;
  std::vector<Nanoseconds> last_;
};

/// A change of a device's memory at an instant.
struct MemoryEvent {
  Nanoseconds at;
  Bytes change;
};

Bytes peak_of_events(std::vector<MemoryEvent>& events, Bytes static_memory) {
  std::sort(events.begin(), events.end(), [](const MemoryEvent& a, const MemoryEvent& b) {
    return a.at != b.at ? a.at < b.at : a.change < b.change;
  });
  Bytes now = static_memory;
  Bytes peak = static_memory;
  for (const MemoryEvent& event : events) {
    now += event.change;
    peak = std::max(peak, now);
  }
  return peak;
}

}  // namespace

std::optional<std::vector<ScheduledBlock>> earliest_starts(const Placement& placement, int micro_batches,
                                                           const Orders& orders) {
  Relaxation relaxation(placement, micro_batches, orders);
  if (!relaxation.run()) return std::nullopt;
  std::vector<ScheduledBlock> schedule;
  schedule.reserve(relaxation.starts().size());
  const std::size_t blocks = placement.blocks.size();
  for (std::size_t s = 0; s < relaxation.starts().size(); ++s) {
    schedule.push_back({static_cast<int>(s % blocks), static_cast<int>(s / blocks), relaxation.starts()[s]});
  }
  sort_schedule(placement, schedule);
  return schedule;
}

std::vector<Bytes> peak_memory(const Placement& placement, const std::vector<ScheduledBlock>& schedule) {
  std::vector<std::vector<MemoryEvent>> events(placement.devices.size());
  for (const ScheduledBlock& step : schedule) {
    const Block& block = placement.blocks[step.block];
    const Nanoseconds end = step.start + block.time;
    for (const int d : block.devices) {
      if (placement.devices[d].lane_of >= 0) continue;  // lanes.h
      if (block.memory > 0) events[d].push_back({step.start, block.memory});
      if (block.memory < 0) events[d].push_back({end, block.memory});
      if (block.workspace > 0 && block.time > 0) {
        events[d].push_back({step.start, block.workspace});
        events[d].push_back({end, -block.workspace});
      }
    }
  }
  std::vector<Bytes> peaks;
  for (std::size_t d = 0; d < events.size(); ++d) {
    peaks.push_back(peak_of_events(events[d], placement.devices[d].static_memory));
  }
  return peaks;
}

Orders orders_of(const Placement& placement, const std::vector<ScheduledBlock>& schedule) {
  const std::vector<int> topological = topological_order(placement);
  std::vector<int> rank(topological.size());
  for (std::size_t i = 0; i < topological.size(); ++i) rank[topological[i]] = static_cast<int>(i);
  std::vector<ScheduledBlock> sorted = schedule;
  std::sort(sorted.begin(), sorted.end(), [&](const ScheduledBlock& a, const ScheduledBlock& b) {
    if (a.start != b.start) return a.start < b.start;
    const Nanoseconds a_time = placement.blocks[a.block].time;
    const Nanoseconds b_time = placement.blocks[b.block].time;
    if ((a_time == 0) != (b_time == 0)) return a_time == 0;
    if (a.block != b.block) return rank[a.block] < rank[b.block];
    return a.micro_batch < b.micro_batch;
  });
  Orders orders(placement.devices.size());
  for (const ScheduledBlock& step : sorted) {
    for (const int d : placement.blocks[step.block].devices)
      orders[d].push_back({step.block, step.micro_batch});
  }
  return orders;
}

void sort_schedule(const Placement& placement, std::vector<ScheduledBlock>& schedule) {
  const std::vector<int> rank = listing_ranks(placement);
  std::sort(schedule.begin(), schedule.end(), [&](const ScheduledBlock& a, const ScheduledBlock& b) {
    if (a.start != b.start) return a.start < b.start;
    if (a.block != b.block) return rank[a.block] < rank[b.block];
    return a.micro_batch < b.micro_batch;
  });
}

Nanoseconds makespan_of(const Placement& placement, const std::vector<ScheduledBlock>& schedule) {
  Nanoseconds last = 0;
  for (const ScheduledBlock& step : schedule)
    last = std::max(last, step.start + placement.blocks[step.block].time);
  return last;
}

Nanoseconds span_of(const Placement& placement, const std::vector<ScheduledBlock>& schedule) {
  Extents extents(placement.devices.size());
  for (const ScheduledBlock& step : schedule) {
    const Block& block = placement.blocks[step.block];
    for (const int d : block.devices) extents.add(d, step.start, step.start + block.time);
  }
  return extents.longest();
}

Nanoseconds latency_of(const Placement& placement, const std::vector<ScheduledBlock>& schedule) {
  int micro_batches = 0;
  for (const ScheduledBlock& step : schedule) micro_batches = std::max(micro_batches, step.micro_batch + 1);
  Extents extents(micro_batches);
  for (const ScheduledBlock& step : schedule) {
    extents.add(step.micro_batch, step.start, step.start + placement.blocks[step.block].time);
  }
  return extents.longest();
}

Nanoseconds objective_value(Objective objective, const Placement& placement,
                            const std::vector<ScheduledBlock>& schedule) {
  switch (objective) {
    case Objective::makespan:
      return makespan_of(placement, schedule);
    case Objective::span:
      return span_of(placement, schedule);
    case Objective::latency:
      return latency_of(placement, schedule);
  }
  return 0;
}

}  // namespace ostinato
