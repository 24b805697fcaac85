// SPDX-License-Identifier: Apache-2.0
#pragma once
// The best schedule so far.

#include <string>
#include <vector>

#include "search/bounds/bounds.h"
#include "search/placement/instance.h"
#include "search/plan/orders.h"
#include "search/plan/plan.h"

namespace ostinato {

/// What is compared, first to last: the objective, then makespan, total peak memory, span.
struct Score {
  Nanoseconds objective = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds makespan = 0;
  __int128 memory = 0;
  Nanoseconds span = 0;

  friend auto operator<=>(const Score&, const Score&) = default;
};

/// Where `more` > 0, offers are schedules of `micro_batches` whose steady state is to be repeated for this
/// many more: only those with one are taken, and the score is what they become (stretch.h).
class Incumbent {
 public:
  Incumbent(const Instance& instance, int micro_batches, Objective objective, int more = 0)
      : in_(instance), micro_batches_(micro_batches), more_(more), objective_(objective) {}

  /// Takes the schedule of these orders if it exists, fits the memory and is better. True if it was taken.
  bool offer(const Orders& orders, const std::string& method);
  /// The same for one sequence of blocks in which the i-th mention of a block is its micro-batch i.
  bool offer(const std::vector<int>& sequence, const std::string& method);
  /// The same for a schedule, keeping its starts.
  bool offer(std::vector<ScheduledBlock> schedule, const std::string& method);

  /// The best becomes a schedule of all micro-batches, and so are further offers.
  void repeat();

  bool empty() const { return schedule_.empty(); }
  const Score& score() const { return score_; }
  const std::vector<ScheduledBlock>& schedule() const { return schedule_; }
  /// The blocks by start, inputs first; the i-th mention of a block is its micro-batch i.
  std::vector<int> sequence() const;
  const std::vector<Bytes>& peaks() const { return peaks_; }
  const std::string& method() const { return method_; }

 private:
  bool may_fit(const Orders& orders) const;
  void count_what_adds_up();
  bool add_repetition(Score& score, const std::vector<ScheduledBlock>& schedule, SteadyState& steady) const;

  const Instance& in_;
  int micro_batches_;
  int more_;
  Objective objective_;
  Score score_;
  SteadyState steady_;  ///< of schedule_; only where more_ > 0
  std::vector<ScheduledBlock> schedule_;
  std::vector<Bytes> peaks_;
  std::string method_;
};

/// One sequence of blocks as per-device orders.
Orders split_by_device(const Instance& instance, const std::vector<int>& sequence);

}  // namespace ostinato
