// SPDX-License-Identifier: Apache-2.0
#include "search/graph/work.h"

#include <algorithm>
#include <utility>

namespace ostinato::graph {
namespace {

/// Operations times kTicksPerUnit: what a device of speed s does in t ticks is s * t.
using Work = __int128;

/// One vertex that has to be done.
struct Job {
  Ticks release, tail;  ///< it does not start before the one, nor end within the other before the end
  Ticks shortest;       ///< its duration where it is fastest
  std::int64_t speed;   ///< and the speed there
  std::int64_t operations;
};

/// G6 of docs/bounds.md, for any set of vertices.
class WorkBetweenEnds {
 public:
  explicit WorkBetweenEnds(const GraphTimes& times) {
    for (const GraphDevice& device : times.costs.devices().devices) speeds_ += device.speed;
  }

  /// No schedule does all jobs in less.
  Ticks bound(const std::vector<Job>& jobs) {
    Work total = 0;
    for (const Job& job : jobs) total += static_cast<Work>(job.operations) * kTicksPerUnit;
    const auto [begin, done_at_begin] = idle(jobs, &Job::release);
    const auto [end, done_at_end] = idle(jobs, &Job::tail);
    Work most = total;
    const auto with = [&](Ticks time, Work done) {
      if (total > done) most = std::max(most, total - done + speeds_ * time);
    };
    with(begin, done_at_begin);
    with(end, done_at_end);
    with(begin + end, done_at_begin + done_at_end);
    return static_cast<Ticks>(std::min<Work>((most + speeds_ - 1) / speeds_, kGraphNever));
  }

 private:
  /// The time from one end on in which most of what all devices could do cannot be done, and what can.
  std::pair<Ticks, Work> idle(const std::vector<Job>& jobs, Ticks Job::*first) {
    changes_.clear();
    for (const Job& job : jobs) {
      changes_.emplace_back(job.*first, job.speed);
      changes_.emplace_back(job.*first + job.shortest, -job.speed);
    }
    std::sort(changes_.begin(), changes_.end());
    std::pair<Ticks, Work> best = {0, 0};
    Work most = 0, done = 0, speed = 0;
    Ticks now = 0;
    for (const auto& [at, change] : changes_) {
      done += speed * (at - now);
      now = at;
      speed += change;
      if (speeds_ * now - done <= most) continue;
      most = speeds_ * now - done;
      best = {now, done};
    }
    return best;
  }

  Work speeds_ = 0;
  std::vector<std::pair<Ticks, std::int64_t>> changes_;
};

/// One direction: `order` has every vertex behind its inputs.
class Pass {
 public:
  Pass(const GraphTimes& times, std::vector<int> order, const Lists<int>& inputs)
      : graph_(times.graph), order_(std::move(order)), inputs_(inputs), between_ends_(times) {
    for (int v = 0; v < graph_.size(); ++v) {
      const int fastest = times.costs.fastest(graph_.group[v]);
      shortest_.push_back(times.duration(v, fastest));
      speed_.push_back(times.costs.devices().devices[fastest].speed);
    }
  }

  void raise(std::vector<Ticks>& release, const std::function<bool()>& stop) {
    for (std::size_t i = 0; i < order_.size() && !stop(); ++i) {
      const int v = order_[i];
      Ticks& own = release[v];
      for (const int u : inputs_[v]) own = std::max(own, release[u] + shortest_[u]);
      collect_before(i, release);
      if (jobs_.size() > 1) own = std::max(own, between_ends_.bound(jobs_));
    }
  }

  Ticks of_all(const std::vector<Ticks>& release, const std::vector<Ticks>& tail) {
    jobs_.clear();
    for (int v = 0; v < graph_.size(); ++v) add(v, release[v], tail[v]);
    return between_ends_.bound(jobs_);
  }

 private:
  void add(int v, Ticks release, Ticks tail) {
    jobs_.push_back({release, tail, shortest_[v], speed_[v], graph_.operations[v]});
  }

  /// All that leads to the vertex at that place of the order, with its longest path there.
  void collect_before(std::size_t place, const std::vector<Ticks>& release) {
    jobs_.clear();
    to_.assign(order_.size(), -1);
    to_[order_[place]] = 0;
    for (std::size_t i = place + 1; i-- > 0;) {
      const int u = order_[i];
      if (to_[u] < 0) continue;
      if (i < place) add(u, release[u], to_[u]);
      const Ticks through = i < place ? to_[u] + shortest_[u] : 0;
      for (const int w : inputs_[u]) to_[w] = std::max(to_[w], through);
    }
  }

  const OperatorGraph& graph_;
  const std::vector<int> order_;
  const Lists<int>& inputs_;
  std::vector<Ticks> shortest_;
  std::vector<std::int64_t> speed_;
  std::vector<Ticks> to_;
  std::vector<Job> jobs_;
  WorkBetweenEnds between_ends_;
};

}  // namespace

GraphWork::GraphWork(const GraphTimes& times, std::vector<Ticks> earliest, std::vector<Ticks> rest,
                     const std::function<bool()>& stop)
    : before_(std::move(earliest)), after_(std::move(rest)) {
  const OperatorGraph& graph = times.graph;
  Pass forwards(times, graph.order, graph.predecessors);
  forwards.raise(before_, stop);
  Pass(times, {graph.order.rbegin(), graph.order.rend()}, graph.successors).raise(after_, stop);
  makespan_ = forwards.of_all(before_, after_);
}

}  // namespace ostinato::graph
