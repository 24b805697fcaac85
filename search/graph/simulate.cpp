// SPDX-License-Identifier: Apache-2.0
#include "search/graph/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "search/files/error.h"
#include "search/files/nearest.h"
#include "search/graph/open_order.h"

namespace ostinato::graph {
namespace {

/// What one vertex sends to one device; its own counts as one, where it has consumers there.
struct Delivery {
  int vertex = 0;
  int device = 0;
  Ticks time = 0;          ///< 0 on the vertex's own device
  int begin = 0, end = 0;  ///< consumers: targets[begin, end)
};

/// The deliveries of all vertices under one assignment; those of a vertex by their first consumer.
class Deliveries {
 public:
  Deliveries(const GraphCosts& costs, const Assignment& assignment) {
    const OperatorGraph& graph = costs.graph();
    targets_ = graph.successors.values();
    begin_.reserve(graph.size() + 1);
    for (int v = 0; v < graph.size(); ++v) {
      begin_.push_back(static_cast<int>(all_.size()));
      const int first = static_cast<int>(graph.successors.begin(v)), home = assignment[v];
      const int last = first + static_cast<int>(graph.successors[v].size());
      std::sort(targets_.begin() + first, targets_.begin() + last,
                [&](int a, int b) { return std::pair(assignment[a], a) < std::pair(assignment[b], b); });
      for (int i = first; i < last;) {
        const int device = assignment[targets_[i]], from = i;
        while (i < last && assignment[targets_[i]] == device) ++i;
        all_.push_back({v, device, costs.transfer(v, home, device), from, i});
      }
      std::sort(all_.begin() + begin_[v], all_.end(),
                [&](const Delivery& a, const Delivery& b) { return targets_[a.begin] < targets_[b.begin]; });
    }
    begin_.push_back(static_cast<int>(all_.size()));
  }

  const Delivery& operator[](int index) const { return all_[index]; }
  int begin(int vertex) const { return begin_[vertex]; }
  int end(int vertex) const { return begin_[vertex + 1]; }
  int size() const { return static_cast<int>(all_.size()); }
  std::span<const int> consumers(const Delivery& d) const {
    return {targets_.data() + d.begin, static_cast<std::size_t>(d.end - d.begin)};
  }

 private:
  std::vector<Delivery> all_;
  std::vector<int> begin_, targets_;
};

/// One simulation. A task is a vertex, or (sends that are operations) the number of vertices + the index of a
/// delivery.
class Simulation {
 public:
  enum class Pick { fifo, remaining, msr, planned };

  Simulation(const GraphCosts& costs, const Assignment& assignment, Pick pick, std::vector<Ticks> rank,
             GraphSends sends, std::uint64_t seed)
      : costs_(costs),
        graph_(costs.graph()),
        assignment_(assignment),
        deliveries_(costs, assignment),
        pick_(pick),
        rank_(std::move(rank)),
        send_runs_(sends == GraphSends::operations),
        place_(send_runs_ ? open_order(graph_.size() + deliveries_.size(), seed) : std::vector<int>()),
        ready_(costs.device_count()),
        under_way_(costs.device_count()),
        running_(costs.device_count(), -1),
        touched_(costs.device_count(), 0) {}

  GraphTimeline run() {
    timeline_.start.assign(graph_.size(), -1);
    timeline_.busy.assign(costs_.device_count(), 0);
    missing_.resize(graph_.size());
    for (int v = 0; v < graph_.size(); ++v) {
      missing_[v] = static_cast<int>(graph_.predecessors[v].size());
      if (missing_[v] == 0) make_ready(v, assignment_[v]);
    }
    start_all();
    while (!events_.empty()) {
      now_ = std::get<0>(events_.top());
      while (!events_.empty() && std::get<0>(events_.top()) == now_) take_event();
      start_all();
    }
    return std::move(timeline_);
  }

 private:
  // (time, 0: a device ends its vertex / 1: a delivery arrives, index)
  using Event = std::tuple<Ticks, int, int>;
  // (key, turn, task); the lowest is picked. Turn: among equal keys; the task, or when it became ready
  using Entry = std::tuple<Ticks, Ticks, int>;

  bool is_send(int task) const { return task >= graph_.size(); }

  void touch(int device) {
    if (touched_[device]) return;
    touched_[device] = 1;
    touched_list_.push_back(device);
  }

  void make_ready(int task, int device) {
    std::vector<Entry>& heap = ready_[device];
    const Ticks turn = send_runs_ || pick_ == Pick::fifo ? arrivals_++ : task;
    heap.emplace_back(pick_ == Pick::fifo ? 0 : key(task), turn, task);
    if (pick_ != Pick::msr) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    touch(device);
  }

