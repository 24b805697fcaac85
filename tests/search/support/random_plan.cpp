// SPDX-License-Identifier: Apache-2.0
#include "tests/search/random_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace ostinato::test {
namespace {

bool holds(const Block& block, int device) {
  return std::find(block.devices.begin(), block.devices.end(), device) != block.devices.end();
}

Nanoseconds end_of(const ScheduledBlock& step, const Placement& placement) {
  return step.start + placement.blocks[step.block].time;
}

/// docs/formats.md: each device of b that is not one of a's is served by the quickest device of a; the
/// slowest counts.
Nanoseconds transfer(const Placement& placement, const Dependency& input, const Block& block) {
  Nanoseconds slowest = 0;
  for (const int to : block.devices) {
    const Block& source = placement.blocks[input.block];
    if (holds(source, to)) continue;
    std::set<Nanoseconds> times;
    for (const int from : source.devices) {
      const Link link =
          placement.links.contains({from, to}) ? placement.links.at({from, to}) : placement.link;
      Nanoseconds carry = 0;
      while (link.bytes_per_second > 0 && carry * link.bytes_per_second < input.bytes * 1'000'000'000)
        ++carry;
      times.insert(link.latency + carry);
    }
    slowest = std::max(slowest, *times.begin());
  }
  return slowest;
}

/// Bytes in use on a device at an instant, after all that ends there has given back and all that starts has
/// taken.
Bytes in_use(const Plan& plan, const Placement& placement, int device, Nanoseconds now) {
  Bytes used = placement.devices[device].static_memory;
  for (const ScheduledBlock& step : plan.schedule) {
    const Block& block = placement.blocks[step.block];
    if (!holds(block, device)) continue;
    const Nanoseconds end = end_of(step, placement);
    if (block.memory > 0 && step.start <= now) used += block.memory;
    if (block.memory < 0 && end <= now) used += block.memory;
    if (step.start <= now && now < end) used += block.workspace;
  }
  return used;
}

std::set<Nanoseconds> instants(const Plan& plan, const Placement& placement) {
  std::set<Nanoseconds> all;
  for (const ScheduledBlock& step : plan.schedule) {
    all.insert(step.start);
    all.insert(end_of(step, placement));
  }
  return all;
}

Bytes peak_on(const Plan& plan, const Placement& placement, int device) {
  Bytes peak = placement.devices[device].static_memory;
  for (const Nanoseconds now : instants(plan, placement)) {
    peak = std::max(peak, in_use(plan, placement, device, now));
  }
  return peak;
}

Nanoseconds makespan_on(const Plan& plan, const Placement& placement) {
  Nanoseconds last = 0;
  for (const ScheduledBlock& step : plan.schedule) last = std::max(last, end_of(step, placement));
  return last;
}

Nanoseconds longest_span(const Plan& plan, const Placement& placement) {
  Nanoseconds longest = 0;
  for (const ScheduledBlock& a : plan.schedule) {
    for (const ScheduledBlock& b : plan.schedule) {
      const auto& devices = placement.blocks[a.block].devices;
      const bool meet = std::any_of(devices.begin(), devices.end(),
                                    [&](int d) { return holds(placement.blocks[b.block], d); });
      if (meet) longest = std::max(longest, end_of(b, placement) - a.start);
    }
  }
  return longest;
}

auto listing_key(const ScheduledBlock& step, const Placement& placement) {
  const Block& block = placement.blocks[step.block];
  return std::tuple(step.start, block.devices.front(), block.name, step.micro_batch);
}

std::string broken_pair(const ScheduledBlock& a, const ScheduledBlock& b, const Placement& placement) {
  const Block& x = placement.blocks[a.block];
  const Block& y = placement.blocks[b.block];
  if (a.block == b.block && a.micro_batch == b.micro_batch) return "twice";
  const Nanoseconds a_end = end_of(a, placement), b_end = end_of(b, placement);
  const bool meet = std::any_of(x.devices.begin(), x.devices.end(), [&](int d) { return holds(y, d); });
  // One after the other, in one of the two orders: this also keeps a block of no time out of the inside of
  // another.
  if (meet && a_end > b.start && b_end > a.start) return "overlap";
  if (a.micro_batch != b.micro_batch) return "";
  for (const Dependency& input : y.after) {
    if (input.block == a.block && a_end + transfer(placement, input, y) > b.start) return "input";
  }
  return "";
}

std::string broken_figure(const Plan& plan, const Placement& placement) {
  if (plan.makespan != makespan_on(plan, placement)) return "makespan";
  if (plan.span != longest_span(plan, placement)) return "span";
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    const Bytes peak = peak_on(plan, placement, static_cast<int>(d));
    if (peak > placement.devices[d].memory) return "memory";
    if (peak != plan.peak_memory[d]) return "peak";
  }
  return "";
}

std::string broken_steady_state(const Plan& plan) {
  const SteadyState& steady = plan.steady_state;
  if (steady.count == 0) return steady.period == 0 ? "" : "period of nothing";
  if (steady.first + steady.count * steady.unroll > plan.micro_batches) return "steady range";
  for (const ScheduledBlock& a : plan.schedule) {
    if (a.micro_batch < steady.first || a.micro_batch >= steady.first + (steady.count - 1) * steady.unroll)
      continue;
    for (const ScheduledBlock& b : plan.schedule) {
      if (b.block != a.block || b.micro_batch != a.micro_batch + steady.unroll) continue;
      if (b.start != a.start + steady.period) return "period";
    }
  }
  return "";
}

}  // namespace

