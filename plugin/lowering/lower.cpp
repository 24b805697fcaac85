// SPDX-License-Identifier: Apache-2.0
// 1. The stages, read off the blocks (stage_graph.h).
// 2. An event for each step of the plan, chained in the plan's order on each device. Of two steps with one
//    start, the one that takes no time goes first; between two such, the dependencies decide.
// 3. An event for each input on each device that does not hold it, between its producer and its consumer.
//    What a stage keeps is loaded back behind the place where the plan takes memory for it.
// 4. What runs on a lane is begun as soon as its inputs are there, ahead of computes that the rank would
//    otherwise have to end first: its lane makes it wait for its turn.
// 5. place(): a topological order with the smallest key first (Kahn), projected on the ranks. A circle means
//    that the plan contradicts the placement.
// 6. The proof of deadlock.h. The cost is O(n log n) in events.
#include "plugin/lowering/lower.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "plugin/lowering/deadlock.h"
#include "plugin/lowering/stage_graph.h"
#include "search/files/error.h"
#include "search/placement/lanes.h"

namespace ostinato {
namespace {

/// A compute or a transfer: a node of a graph. The ranks' lists are projections of its linear order.
struct Event {
  Nanoseconds time = 0;  ///< when it can happen: start of a compute (of one on a lane: when its inputs are
                         ///< there), end of a transfer's producer
  Nanoseconds next = 0;  ///< end of a compute, start of a transfer's consumer
  bool compute = true;
  bool listed = true;      ///< false: only a place in the order
  Instruction source;      ///< the compute, or the sending side
  Instruction target;      ///< the receiving side; unused for a compute
  std::vector<int> ranks;  ///< of a compute: all that run it; of a transfer: sender, receiver
  int waiting = 0;         ///< events before it that are not placed yet
  std::vector<int> followers;

  /// Earlier first; transfers before computes that start at the same instant; then whatever makes it total.
  auto key() const {
    return std::tuple(time, compute, next, source.stage, source.action, source.micro_batch, target.stage,
                      ranks.back());
  }
};

class Lowering {
 public:
  Lowering(const Plan& plan, const Placement& placement)
      : plan_(plan), placement_(placement), graph_(stage_graph(placement)) {
    for (const Block& block : placement.blocks) {
      first_input_.push_back(inputs_);
      inputs_ += block.after.size();
    }
  }

  Program run() {
    add_computes();
    chain_devices();
    add_transfers();
    advance_lanes();
    return place();
  }

 private:
  int event_of(int block, int micro_batch) const {
    return computes_[block * plan_.micro_batches + micro_batch];
  }

  const std::vector<int>& ranks_of(int block) const { return graph_.stages[graph_.stage_of[block]].devices; }

  void join(int before, int after) {
    events_[before].followers.push_back(after);
    ++events_[after].waiting;
  }

  /// Of the micro-batch, if each has its own size.
  Nanoseconds time_of(int block, int micro_batch) const {
    return plan_.sizes.empty() ? placement_.blocks[block].time : plan_.sizes[micro_batch].times[block];
  }

  Bytes bytes_of(int block, std::size_t input, int micro_batch) const {
    return plan_.sizes.empty() ? placement_.blocks[block].after[input].bytes
                               : plan_.sizes[micro_batch].bytes[first_input_[block] + input];
  }

  bool on_lane(int block) const { return runs_on_lane(placement_, placement_.blocks[block]); }

  /// Where the memory that is loaded into is taken: the order of the rank's list is all that it needs.
  bool is_place_alone(int block) const {
    return placement_.blocks[block].kind == Kind::load && !on_lane(block);
  }

  Action action_of(int block) const {
    switch (placement_.blocks[block].kind) {
      case Kind::forward:
        return Action::forward;
      case Kind::backward_input:
        return Action::backward_input;
      case Kind::backward_weight:
        return Action::backward_weight;
      case Kind::offload:
        return on_lane(block) ? Action::offload : Action::release;
      case Kind::load:
        return Action::load;
      default:
        return Action::backward;
    }
  }