  Ticks key(int task) const {
    if (!is_send(task)) return rank_[task];
    if (pick_ == Pick::planned) return std::numeric_limits<Ticks>::min();
    const Delivery& d = deliveries_[task - graph_.size()];
    Ticks lowest = std::numeric_limits<Ticks>::max() / 2;  // of a send: its transfer and what follows it
    for (const int w : deliveries_.consumers(d)) lowest = std::min(lowest, rank_[w]);
    return lowest - d.time - costs_.duration(kSendOperations, d.device) -
           costs_.duration(kSendOperations, assignment_[d.vertex]);
  }

  void take_event() {
    const auto [time, kind, index] = events_.top();
    events_.pop();
    if (kind == 1) return arrive(index);
    const int v = std::exchange(running_[index], -1);
    touch(index);
    if (is_send(v)) return receive(index);
    if (send_runs_) {
      hand_on(v);
      return receive(index);
    }
    for (int d = deliveries_.begin(v); d < deliveries_.end(v); ++d) {
      if (deliveries_[d].device == index)
        deliver(deliveries_[d]);
      else
        events_.emplace(now_ + deliveries_[d].time, 1, d);
    }
  }

  /// Where sends are operations: consumers on the same device and sends, in the order of a set.
  void hand_on(int v) {
    std::vector<int> tasks;
    for (int d = deliveries_.begin(v); d < deliveries_.end(v); ++d) {
      if (deliveries_[d].device != assignment_[v]) {
        tasks.push_back(graph_.size() + d);
      } else {
        const auto consumers = deliveries_.consumers(deliveries_[d]);
        tasks.insert(tasks.end(), consumers.begin(), consumers.end());
      }
    }
    in_set_order(tasks);
    for (const int task : tasks) {
      if (is_send(task))
        make_ready(task, assignment_[v]);
      else
        input_arrived(task);
    }
  }

  void in_set_order(std::vector<int>& tasks) const {
    std::sort(tasks.begin(), tasks.end(), [&](int a, int b) { return place_[a] < place_[b]; });
  }

  void arrive(int delivery) {
    if (!send_runs_) return deliver(deliveries_[delivery]);
    if (running_[deliveries_[delivery].device] < 0) receive(deliveries_[delivery].device);
  }

  /// Where sends are operations, a device looks for arrivals between two operations: in the order in which
  /// they were sent, and behind what its own operation has made ready.
  void receive(int device) {
    const auto arrived = [&](const auto& sent) { return sent.first <= now_; };
    std::vector<std::pair<Ticks, int>>& list = under_way_[device];
    for (std::size_t i = 0; i < list.size(); ++i)
      if (arrived(list[i])) deliver(deliveries_[list[i].second]);
    std::erase_if(list, arrived);
  }

  void deliver(const Delivery& delivery) {
    const auto consumers = deliveries_.consumers(delivery);
    if (!send_runs_) {
      for (const int w : consumers) input_arrived(w);
      return;
    }
    std::vector<int> tasks(consumers.begin(), consumers.end());
    in_set_order(tasks);
    for (const int w : tasks) input_arrived(w);
  }

  void input_arrived(int v) {
    if (--missing_[v] == 0) make_ready(v, assignment_[v]);
  }

  void start_all() {
    std::sort(touched_list_.begin(), touched_list_.end());
    for (const int device : touched_list_) {
      touched_[device] = 0;
      while (running_[device] < 0 && !ready_[device].empty()) start(device, take_ready(device));
    }
    touched_list_.clear();
  }

  void start(int device, int task) {
    const Ticks duration =
        is_send(task) ? costs_.duration(kSendOperations, device) : costs_.execution(task, device);
    running_[device] = task;
    timeline_.busy[device] += duration;
    timeline_.makespan = std::max(timeline_.makespan, now_ + duration);
    events_.emplace(now_ + duration, 0, device);
    if (!is_send(task)) {
      timeline_.start[task] = now_;
    } else {
      const int index = task - graph_.size();
      const Ticks arrival = now_ + duration + deliveries_[index].time;
      under_way_[deliveries_[index].device].emplace_back(arrival, index);
      events_.emplace(arrival, 1, index);
    }
  }

  int take_ready(int device) {
    std::vector<Entry>& ready = ready_[device];
    if (pick_ == Pick::msr) {
      const auto best = std::min_element(ready.begin(), ready.end(), [&](const Entry& a, const Entry& b) {
        return std::tuple(-score(std::get<2>(a)), a) < std::tuple(-score(std::get<2>(b)), b);
      });
      std::iter_swap(best, ready.end() - 1);
    } else {
      std::pop_heap(ready.begin(), ready.end(), std::greater<>());
    }
    const int task = std::get<2>(ready.back());
    ready.pop_back();
    return task;
  }