std::uint64_t Random::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::int64_t Random::between(std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(
                   next() % (static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) + 1));
}

Placement random_placement(Random& random) {
  Placement p;
  p.name = fmt::format("random-{}", random.between(0, 999));
  if (random.chance(50))
    p.link = {random.between(0, 3), random.chance(50) ? random.between(1, 3) * 1'000'000'000 : 0};
  const int devices = static_cast<int>(random.between(1, 4));
  for (int d = 0; d < devices; ++d) {
    p.devices.push_back(
        {fmt::format("gpu{}", d), "", kUnlimited, random.chance(30) ? random.between(0, 5) : 0});
  }
  if (devices > 1 && random.chance(40)) p.links[{0, 1}] = {random.between(0, 4), 0};
  const int blocks = static_cast<int>(random.between(1, 8));
  for (int b = 0; b < blocks; ++b) {
    Block block;
    block.name = fmt::format("b{}", b);
    block.stage = fmt::format("s{}", random.between(0, 2));
    block.kind = static_cast<Kind>(random.between(0, 4));
    const int first = static_cast<int>(random.between(0, devices - 1));
    const int last = random.chance(25) ? static_cast<int>(random.between(first, devices - 1)) : first;
    for (int d = first; d <= last; ++d) block.devices.push_back(d);
    block.time = random.chance(15) ? 0 : random.between(1, 6);
    block.memory = random.chance(60) ? random.between(-4, 4) : 0;
    block.workspace = random.chance(30) ? random.between(0, 3) : 0;
    for (int a = std::max(0, b - 3); a < b; ++a) {
      if (random.chance(45)) block.after.push_back({a, random.chance(50) ? random.between(0, 5) : 0});
    }
    p.blocks.push_back(std::move(block));
  }
  return p;
}

Plan random_plan(const Placement& placement, int micro_batches, Random& random, int lazy_percent) {
  Plan plan;
  plan.placement_name = placement.name;
  plan.micro_batches = micro_batches;
  std::vector<Nanoseconds> free(placement.devices.size(), 0);
  std::vector<std::vector<Nanoseconds>> ends(micro_batches);
  for (int left = micro_batches * static_cast<int>(placement.blocks.size()); left > 0; --left) {
    int i = static_cast<int>(random.between(0, micro_batches - 1));
    while (ends[i].size() == placement.blocks.size()) i = (i + 1) % micro_batches;
    const int b = static_cast<int>(ends[i].size());  // the blocks stand in the order of their inputs
    const Block& block = placement.blocks[b];
    Nanoseconds start = random.chance(lazy_percent) ? random.between(0, 3) : 0;
    for (const int d : block.devices) start = std::max(start, free[d]);
    for (const Dependency& in : block.after)
      start = std::max(start, ends[i][in.block] + transfer(placement, in, block));
    for (const int d : block.devices) free[d] = start + block.time;
    ends[i].push_back(start + block.time);
    plan.schedule.push_back({b, i, start});
  }
  complete_figures(plan, placement);
  return plan;
}

void limit_memory(Placement& placement, const Plan& plan, Bytes spare) {
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    placement.devices[d].memory = peak_on(plan, placement, static_cast<int>(d)) + spare;
  }
}

void complete_figures(Plan& plan, const Placement& placement) {
  std::sort(plan.schedule.begin(), plan.schedule.end(),
            [&](const ScheduledBlock& a, const ScheduledBlock& b) {
              return listing_key(a, placement) < listing_key(b, placement);
            });
  plan.makespan = makespan_on(plan, placement);
  plan.span = longest_span(plan, placement);
  plan.peak_memory.clear();
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    plan.peak_memory.push_back(peak_on(plan, placement, static_cast<int>(d)));
  }
}

std::string oracle(const Plan& plan, const Placement& placement) {
  if (plan.schedule.size() != placement.blocks.size() * plan.micro_batches) return "number";
  for (const ScheduledBlock& step : plan.schedule) {
    if (step.block < 0 || step.block >= static_cast<int>(placement.blocks.size())) return "block";
    if (step.micro_batch < 0 || step.micro_batch >= plan.micro_batches) return "micro-batch";
    if (step.start < 0) return "start";
  }
  for (std::size_t s = 0; s < plan.schedule.size(); ++s) {
    for (std::size_t t = 0; t < plan.schedule.size(); ++t) {
      if (s == t) continue;
      const std::string broken = broken_pair(plan.schedule[s], plan.schedule[t], placement);
      if (!broken.empty()) return broken;
    }
    if (s > 0 && listing_key(plan.schedule[s], placement) < listing_key(plan.schedule[s - 1], placement))
      return "listing";
  }
  const std::string figure = broken_figure(plan, placement);
  return figure.empty() ? broken_steady_state(plan) : figure;
}

}  // namespace ostinato::test
