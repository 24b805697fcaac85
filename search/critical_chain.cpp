// What binds a plan: critical_chain() and explain() of simulate.h.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "search/quantity.h"
#include "search/simulate.h"
#include "search/step_graph.h"

namespace ostinato {
namespace {

/// Walks back from the last end, each time to what the step waited for last.
class ChainWalk {
 public:
  ChainWalk(const Placement& placement, int micro_batches, const std::vector<ScheduledBlock>& schedule)
      : placement_(placement),
        orders_(orders_of(placement, schedule)),
        graph_(placement, micro_batches, orders_) {
    start_.resize(graph_.size());
    for (const ScheduledBlock& s : schedule) start_[graph_.index({s.block, s.micro_batch})] = s.start;
    measure_memory();
  }

  std::vector<CriticalStep> run() const {
    std::vector<CriticalStep> chain;
    for (int s = last_step(); s >= 0;) {
      const Step step = graph_.step(s);
      CriticalStep& link = chain.emplace_back();
      link.step = {step.block, step.micro_batch, start_[s]};
      s = previous(s, link);
    }
    std::reverse(chain.begin(), chain.end());
    return chain;
  }

 private:
  const Block& block(int s) const { return placement_.blocks[graph_.step(s).block]; }
  Nanoseconds end(int s) const { return start_[s] + block(s).time; }

  /// What each device holds just before each of its steps, in the order of orders_.
  void measure_memory() {
    held_.resize(orders_.size());
    for (std::size_t d = 0; d < orders_.size(); ++d) {
      Bytes held = placement_.devices[d].static_memory;
      for (const Step& step : orders_[d]) {
        held_[d].push_back({graph_.index(step), held});
        held += placement_.blocks[step.block].memory;
      }
      std::sort(held_[d].begin(), held_[d].end());
    }
  }

  int last_step() const {
    int last = -1;
    for (int s = 0; s < graph_.size(); ++s) {
      if (last < 0 || end(s) > end(last)) last = s;
    }
    return last;
  }

  /// The step that holds `s` up, and how; -1 where the chain begins. Of several a device comes first, so that
  /// the chain stays where the work is.
  int previous(int s, CriticalStep& link) const {
    const StepGraph::Edge* latest = nullptr;
    Nanoseconds arrival = 0;
    for (const StepGraph::Edge& edge : graph_.before(s)) {
      const Nanoseconds time = end(edge.from) + edge.transfer;
      if (latest == nullptr || time > arrival) {
        latest = &edge;
        arrival = time;
      }
    }
    link.idle = start_[s] - arrival;
    if (latest == nullptr || start_[s] == 0) {
      link.binding = Binding::begin;
      return -1;
    }
    link.transfer = latest->transfer;
    link.binding = link.idle > 0 ? Binding::none : binding(s, *latest);
    return latest->from;
  }

  Binding binding(int s, const StepGraph::Edge& edge) const {
    if (edge.device < 0) return edge.transfer > 0 ? Binding::transfer : Binding::dependency;
    return waits_for_memory(s, edge) ? Binding::memory : Binding::device;
  }

  /// True where the inputs of `s` were there before the device's previous step began, and its memory was not.
  bool waits_for_memory(int s, const StepGraph::Edge& edge) const {
    for (const StepGraph::Edge& other : graph_.before(s)) {
      if (other.device < 0 && end(other.from) + other.transfer > start_[edge.from]) return false;
    }
    const auto& held = held_[edge.device];
    const auto before = std::lower_bound(held.begin(), held.end(), std::pair<int, Bytes>{edge.from, 0},
                                         [](const auto& a, const auto& b) { return a.first < b.first; });
    const Bytes needed = std::max<Bytes>(block(s).memory, 0) + block(s).workspace;
    const Bytes capacity = placement_.devices[edge.device].memory;
    return needed > 0 && capacity != kUnlimited && before->second > capacity - needed;
  }

  const Placement& placement_;
  Orders orders_;
  StepGraph graph_;
  std::vector<Nanoseconds> start_;
  std::vector<std::vector<std::pair<int, Bytes>>> held_;  ///< per device: (step, bytes before it), by step
};

std::string percent(Nanoseconds part, Nanoseconds whole) {
  return whole == 0
             ? "0 %"
             : fmt::format("{} %", static_cast<std::int64_t>(static_cast<__int128>(part) * 100 / whole));
}

/// Sums over the chain.
struct Totals {
  Nanoseconds work = 0, transfers = 0, idle = 0, makespan = 0;
  int moves = 0;                       ///< times that the chain goes from one device to another
  std::vector<int> memory;             ///< per device: steps that wait for memory
  std::vector<Nanoseconds> on_device;  ///< work of the chain
};

Totals total(const Placement& placement, const std::vector<CriticalStep>& chain) {
  Totals totals;
  totals.memory.resize(placement.devices.size());
  totals.on_device.resize(placement.devices.size());
  int previous = -1;
  for (const CriticalStep& link : chain) {
    const Block& block = placement.blocks[link.step.block];
    const int device = block.devices.front();
    totals.work += block.time;
    totals.transfers += link.transfer;
    totals.idle += link.idle;
    totals.on_device[device] += block.time;
    totals.makespan = link.step.start + block.time;
    if (link.binding == Binding::memory) ++totals.memory[device];
    if (previous >= 0 && device != previous) ++totals.moves;
    previous = device;
  }
  return totals;
}

}  // namespace

std::vector<CriticalStep> critical_chain(const Placement& placement, int micro_batches,
                                         const std::vector<ScheduledBlock>& schedule) {
  return ChainWalk(placement, micro_batches, schedule).run();
}

std::vector<std::string> explain(const Placement& placement, const std::vector<CriticalStep>& chain) {
  if (chain.empty()) return {"The plan is empty."};
  const Totals totals = total(placement, chain);
  std::vector<std::string> lines;
  lines.push_back(
      fmt::format("The makespan of {} is one chain of {} steps, each of which holds up the next: {} of work, "
                  "{} of transfers, {} of idle time.",
                  format_time(totals.makespan), chain.size(), format_time(totals.work),
                  format_time(totals.transfers), format_time(totals.idle)));
  const auto busiest = std::max_element(totals.on_device.begin(), totals.on_device.end());
  lines.push_back(fmt::format("{} works for {} of it ({}); the chain moves between devices {} times.",
                              placement.devices[std::distance(totals.on_device.begin(), busiest)].name,
                              format_time(*busiest), percent(*busiest, totals.makespan), totals.moves));
  for (std::size_t d = 0; d < totals.memory.size(); ++d) {
    if (totals.memory[d] == 0) continue;
    lines.push_back(fmt::format(
        "{} steps of it wait for memory on {}, whose {} are full: more memory there would let them "
        "start earlier.",
        totals.memory[d], placement.devices[d].name, format_memory(placement.devices[d].memory)));
  }
  if (totals.transfers > 0) {
    lines.push_back(
        fmt::format("Transfers are {} of it: smaller activations or a quicker link would shorten the step.",
                    percent(totals.transfers, totals.makespan)));
  }
  if (totals.idle > 0)
    lines.push_back("The idle time is the plan's own: some of its steps could start earlier.");
  return lines;
}

}  // namespace ostinato