  void add_computes() {
    computes_.assign(placement_.blocks.size() * plan_.micro_batches, -1);
    for (const ScheduledBlock& s : plan_.schedule) {
      Event event;
      event.time = s.start;
      event.next = s.start + time_of(s.block, s.micro_batch);
      event.source = {.action = action_of(s.block),
                      .stage = graph_.stage_of[s.block],
                      .micro_batch = s.micro_batch,
                      .start = event.time,
                      .end = event.next};
      event.ranks = ranks_of(s.block);
      event.listed = !is_place_alone(s.block);
      computes_[s.block * plan_.micro_batches + s.micro_batch] = static_cast<int>(events_.size());
      events_.push_back(std::move(event));
    }
    if (std::count(computes_.begin(), computes_.end(), -1) > 0 || events_.size() != computes_.size()) {
      throw InputError(
          "", 0,
          "the plan does not run every block exactly once per micro-batch; its number of micro-batches is " +
              std::to_string(plan_.micro_batches));
    }
  }

  /// The plan's order on each device. A block that takes no time goes before one that starts at the same
  /// instant; between two that take none, the dependencies decide.
  void chain_devices() {
    std::vector<int> rank_in_graph(placement_.blocks.size());
    const std::vector<int> topological = topological_order(placement_);
    for (std::size_t i = 0; i < topological.size(); ++i) rank_in_graph[topological[i]] = static_cast<int>(i);
    std::vector<std::vector<std::tuple<Nanoseconds, Nanoseconds, int, int, int>>> order(
        placement_.devices.size());
    for (std::size_t b = 0; b < placement_.blocks.size(); ++b) {
      for (int m = 0; m < plan_.micro_batches; ++m) {
        const int e = event_of(static_cast<int>(b), m);
        for (const int device : placement_.blocks[b].devices)
          order[device].emplace_back(events_[e].time, events_[e].next, rank_in_graph[b], m, e);
      }
    }
    for (auto& device : order) {
      std::sort(device.begin(), device.end());
      for (std::size_t i = 1; i < device.size(); ++i)
        join(std::get<4>(device[i - 1]), std::get<4>(device[i]));
    }
  }

  void add_transfers() {
    for (std::size_t b = 0; b < placement_.blocks.size(); ++b) {
      for (std::size_t k = 0; k < placement_.blocks[b].after.size(); ++k)
        add_transfers(static_cast<int>(b), k);
    }
    for (const OffloadBlocks& offload : graph_.offloads) {
      if (offload.out < 0) continue;
      for (int m = 0; m < plan_.micro_batches; ++m) {  // of one rank, on and off its lane
        join(event_of(offload.out, m), event_of(offload.freed, m));
        join(event_of(offload.taken, m), event_of(offload.back, m));
      }
    }
  }

  void advance_lanes() {
    for (std::size_t b = 0; b < placement_.blocks.size(); ++b) {
      if (!on_lane(static_cast<int>(b))) continue;
      for (int m = 0; m < plan_.micro_batches; ++m) {
        Event& event = events_[event_of(static_cast<int>(b), m)];
        event.time = std::min(event.time, ready(static_cast<int>(b), m));
      }
    }
  }

  /// When the inputs of a block are planned to be there.
  Nanoseconds ready(int block, int micro_batch) const {
    const std::vector<Dependency>& after = placement_.blocks[block].after;
    Nanoseconds last = 0;
    for (std::size_t k = 0; k < after.size(); ++k) {
      const Dependency input{after[k].block, bytes_of(block, k, micro_batch)};
      last = std::max(last,
                      events_[event_of(input.block, micro_batch)].next + placement_.transfer(input, block));
    }
    return last;
  }

  /// Of one input of a block, for all micro-batches, to each of its devices that does not hold it. Between a
  /// rank and its lane nothing is sent, but the order on a device does not say which is first.
  void add_transfers(int block, std::size_t input) {
    const int producer = placement_.blocks[block].after[input].block;
    const std::vector<int>& holders = ranks_of(producer);
    for (const int to : ranks_of(block)) {
      if (std::binary_search(holders.begin(), holders.end(), to)) {
        if (!on_lane(producer) && !on_lane(block)) continue;
        for (int m = 0; m < plan_.micro_batches; ++m) join(event_of(producer, m), event_of(block, m));
        continue;
      }
      for (int m = 0; m < plan_.micro_batches; ++m) {
        const auto [time, from] = quickest(holders, to, bytes_of(block, input, m));
        add_transfer(event_of(producer, m), event_of(block, m), {from, to}, time);
      }
    }
  }

