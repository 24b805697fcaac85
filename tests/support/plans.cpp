// SPDX-License-Identifier: Apache-2.0
#include "tests/support/plans.h"

#include <algorithm>
#include <stdexcept>

#include "search/placement/lanes.h"
#include "search/plan/orders.h"

namespace ostinato::testing {
namespace {

std::vector<int> devices_of(const GraphOptions& options, int stage) {
  const auto sharded = options.shards.find(stage);
  return sharded == options.shards.end() ? std::vector{options.device_of[stage]} : sharded->second;
}

void add_backward(Placement& p, const GraphOptions& options, int stage, int forward) {
  const std::string name = std::to_string(stage);
  const std::vector<int> devices = devices_of(options, stage);
  Block backward{.name = name + (options.split ? ".I" : ".B"),
                 .stage = name,
                 .kind = options.split ? Kind::backward_input : Kind::backward,
                 .devices = devices,
                 .time = 20 + 2 * stage,
                 .memory = options.split ? 0 : -1,
                 .after = {{forward, 0}}};
  p.blocks.push_back(backward);
  if (!options.split) return;
  const int input_half = static_cast<int>(p.blocks.size()) - 1;
  p.blocks.push_back({.name = name + ".W",
                      .stage = name,
                      .kind = Kind::backward_weight,
                      .devices = devices,
                      .time = 15,
                      .memory = -1,
                      .after = {{input_half, 0}}});
}

/// Steps that run and what they wait for, for one greedy schedule.
class List {
 public:
  List(const Placement& placement, int micro_batches) : p_(placement), n_(micro_batches) {
    end_.assign(p_.blocks.size() * n_, -1);
  }

  Nanoseconds& end(int block, int m) { return end_[block * n_ + m]; }

  /// When the step could start, or -1 while an input has not been scheduled.
  Nanoseconds ready(int block, int m) {
    Nanoseconds time = 0;
    for (const Dependency& input : p_.blocks[block].after) {
      if (end(input.block, m) < 0) return -1;
      time = std::max(time, end(input.block, m) + p_.transfer(input, block));
    }
    return time;
  }

  int done(const std::string& stage, bool forward, Nanoseconds by) {
    int count = 0;
    for (std::size_t b = 0; b < p_.blocks.size(); ++b) {
      const bool last = p_.blocks[b].kind == Kind::backward || p_.blocks[b].kind == Kind::backward_weight;
      if (p_.blocks[b].stage != stage || (forward ? p_.blocks[b].kind != Kind::forward : !last)) continue;
      for (int m = 0; m < n_; ++m) count += end(static_cast<int>(b), m) >= 0 && (forward || end(b, m) <= by);
    }
    return count;
  }

 private:
  const Placement& p_;
  int n_;
  std::vector<Nanoseconds> end_;
};

bool all_free(const Block& block, const std::vector<Nanoseconds>& free, Nanoseconds now) {
  return std::ranges::all_of(block.devices, [&](int d) { return free[d] <= now; });
}

}  // namespace

Placement graph(const GraphOptions& options) {
  Placement p;
  p.name = "test";
  p.link.latency = options.latency;
  int last_device = *std::max_element(options.device_of.begin(), options.device_of.end());
  for (const auto& [stage, devices] : options.shards) last_device = std::max(last_device, devices.back());
  p.devices.resize(1 + last_device);
  const int stages = static_cast<int>(options.device_of.size());
  for (int s = 0; s < stages; ++s) {
    p.blocks.push_back({.name = std::to_string(s) + ".F",
                        .stage = std::to_string(s),
                        .kind = Kind::forward,
                        .devices = devices_of(options, s),
                        .time = 10 + s,
                        .memory = options.training ? 1 : 0,
                        .after = {}});
  }
  for (const auto& [from, to] : options.edges) p.blocks[to].after.push_back({from, 64});
  if (!options.training) return p;
  for (int s = stages - 1; s >= 0; --s) add_backward(p, options, s, s);
  for (const auto& [from, to] : options.edges) {
    const std::string half = options.split ? ".I" : ".B";
    const int source = p.find_block(std::to_string(to) + half);
    p.blocks[p.find_block(std::to_string(from) + half)].after.push_back({source, 64});
  }
  return p;
}

Placement chain(std::vector<int> device_of, bool split) {
  GraphOptions options{.device_of = std::move(device_of), .edges = {}, .split = split};
  for (int s = 0; s + 1 < static_cast<int>(options.device_of.size()); ++s)
    options.edges.emplace_back(s, s + 1);
  return graph(options);
}

Placement on_lanes(Placement placement, const std::vector<int>& stages) {
  const int devices = static_cast<int>(placement.devices.size());
  for (int d = 0; d < devices; ++d) add_lane(placement, d, "network");
  link_lanes(placement);
  for (Block& block : placement.blocks) {
    if (std::ranges::find(stages, std::stoi(block.stage)) == stages.end()) continue;
    for (int& d : block.devices) d = find_lane(placement, d, "network");
    block.memory = block.workspace = 0;
  }
  return placement;
}

Plan list_schedule(const Placement& placement, int micro_batches, const Priority& priority,
                   const Admit& admit) {
  List list(placement, micro_batches);
  std::vector<Nanoseconds> free(placement.devices.size(), 0);
  Plan plan;
  plan.placement_name = placement.name;
  plan.micro_batches = micro_batches;
  const std::size_t steps = placement.blocks.size() * micro_batches;
  for (Nanoseconds now = 0; plan.schedule.size() < steps; ++now) {
    if (now > 1'000'000) throw std::logic_error("the priorities hold every step back");
    for (int d = 0; d < static_cast<int>(free.size()); ++d) {
      if (free[d] > now) continue;
      Step best;
      for (int b = 0; b < static_cast<int>(placement.blocks.size()); ++b) {
        const Block& block = placement.blocks[b];
        if (block.devices[0] != d || !all_free(block, free, now)) continue;
        if (admit && !admit(b, list.done(block.stage, true, now), list.done(block.stage, false, now)))
          continue;
        for (int m = 0; m < micro_batches; ++m) {
          const Nanoseconds ready = list.ready(b, m);
          if (list.end(b, m) >= 0 || ready < 0 || ready > now) continue;
          if (best.block < 0 || priority(b, m) < priority(best.block, best.micro_batch)) best = {b, m};
        }
      }
      if (best.block < 0) continue;
      plan.schedule.push_back({best.block, best.micro_batch, now});
      const Nanoseconds end = list.end(best.block, best.micro_batch) =
          now + placement.blocks[best.block].time;
      for (const int held : placement.blocks[best.block].devices) free[held] = end;
    }
  }
  sort_schedule(placement, plan.schedule);
  plan.makespan = makespan_of(placement, plan.schedule);
  plan.span = span_of(placement, plan.schedule);
  plan.peak_memory = peak_memory(placement, plan.schedule);
  return plan;
}

Plan backward_first(const Placement& placement, int micro_batches, int in_flight) {
  const auto priority = [&](int b, int m) {
    return m + (placement.blocks[b].kind == Kind::forward           ? 1000.0
                : placement.blocks[b].kind == Kind::backward_weight ? 2000.0
                                                                    : 0.0);
  };
  if (in_flight <= 0) return list_schedule(placement, micro_batches, priority);
  return list_schedule(placement, micro_batches, priority, [&](int b, int forwards, int backwards) {
    const int limit = std::max(1, in_flight - std::stoi(placement.blocks[b].stage));
    return placement.blocks[b].kind != Kind::forward || forwards - backwards < limit;
  });
}

}  // namespace ostinato::testing
