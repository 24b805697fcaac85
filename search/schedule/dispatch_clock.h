// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every dispatcher keeps while time runs forwards: which step of each block comes next, when devices are
// free and inputs arrive, and what memory is in use.
//
//   DispatchClock clock(in, micro_batches);
//   clock.run([&](int d, Nanoseconds now) {
//     clock.take_arrived(d, now, [&](int b) { ... the next step of b has its inputs from now on ... });
//     clock.start_when_free(block_chosen_for(d), d, now);
//   });
//   clock.take_schedule()      // empty where a step never started

#include <functional>
#include <queue>
#include <vector>

#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

class DispatchClock {
 public:
  DispatchClock(const Instance& instance, int micro_batches);

  /// Calls serve(device, now) whenever something may have changed for a device that is free. Ends when
  /// nothing can change any more. O(starts * (devices a block + followers) * log).
  template <typename Serve>
  void run(Serve serve) {
    for (int d = 0; d < in_.devices(); ++d) wakes_.emplace(0, d);
    while (!wakes_.empty()) {
      const auto [now, d] = wakes_.top();
      wakes_.pop();
      while (!wakes_.empty() && wakes_.top() == Wake{now, d}) wakes_.pop();
      if (free_[d] <= now) serve(d, now);
    }
  }

  /// Calls visit(block) for each block on d whose next step got its inputs since the last call. Each step is
  /// named once to each of its devices, if it has not started by then. O(log blocks) a step.
  template <typename Visit>
  void take_arrived(int d, Nanoseconds now, Visit visit) {
    auto& arrivals = arrivals_[d];
    while (!arrivals.empty() && arrivals.top().at <= now) {
      const Arrival arrived = arrivals.top();
      arrivals.pop();
      if (count_[arrived.block] == arrived.micro_batch) visit(arrived.block);
    }
  }
  /// Ends run(): no schedule is wanted any more.
  void give_up() { wakes_ = {}; }

  int micro_batches() const { return micro_batches_; }
  int count(int b) const {
    return count_[b];
  }  ///< steps of b that have started: the next is this micro-batch
  bool ended(int b) const { return count_[b] == micro_batches_; }
  Bytes used(int d) const { return used_[d]; }  ///< beyond static memory

  /// When the inputs of the next step of b have arrived; kNever while one of them has not started.
  Nanoseconds arrival(int b) const;
  /// What the next step of b needs while it runs is within the memory of its devices.
  bool fits(int b) const;
  /// Starts b, or wakes d when all of b's devices are free: d waits for them, so that b does not starve. True
  /// if it was started.
  bool start_when_free(int b, int d, Nanoseconds now);
  void wake(int d, Nanoseconds at) { wakes_.emplace(at, d); }

  /// All steps by start (inputs before followers); empty where some never started.
  std::vector<ScheduledBlock> take_schedule();

  static constexpr Nanoseconds kNever = -1;

 private:
  using Wake = std::pair<Nanoseconds, int>;

  struct Arrival {
    Nanoseconds at;
    int block;
    int micro_batch;
    friend auto operator<=>(const Arrival&, const Arrival&) = default;
  };
  template <typename T>
  using Queue = std::priority_queue<T, std::vector<T>, std::greater<>>;  ///< the first on top

  void start(int b, Nanoseconds now);
  void announce(int b);

  const Instance& in_;
  const int micro_batches_;
  std::vector<int> count_;
  std::vector<std::vector<Nanoseconds>> ends_;  ///< per block
  std::vector<Nanoseconds> free_;
  std::vector<Bytes> used_;
  Queue<Wake> wakes_;                     ///< when to look at which device
  std::vector<Queue<Arrival>> arrivals_;  ///< per device
  std::vector<int> announced_;            ///< per block: steps that are in arrivals_, or were
  std::vector<ScheduledBlock> schedule_;
};

}  // namespace ostinato
