// SPDX-License-Identifier: Apache-2.0
// What binds a plan: critical_chain() and explain() of simulate.h.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "search/files/counted.h"
#include "search/placement/quantity.h"
#include "search/simulate/simulate.h"
#include "search/simulate/step_graph.h"

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
      link.device = block(s).devices.front();
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
        held_[d].emplace_back(graph_.index(step), held);
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
    if (latest->device >= 0) {
      link.device = latest->device;
      link.missing = link.idle > 0 ? 0 : missing_memory(s, *latest);
    }
    link.binding = link.idle > 0 ? Binding::none : binding(*latest, link.missing);
    return latest->from;
  }

  static Binding binding(const StepGraph::Edge& edge, Bytes missing) {
    if (edge.device < 0) return edge.transfer > 0 ? Binding::transfer : Binding::dependency;
    return missing > 0 ? Binding::memory : Binding::device;
  }

  /// What the memory of `s` lacked before the device's previous step began, if nothing else of `s` did: its
  /// inputs were there, and its other devices were free. Else 0.
  Bytes missing_memory(int s, const StepGraph::Edge& edge) const {
    for (const StepGraph::Edge& other : graph_.before(s)) {
      if (other.from != edge.from && end(other.from) + other.transfer > start_[edge.from]) return 0;
    }
    const auto& held = held_[edge.device];
    const auto before = std::lower_bound(held.begin(), held.end(), std::pair<int, Bytes>{edge.from, 0},
                                         [](const auto& a, const auto& b) { return a.first < b.first; });
    const Bytes needed = std::max<Bytes>(block(s).memory, 0) + block(s).workspace;
    const Bytes capacity = placement_.devices[edge.device].memory;
    return needed > 0 && capacity != kUnlimited ? std::max<Bytes>(0, before->second - (capacity - needed))
                                                : 0;
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
  int moves = 0;  ///< times that the chain goes on without a device of the step before
  std::vector<std::vector<std::size_t>> waits;       ///< per device: links that wait for its memory
  std::vector<Nanoseconds> on_device;                ///< work of the chain; of a block on several: on each
  std::map<std::pair<int, int>, Nanoseconds> links;  ///< transfers, by first device of sender and receiver
};

bool share_a_device(const Block& a, const Block& b) {
  return std::any_of(a.devices.begin(), a.devices.end(),
                     [&](int d) { return std::binary_search(b.devices.begin(), b.devices.end(), d); });
}

Totals total(const Placement& placement, const std::vector<CriticalStep>& chain) {
  Totals totals;
  totals.waits.resize(placement.devices.size());
  totals.on_device.resize(placement.devices.size());
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const CriticalStep& link = chain[i];
    const Block& block = placement.blocks[link.step.block];
    totals.work += block.time;
    totals.transfers += link.transfer;
    totals.idle += link.idle;
    for (const int d : block.devices) totals.on_device[d] += block.time;
    totals.makespan = link.step.start + block.time;
    if (link.binding == Binding::memory) totals.waits[link.device].push_back(i);
    if (i == 0) continue;
    const Block& before = placement.blocks[chain[i - 1].step.block];
    if (!share_a_device(before, block)) ++totals.moves;
    if (link.transfer > 0) totals.links[{before.devices.front(), block.devices.front()}] += link.transfer;
  }
  return totals;
}

class Words {
 public:
  Words(const Placement& placement, const std::vector<CriticalStep>& chain)
      : placement_(placement), chain_(chain), totals_(total(placement, chain)) {}

  std::vector<std::string> run() {
    say_parts();
    say_devices();
    for (std::size_t d = 0; d < totals_.waits.size(); ++d) say_memory(static_cast<int>(d));
    say_transfers();
    if (totals_.idle > 0)
      lines_.emplace_back("The idle time is not necessary: some steps of the plan could start earlier.");
    return std::move(lines_);
  }

 private:
  const std::string& device(int d) const { return placement_.devices[d].name; }
  std::string step(std::size_t i) const {
    const ScheduledBlock& s = chain_[i].step;
    return fmt::format("{} of micro-batch {}", placement_.blocks[s.block].name, s.micro_batch);
  }

