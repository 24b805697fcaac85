// SPDX-License-Identifier: Apache-2.0
#include "search/checker/graph.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <map>
#include <queue>

namespace ostinato::checker {
namespace {

bool share_a_device(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int d) { return std::find(b.begin(), b.end(), d) != b.end(); });
}

}  // namespace

Graph::Graph(const Placement& placement, const std::vector<Wide>& longest)
    : placement_(placement),
      inputs_(placement.blocks.size()),
      outputs_(placement.blocks.size()),
      on_device_(placement.devices.size()) {
  connect(longest);
  order_blocks();
  measure_paths();
  compare_device_sets();
}

void Graph::connect(const std::vector<Wide>& longest) {
  for (int b = 0; b < blocks(); ++b) {
    size_ += 1 + static_cast<Wide>(block(b).after.size());
    for (const int d : block(b).devices) on_device_[d].push_back(b);
    for (const Dependency& input : block(b).after) {
      Wide transfer = transfer_time(placement_, input, block(b));
      if (!longest.empty()) transfer = std::min(transfer, longest[input.block]);
      inputs_[b].push_back({input.block, transfer});
      outputs_[input.block].push_back({b, transfer});
    }
  }
}

void Graph::order_blocks() {
  // Of those that are ready the smallest index first: what W4 gives depends on it (docs/bounds.md, W).
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  std::vector<std::size_t> waiting;
  for (int b = 0; b < blocks(); ++b) {
    waiting.push_back(inputs_[b].size());
    if (waiting.back() == 0) ready.push(b);
  }
  while (!ready.empty()) {
    order_.push_back(ready.top());
    ready.pop();
    for (const Edge& edge : outputs_[order_.back()]) {
      if (--waiting[edge.block] == 0) ready.push(edge.block);
    }
  }
  assert(order_.size() == placement_.blocks.size() && "a placement has no cycle");
}

void Graph::measure_paths() {
  for (const bool backwards : {false, true}) {
    std::vector<Wide>& longest = backwards ? tail_ : head_;
    longest.assign(placement_.blocks.size(), 0);
    walk(backwards, [&](int b, const std::vector<Edge>& edges) {
      for (const Edge& edge : edges) {
        longest[b] = std::max(longest[b], longest[edge.block] + block(edge.block).time + edge.transfer);
      }
    });
  }
}

void Graph::compare_device_sets() {
  std::map<std::vector<int>, int> numbers;
  for (const Block& b : placement_.blocks) {
    device_set_.push_back(numbers.emplace(b.devices, static_cast<int>(numbers.size())).first->second);
  }
  conflict_.assign(numbers.size(), std::vector<char>(numbers.size(), 0));
  for (const auto& [a, i] : numbers) {
    for (const auto& [b, j] : numbers) conflict_[i][j] = share_a_device(a, b) ? 1 : 0;
  }
}

std::vector<Wide> Graph::distances_from(int first) const {
  std::vector<Wide> distance(placement_.blocks.size(), kNone);
  distance[first] = block(first).time;
  walk(false, [&](int b, const std::vector<Edge>& edges) {
    for (const Edge& edge : edges) {
      if (distance[edge.block] == kNone) continue;
      distance[b] = std::max(distance[b], distance[edge.block] + edge.transfer + block(b).time);
    }
  });
  return distance;
}

std::vector<Wide> Graph::from_device(int device, bool backwards) const {
  std::vector<Wide> longest(placement_.blocks.size(), kNone);
  for (const int b : on_device(device)) longest[b] = 0;
  walk(backwards, [&](int b, const std::vector<Edge>& edges) {
    for (const Edge& edge : edges) {
      if (longest[edge.block] == kNone) continue;
      longest[b] = std::max(longest[b], longest[edge.block] + edge.transfer + block(edge.block).time);
    }
  });
  return longest;
}

}  // namespace ostinato::checker
