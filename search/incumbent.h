#pragma once
// The best schedule so far.

#include <string>
#include <vector>

#include "search/bounds.h"
#include "search/instance.h"
#include "search/orders.h"
#include "search/plan.h"

namespace ostinato {

/// What is compared, first to last: the objective, then makespan, total peak memory, span.
struct Score {
  Nanoseconds objective = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds makespan = 0;
  __int128 memory = 0;
  Nanoseconds span = 0;

  friend auto operator<=>(const Score&, const Score&) = default;
};

class Incumbent {
 public:
  Incumbent(const Instance& instance, int micro_batches, Objective objective)
      : in_(instance), micro_batches_(micro_batches), objective_(objective) {}

  /// Takes the schedule of these orders if it exists, fits the memory and is better. True if it was taken.
  bool offer(const Orders& orders, const std::string& method);
  /// The same for one sequence of blocks in which the i-th mention of a block is its micro-batch i.
  bool offer(const std::vector<int>& sequence, const std::string& method);
  /// The same for a schedule whose starts are to be kept.
  bool offer(std::vector<ScheduledBlock> schedule, const std::string& method);

  bool empty() const { return schedule_.empty(); }
  const Score& score() const { return score_; }
  const std::vector<ScheduledBlock>& schedule() const { return schedule_; }
  const std::vector<Bytes>& peaks() const { return peaks_; }
  const std::string& method() const { return method_; }

 private:
  const Instance& in_;
  int micro_batches_;
  Objective objective_;
  Score score_;
  std::vector<ScheduledBlock> schedule_;
  std::vector<Bytes> peaks_;
  std::string method_;
};

/// One sequence of blocks as per-device orders.
Orders split_by_device(const Instance& instance, const std::vector<int>& sequence);

}  // namespace ostinato