  /// Points of MSR. Where sends are operations they are the successors that count as being on another device.
  int score(int task) const {
    if (is_send(task)) return 3 + (ready_[deliveries_[task - graph_.size()].device].empty() ? 5 : 0);
    int points = 0;
    for (int d = deliveries_.begin(task); d < deliveries_.end(task); ++d) {
      const Delivery& delivery = deliveries_[d];
      const auto consumers = deliveries_.consumers(delivery);
      if (delivery.device == assignment_[task]) {
        points += static_cast<int>(consumers.size());
      } else if (send_runs_) {
        points += 1;
      } else {
        const int idle = ready_[delivery.device].empty() ? 5 : 0;
        for (const int w : consumers) points += 2 + (missing_[w] == 1 ? 1 + idle : 0);
      }
    }
    return points;
  }

  const GraphCosts& costs_;
  const OperatorGraph& graph_;
  const Assignment& assignment_;
  const Deliveries deliveries_;
  const Pick pick_;
  const std::vector<Ticks> rank_;
  const bool send_runs_;
  const std::vector<int> place_;  ///< of each task, in the order of sets
  std::vector<std::vector<Entry>> ready_;
  std::vector<std::vector<std::pair<Ticks, int>>> under_way_;  ///< (arrival, delivery) to each device
  std::vector<int> running_, missing_;
  std::vector<char> touched_;
  std::vector<int> touched_list_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Ticks now_ = 0, arrivals_ = 0;
  GraphTimeline timeline_;
};

constexpr std::array<const char*, 3> kScheduleNames = {"fifo", "pct", "msr"};

}  // namespace

const char* to_string(GraphSchedule schedule) { return kScheduleNames[static_cast<std::size_t>(schedule)]; }

GraphSchedule parse_graph_schedule(std::string_view word) {
  for (const GraphSchedule s : {GraphSchedule::fifo, GraphSchedule::pct, GraphSchedule::msr})
    if (word == to_string(s)) return s;
  const std::string near = nearest(word, kScheduleNames);
  throw InputError("", 0,
                   fmt::format("unknown schedule \"{}\"{}; known are fifo, pct and msr", word,
                               near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
}

std::vector<Ticks> remaining_times(const GraphCosts& costs, const Assignment& assignment, GraphSends sends) {
  const OperatorGraph& graph = costs.graph();
  std::vector<Ticks> remaining(graph.size(), 0);
  for (auto v = graph.order.rbegin(); v != graph.order.rend(); ++v) {
    const int home = assignment[*v];
    for (const int w : graph.successors[*v]) {
      const int there = assignment[w];
      Ticks between = costs.transfer(*v, home, there);
      if (sends == GraphSends::operations && there != home)
        between += costs.duration(kSendOperations, home) + costs.duration(kSendOperations, there);
      remaining[*v] = std::max(remaining[*v], remaining[w] + between);
    }
    remaining[*v] += costs.execution(*v, home);
  }
  return remaining;
}

GraphTimeline simulate(const GraphCosts& costs, const Assignment& assignment, GraphSchedule schedule,
                       GraphSends sends, std::uint64_t seed) {
  if (schedule == GraphSchedule::fifo)
    return Simulation(costs, assignment, Simulation::Pick::fifo, {}, sends, seed).run();
  std::vector<Ticks> rank = remaining_times(costs, assignment, sends);
  for (Ticks& r : rank) r = -r;
  const auto pick = schedule == GraphSchedule::pct ? Simulation::Pick::remaining : Simulation::Pick::msr;
  return Simulation(costs, assignment, pick, std::move(rank), sends, seed).run();
}

GraphTimeline simulate_ranked(const GraphCosts& costs, const Assignment& assignment,
                              const std::vector<Ticks>& rank, GraphSends sends, std::uint64_t seed) {
  return Simulation(costs, assignment, Simulation::Pick::planned, rank, sends, seed).run();
}

std::string check_timeline(const GraphCosts& costs, const Assignment& assignment,
                           const std::vector<Ticks>& start) {
  const OperatorGraph& graph = costs.graph();
  if (static_cast<int>(start.size()) != graph.size()) return "not every vertex has a start";
  std::vector<std::tuple<int, Ticks, Ticks, int>> runs;
  for (int v = 0; v < graph.size(); ++v) {
    const int home = assignment[v];
    const Ticks end = start[v] + costs.execution(v, home);
    if (start[v] < 0) return fmt::format("vertex {} starts before 0", graph.ids[v]);
    runs.emplace_back(home, start[v], end, v);
    for (const int w : graph.successors[v])
      if (start[w] < end + costs.transfer(v, home, assignment[w]))
        return fmt::format("vertex {} starts before the tensor of {} arrives", graph.ids[w], graph.ids[v]);
  }
  std::sort(runs.begin(), runs.end());
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (std::get<0>(runs[i - 1]) == std::get<0>(runs[i]) && std::get<2>(runs[i - 1]) > std::get<1>(runs[i]))
      return fmt::format("vertices {} and {} overlap on device {}", graph.ids[std::get<3>(runs[i - 1])],
                         graph.ids[std::get<3>(runs[i])], costs.devices().devices[std::get<0>(runs[i])].id);
  return "";
}

}  // namespace ostinato::graph
