// SPDX-License-Identifier: Apache-2.0
#include "search/checker/unequal.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "search/checker/least_end.h"

namespace ostinato::checker {
namespace {

/// Different times on each side that U4 tries.
constexpr std::size_t kMostTimes = 64;

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
  bool balanced = true;  ///< and every byte taken is given back
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
    if (pairs.balanced) raise(best, idle(steps, room, pairs), "U4, what " + on + " idles at both ends");
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
      if (held.giver < 0)
        all.balanced = false;
      else
        all.pairs.push_back({static_cast<int>(i), held});
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

/// Work that can have started before `until` (mirrored: that can end later than so long before the end).
Wide UnequalBounds::most_work(const std::vector<Step>& steps, Wide room, const Pairs& pairs, Wide until,
                              bool mirrored) const {
  std::map<std::pair<int, int>, Wide> held;  // bytes that a step has taken and nothing can have given back
  for (const auto& [i, pair] : pairs.pairs) {
    const Step first = {i, mirrored ? pair.giver : pair.taker},
               last = {i, mirrored ? pair.taker : pair.giver};
    if (before(last, mirrored) + time(last) >= until) held[{i, first.block}] += pair.bytes;
  }
  struct Item {
    Wide work;
    Wide bytes;
  };
  std::vector<Item> items;
  Wide work = 0;
  for (const Step& s : steps) {
    if (before(s, mirrored) >= until) continue;
    const auto found = held.find({s.micro_batch, s.block});
    if (found == held.end())
      work += time(s);
    else
      items.push_back({time(s), found->second});
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.work * b.bytes > b.work * a.bytes; });
  for (const Item& item : items) {
    const Wide part = std::min(room, item.bytes);
    work += (item.work * part + item.bytes - 1) / item.bytes;
    room -= part;
  }
  return work;
}

Wide UnequalBounds::idle(const std::vector<Step>& steps, Wide room, const Pairs& pairs) const {
  Wide load = 0;
  for (const Step& s : steps) load += time(s);
  struct End {
    Wide time;
    Wide work;
  };
  std::vector<End> ends[2];
  for (const bool mirrored : {false, true}) {
    std::set<Wide> times = {0};
    for (const auto& [i, pair] : pairs.pairs) {
      const Step last = {i, mirrored ? pair.taker : pair.giver};
      times.insert(before(last, mirrored));
      times.insert(before(last, mirrored) + time(last));
    }
    for (const Wide at : times) {
      if (ends[mirrored].size() == kMostTimes) break;
      ends[mirrored].push_back({at, most_work(steps, room, pairs, at, mirrored)});
    }
  }
  Wide best = 0;
  for (const End& front : ends[0])
    for (const End& back : ends[1])
      if (front.work + back.work < load)
        best = std::max(best, load - front.work - back.work + front.time + back.time);
  return best;
}

}  // namespace ostinato::checker