  /// How long the bytes take to device `to` from the one of `holders` that is quickest, and from which.
  std::pair<Nanoseconds, int> quickest(const std::vector<int>& holders, int to, Bytes bytes) const {
    std::pair best(placement_.link_between(holders[0], to).time(bytes), holders[0]);
    for (const int from : holders)
      best = std::min(best, {placement_.link_between(from, to).time(bytes), from});
    return best;
  }

  void add_transfer(int producer, int consumer, std::pair<int, int> ranks, Nanoseconds time) {
    const Event& from = events_[producer];
    const Event& to = events_[consumer];
    const bool activation = to.source.action == Action::forward;
    Event event;
    event.compute = false;
    event.time = from.next;
    event.next = to.time;
    event.ranks = {ranks.first, ranks.second};
    event.source = {.action = activation ? Action::send_forward : Action::send_backward,
                    .stage = from.source.stage,
                    .micro_batch = from.source.micro_batch,
                    .peer = ranks.second,
                    .peer_stage = to.source.stage,
                    .start = from.next,
                    .end = from.next + time};
    event.target = event.source;
    event.target.action = opposite(event.source.action);
    event.target.peer = ranks.first;
    std::swap(event.target.stage, event.target.peer_stage);
    const int transfer = static_cast<int>(events_.size());
    events_.push_back(std::move(event));
    join(producer, transfer);
    join(transfer, consumer);
  }

  /// Topological order with the earliest ready event first (Kahn), projected on the ranks.
  Program place() {
    Program program = describe();
    const auto later = [&](int a, int b) { return events_[a].key() > events_[b].key(); };
    std::priority_queue<int, std::vector<int>, decltype(later)> ready(later);
    for (std::size_t e = 0; e < events_.size(); ++e) {
      if (events_[e].waiting == 0) ready.push(static_cast<int>(e));
    }
    std::size_t placed = 0;
    while (!ready.empty()) {
      const Event& event = events_[ready.top()];
      ready.pop();
      ++placed;
      for (const int rank : event.ranks) {
        if (!event.listed) break;
        const bool receives = !event.compute && rank == event.ranks.back();
        program.ranks[rank].push_back(receives ? event.target : event.source);
      }
      for (const int f : event.followers) {
        if (--events_[f].waiting == 0) ready.push(f);
      }
    }
    if (placed != events_.size()) {
      throw InputError("", 0,
                       "the order of the plan contradicts the dependencies of placement '" + placement_.name +
                           "': check it with `ostinato verify`");
    }
    return program;
  }

  Program describe() const {
    Program program;
    program.placement_name = placement_.name;
    program.placement_sha256 = plan_.placement_sha256;
    program.micro_batches = plan_.micro_batches;
    program.stages = graph_.stages;
    program.ranks.resize(count_without_lanes(placement_));
    program.makespan = program.predicted = plan_.makespan;
    program.lower_bound = plan_.lower_bound.makespan;
    program.planned_peak = plan_.peak_memory;
    program.planned_peak.resize(program.ranks.size());  // lanes have no memory
    program.counts_hosts = !placement_.hosts.empty();
    return program;
  }

  const Plan& plan_;
  const Placement& placement_;
  StageGraph graph_;
  std::vector<std::size_t> first_input_;  ///< by block, among the inputs of all blocks
  std::size_t inputs_ = 0;
  std::vector<Event> events_;
  std::vector<int> computes_;  ///< event of (block, micro-batch)
};

}  // namespace

Program lower(const Plan& plan, const Placement& placement) {
  if (!plan.sizes.empty()) check_sizes(placement, plan.sizes);
  Program program = Lowering(plan, placement).run();
  const DeadlockProof proof = prove_deadlock_free(program);
  if (!proof.ok()) throw InputError("", 0, "the lowered plan is refused: " + proof.failure);
  return program;
}

}  // namespace ostinato
