// SPDX-License-Identifier: Apache-2.0
#include "search/checker/unequal.h"

#include <fmt/format.h>

#include <algorithm>

#include "search/checker/least_end.h"

namespace ostinato::checker {
namespace {

void raise(Bound& best, Wide value, const std::string& why) {
  if (value > best.value) best = {value, why};
}

}  // namespace

/// The matchings of all micro-batches on one device.
struct UnequalBounds::Pairs {
  struct Pair {
    int micro_batch;
    Held held;
  };
  std::vector<Pair> pairs;
  bool complete = true;  ///< every byte given back was taken
};

UnequalBounds::UnequalBounds(const Placement& placement, const std::vector<MicroBatch>& sizes) {
  placements_.reserve(sizes.size());  // graphs keep references
  graphs_.reserve(sizes.size());
  for (const MicroBatch& one : sizes) {
    placements_.push_back(unrolled(placement, {one}));
    graphs_.emplace_back(placements_.back());
  }
}

Bound UnequalBounds::makespan() const {
  Bound best;
  raise(best, longest_path(), "U1, the longest path of a micro-batch");
  const std::vector<Device>& devices = placements_.front().devices;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const auto on = fmt::format("device {} ('{}')", d, devices[d].name);
    const std::vector<Step> steps = steps_on(static_cast<int>(d));
    raise(best, work(steps), "U2, the work of " + on);
    const Wide room = static_cast<Wide>(devices[d].memory) - devices[d].static_memory;
    if (devices[d].memory == kUnlimited || room < 0) continue;
    const Pairs pairs = pairs_on(static_cast<int>(d));
    if (!pairs.complete) continue;
    if (room > 0) raise(best, memory(static_cast<int>(d), room, pairs), "U3, the memory of " + on);
  }
  return best;
}

std::vector<UnequalBounds::Step> UnequalBounds::steps_on(int device) const {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < graphs_.size(); ++i)
    for (const int b : graphs_[i].on_device(device)) steps.push_back({static_cast<int>(i), b});
  return steps;
}

Wide UnequalBounds::longest_path() const {
  Wide longest = 0;
  for (const Graph& one : graphs_)
    for (int b = 0; b < one.blocks(); ++b)
      longest = std::max(longest, one.head(b) + one.block(b).time + one.tail(b));
  return longest;
}

Wide UnequalBounds::work(const std::vector<Step>& steps) const {
  std::vector<Task<Wide>> tasks;
  for (const Step& s : steps) tasks.push_back({before(s, false), time(s), before(s, true)});
  return least_end(std::move(tasks));
}

UnequalBounds::Pairs UnequalBounds::pairs_on(int device) const {
  Pairs all;
  for (std::size_t i = 0; i < graphs_.size(); ++i) {
    const Matching one = match(graphs_[i], device);
    all.complete = all.complete && one.complete;
    for (const Held& held : one.held) {
      if (held.giver >= 0) all.pairs.push_back({static_cast<int>(i), held});
    }
  }
  return all;
}

Wide UnequalBounds::memory(int device, Wide room, const Pairs& pairs) const {
  Wide area = 0, head = kUnbounded, tail = kUnbounded;
  for (const auto& [i, held] : pairs.pairs) {
    area += static_cast<Wide>(held.bytes) * held.distance;
    head = std::min(head, graph(i).head(held.taker));
    tail = std::min(tail, graph(i).tail(held.giver));
  }
  for (const Step& s : steps_on(device)) {
    const Bytes workspace = graph(s.micro_batch).workspace(s.block);
    if (workspace == 0) continue;
    area += static_cast<Wide>(workspace) * time(s);
    head = std::min(head, before(s, false));
    tail = std::min(tail, before(s, true));
  }
  return area == 0 ? 0 : head + (area + room - 1) / room + tail;
}

}  // namespace ostinato::checker
