// SPDX-License-Identifier: Apache-2.0
#include "search/placement/placement.h"

#include <algorithm>
#include <queue>

namespace ostinato {

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return "forward";
    case Kind::backward:
      return "backward";
    case Kind::backward_input:
      return "backward_input";
    case Kind::backward_weight:
      return "backward_weight";
    case Kind::offload:
      return "offload";
    case Kind::load:
      return "load";
    case Kind::other:
      return "other";
  }
  return "other";
}

Nanoseconds Link::time(Bytes bytes) const {
  constexpr __int128 largest = std::numeric_limits<Nanoseconds>::max();
  __int128 total = latency;
  if (bytes_per_second > 0 && bytes > 0) {
    total += (static_cast<__int128>(bytes) * 1'000'000'000 + bytes_per_second - 1) / bytes_per_second;
  }
  return static_cast<Nanoseconds>(std::min(total, largest));
}

const Link& Placement::link_between(int from, int to) const {
  const auto found = links.find({from, to});
  return found == links.end() ? link : found->second;
}

Nanoseconds Placement::transfer(const Dependency& input, int block) const {
  const auto& sources = blocks[input.block].devices;
  Nanoseconds slowest = 0;
  for (const int to : blocks[block].devices) {
    if (std::binary_search(sources.begin(), sources.end(), to)) continue;
    Nanoseconds quickest = std::numeric_limits<Nanoseconds>::max();
    for (const int from : sources) {
      quickest = std::min(quickest, link_between(from, to).time(input.bytes));
    }
    slowest = std::max(slowest, quickest);
  }
  return slowest;
}

int Placement::find_block(const std::string& wanted) const {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].name == wanted) return static_cast<int>(b);
  }
  return -1;
}

std::vector<int> topological_order(const Placement& placement) {
  const int n = static_cast<int>(placement.blocks.size());
  std::vector<int> waiting(n, 0);
  std::vector<std::vector<int>> followers(n);
  for (int b = 0; b < n; ++b) {
    for (const Dependency& input : placement.blocks[b].after) {
      followers[input.block].push_back(b);
      ++waiting[b];
    }
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int b = 0; b < n; ++b) {
    if (waiting[b] == 0) ready.push(b);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int b = ready.top();
    ready.pop();
    order.push_back(b);
    for (const int f : followers[b]) {
      if (--waiting[f] == 0) ready.push(f);
    }
  }
  if (static_cast<int>(order.size()) != n) order.clear();
  return order;
}

}  // namespace ostinato
