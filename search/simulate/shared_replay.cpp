// SPDX-License-Identifier: Apache-2.0
#include "search/simulate/shared_replay.h"

#include <algorithm>
#include <limits>

#include "search/simulate/scaled_time.h"

namespace ostinato {
namespace {

constexpr int kPartBits = 20;  ///< parts of a nanosecond: what rounding adds to a step is below one
constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

}  // namespace

SharedReplay::SharedReplay(const Placement& placement, const StepGraph& graph)
    : placement_(placement),
      graph_(graph),
      host_of_(placement.devices.size(), static_cast<int>(placement.hosts.size())),
      behind_(graph.size()) {
  for (std::size_t h = 0; h < placement.hosts.size(); ++h)
    for (const int d : placement.hosts[h].devices) host_of_[d] = static_cast<int>(h);
  for (int s = 0; s < graph.size(); ++s)
    for (const StepGraph::Edge& edge : graph.before(s))
      behind_[edge.from].push_back({s, edge.device, edge.transfer});
}

SharedReplay::Work SharedReplay::Running::sharers() const {
  return static_cast<Work>(std::max(static_cast<std::int64_t>(parts.size()) * ranks, cores));
}

Nanoseconds SharedReplay::Running::next() const {
  if (parts.empty()) return kNever;
  const Work left = parts.top().end - done;
  const Work whole = static_cast<Work>(cores) << kPartBits;
  return static_cast<Nanoseconds>((left * sharers() + whole - 1) / whole);
}

void SharedReplay::Running::pass(Nanoseconds time) {
  if (parts.empty()) return;
  done += (static_cast<Work>(time) << kPartBits) * static_cast<Work>(cores) / sharers();
}

void SharedReplay::reset() {
  now_ = 0;
  hosts_.assign(placement_.hosts.size() + 1, {});
  for (std::size_t h = 0; h < placement_.hosts.size(); ++h) {
    hosts_[h].cores = placement_.hosts[h].cores;
    hosts_[h].ranks = placement_.hosts[h].ranks;
  }
  hosts_.back().cores = static_cast<std::int64_t>(placement_.devices.size());  // enough for all
  waiting_.assign(graph_.size(), 0);
  parts_.assign(graph_.size(), 0);
  ready_.assign(graph_.size(), 0);
  starts_ = {};
  for (int s = 0; s < graph_.size(); ++s) {
    waiting_[s] = static_cast<int>(graph_.before(s).size());
    if (waiting_[s] == 0) starts_.push({0, s});
  }
}

void SharedReplay::begin(int step, Nanoseconds time) {
  const std::vector<int>& devices = placement_.blocks[graph_.step(step).block].devices;
  parts_[step] = static_cast<int>(devices.size());
  for (const int d : devices) {
    Running& host = hosts_[host_of_[d]];
    host.parts.push({host.done + (static_cast<Work>(time) << kPartBits), step});
  }
}

void SharedReplay::end_part(int step, std::int64_t transfer_ppm) {
  if (--parts_[step] > 0) return;
  for (const StepGraph::Edge& edge : behind_[step]) {
    const int next = edge.from;
    ready_[next] = std::max(ready_[next], now_ + scaled_time(edge.transfer, transfer_ppm));
    if (--waiting_[next] == 0) starts_.push({ready_[next], next});
  }
}

Nanoseconds SharedReplay::until_next() const {
  Nanoseconds next = starts_.empty() ? kNever : starts_.top().time - now_;
  for (const Running& host : hosts_) next = std::min(next, host.next());
  return next;
}

Nanoseconds SharedReplay::run(const std::vector<Nanoseconds>& times, std::int64_t transfer_ppm) {
  reset();
  for (Nanoseconds passed = until_next(); passed != kNever; passed = until_next()) {
    now_ += passed;
    for (Running& host : hosts_) host.pass(passed);
    for (Running& host : hosts_) {
      while (!host.parts.empty() && host.parts.top().end <= host.done) {
        const int step = host.parts.top().step;
        host.parts.pop();
        end_part(step, transfer_ppm);
      }
    }
    while (!starts_.empty() && starts_.top().time <= now_) {
      const int step = starts_.top().step;
      starts_.pop();
      begin(step, times[step]);
    }
  }
  return now_;
}

}  // namespace ostinato