  void say_parts() {
    lines_.push_back(
        fmt::format("The critical chain determines the makespan of {}: {}, each waiting for the one before; "
                    "{} of work, {} of transfers, {} of idle time.",
                    format_time(totals_.makespan), counted(chain_.size(), "step"), format_time(totals_.work),
                    format_time(totals_.transfers), format_time(totals_.idle)));
    lines_.push_back(fmt::format("It runs from {} to {}.", step(0), step(chain_.size() - 1)));
  }

  /// Whether the chain holds all that the device does.
  bool holds_work_of(int d) const {
    const auto runs_there = [&](const Block& block) {
      return std::find(block.devices.begin(), block.devices.end(), d) != block.devices.end();
    };
    int micro_batches = 0;
    std::ptrdiff_t steps = 0;
    for (const CriticalStep& link : chain_) {
      micro_batches = std::max(micro_batches, link.step.micro_batch + 1);
      steps += runs_there(placement_.blocks[link.step.block]);
    }
    return steps ==
           std::count_if(placement_.blocks.begin(), placement_.blocks.end(), runs_there) * micro_batches;
  }

  /// A chain that stays where it is is the work of one device, with what comes before and after; one that
  /// moves is the way through the pipeline.
  void say_devices() {
    const auto busiest = std::max_element(totals_.on_device.begin(), totals_.on_device.end());
    const int d = static_cast<int>(std::distance(totals_.on_device.begin(), busiest));
    const std::string where = device(d);
    const std::string share = percent(*busiest, totals_.makespan);
    if (*busiest >= totals_.makespan - totals_.makespan / 10 ||
        (*busiest > totals_.makespan / 2 && holds_work_of(d))) {
      const Nanoseconds rest = totals_.makespan - *busiest;
      lines_.push_back(fmt::format(
          "{} limits the step: its work is {} ({}) of the chain. Less work there would shorten the step; "
          "making the other devices faster would {}.",
          where, format_time(*busiest), share,
          rest == 0 ? "not" : fmt::format("shorten it by at most {}", format_time(rest))));
      return;
    }
    const std::string moves = totals_.moves == 1 ? "once" : counted(totals_.moves, "time");
    lines_.push_back(
        fmt::format("No single device limits the step: {}, the busiest in the chain, works for {} of it "
                    "({}). The chain changes devices {}, where a block waits for a result.",
                    where, format_time(*busiest), share, moves));
  }

  void say_memory(int d) {
    const auto& waits = totals_.waits[d];
    if (waits.empty()) return;
    const std::size_t first = waits.front();
    std::string line = fmt::format(
        "The memory of {} limits the step {}: {} waits for the end of {}, because {} of its {} are missing "
        "until then; ",
        device(d), counted(waits.size(), "time"), step(first), step(first - 1),
        format_memory(chain_[first].missing), format_memory(placement_.devices[d].memory));
    if (waits.size() > 1)
      line += fmt::format("the last to wait is {}, for {}; ", step(waits.back()), step(waits.back() - 1));
    lines_.push_back(line + "with more memory, or less held, they could start earlier.");
  }

  void say_transfers() {
    if (totals_.links.empty() || totals_.transfers < totals_.makespan / 100) return;
    const auto slowest = std::max_element(totals_.links.begin(), totals_.links.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    lines_.push_back(
        fmt::format("Transfers are {} of the chain, mostly from {} to {} ({}): smaller activations or a "
                    "faster link would shorten the step.",
                    percent(totals_.transfers, totals_.makespan), device(slowest->first.first),
                    device(slowest->first.second), format_time(slowest->second)));
  }

  const Placement& placement_;
  const std::vector<CriticalStep>& chain_;
  const Totals totals_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<CriticalStep> critical_chain(const Placement& placement, int micro_batches,
                                         const std::vector<ScheduledBlock>& schedule) {
  return ChainWalk(placement, micro_batches, schedule).run();
}

std::vector<std::string> explain(const Placement& placement, const std::vector<CriticalStep>& chain) {
  if (chain.empty()) return {"The plan is empty."};
  return Words(placement, chain).run();
}

}  // namespace ostinato
