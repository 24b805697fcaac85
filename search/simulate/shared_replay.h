// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule's device orders replayed where devices share processors (placement.h, Host).
//
//   const StepGraph graph(placement, 8, orders_of(placement, schedule));
//   Nanoseconds step = SharedReplay(placement, graph).run(times, 1'000'000);   // transfers as planned
//
// While k devices of a host with c processors compute, each works at the speed min(1, c / k), as a fair
// scheduler of threads shares them out (processor sharing: Kleinrock, Queueing Systems II, 1976, section
// 4.4). A device that stands for several ranks counts as so many. A step on several devices ends when the
// last of them has done its part. Integers alone: the same makespan on every machine.

#include <queue>
#include <vector>

#include "search/placement/placement.h"
#include "search/simulate/step_graph.h"

namespace ostinato {

class SharedReplay {
 public:
  /// Both must outlive this.
  SharedReplay(const Placement& placement, const StepGraph& graph);

  /// The makespan. `times`: of each step, alone on its devices; `transfer_ppm`: transfers take this many
  /// millionths of their time. O(steps * (log steps + hosts) + dependencies).
  Nanoseconds run(const std::vector<Nanoseconds>& times, std::int64_t transfer_ppm);

 private:
  /// Work that a processor has done for each of the computing devices of a host since the beginning, in parts
  /// of a nanosecond.
  __extension__ using Work = unsigned __int128;

  struct Part {
    Work end = 0;  ///< of the host's work when it is done
    int step = 0;
    friend bool operator>(const Part& a, const Part& b) {
      return a.end != b.end ? a.end > b.end : a.step > b.step;
    }
  };
  template <class T>
  using Earliest = std::priority_queue<T, std::vector<T>, std::greater<>>;

  struct Running {
    std::int64_t cores = 0, ranks = 1;
    Work done = 0;
    Earliest<Part> parts;

    Work sharers() const;      ///< ranks among which the cores are divided: a rank has one core at most
    Nanoseconds next() const;  ///< until the first of them is done, where none begins before
    void pass(Nanoseconds time);
  };

  struct Start {
    Nanoseconds time = 0;
    int step = 0;
    friend bool operator>(const Start& a, const Start& b) {
      return a.time != b.time ? a.time > b.time : a.step > b.step;
    }
  };

  void reset();
  void begin(int step, Nanoseconds time);
  void end_part(int step, std::int64_t transfer_ppm);
  Nanoseconds until_next() const;

  const Placement& placement_;
  const StepGraph& graph_;
  std::vector<int> host_of_;                          ///< of a device; the last host is for devices of none
  std::vector<std::vector<StepGraph::Edge>> behind_;  ///< edges that leave a step; `from` is where they lead
  std::vector<Running> hosts_;
  std::vector<int> waiting_, parts_;  ///< by step: edges that have not ended; devices that have not
  std::vector<Nanoseconds> ready_;    ///< by step
  Earliest<Start> starts_;
  Nanoseconds now_ = 0;
};

}  // namespace ostinato
