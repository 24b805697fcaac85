// SPDX-License-Identifier: Apache-2.0
#include "search/graph/links.h"

#include <algorithm>
#include <map>

namespace ostinato::graph {

GraphLinks::GraphLinks(const GraphCosts& costs) : costs_(costs), devices_(costs.device_count()) {
  std::map<std::int64_t, int> classes;
  for (std::size_t pair = 0; pair < costs.devices().rates.size(); ++pair) {
    const int from = static_cast<int>(pair) / devices_, to = static_cast<int>(pair) % devices_;
    const auto [at, added] =
        classes.emplace(from == to ? 0 : costs.devices().rates[pair], static_cast<int>(example_.size()));
    if (added) example_.emplace_back(from, to);
    rate_class_.push_back(at->second);
  }
  for (int to = 0; to < devices_; ++to)
    for (int from = 0; from < devices_; ++from)
      class_to_.push_back(rate_class_[static_cast<std::size_t>(from) * devices_ + to]);
  class_time_.resize(example_.size());
  sort_links();
}

void GraphLinks::tensor_of(int vertex) {
  for (std::size_t c = 0; c < example_.size(); ++c)
    class_time_[c] = costs_.transfer(vertex, example_[c].first, example_[c].second);
}

/// For every tensor the link with the highest rate is the fastest.
void GraphLinks::sort_links() {
  const auto rate = [&](int from, int to) {
    return costs_.devices().rates[static_cast<std::size_t>(from) * devices_ + to];
  };
  for (int d = 0; d < devices_; ++d) {
    std::vector<int> others;
    for (int e = 0; e < devices_; ++e)
      if (e != d) others.push_back(e);
    std::stable_sort(others.begin(), others.end(), [&](int a, int b) { return rate(d, a) > rate(d, b); });
    links_from_.insert(links_from_.end(), others.begin(), others.end());
    std::stable_sort(others.begin(), others.end(), [&](int a, int b) { return rate(a, d) > rate(b, d); });
    links_to_.insert(links_to_.end(), others.begin(), others.end());
  }
}

Ticks GraphLinks::least(int device, Way way, std::span<const int> by_time, const Ticks* times) const {
  const std::size_t links = devices_ - 1;
  const int* by_link = (way == Way::to ? links_to_ : links_from_).data() + device * links;
  const int* classes = (way == Way::to ? class_to_ : rate_class_).data() +
                       static_cast<std::size_t>(device) * static_cast<std::size_t>(devices_);
  const Ticks* hops = class_time_.data();
  Ticks best = kGraphNever;
  for (std::size_t i = 0; i < by_time.size(); ++i) {
    const int near = by_time[i];
    const Ticks least = times[near];
    if (least >= best) break;
    if (near != device) best = std::min(best, least + hops[classes[near]]);
    if (i >= links) continue;
    const Ticks hop = hops[classes[by_link[i]]];
    best = std::min(best, times[by_link[i]] + hop);
    if (least + hop >= best) break;
  }
  return best;
}

}  // namespace ostinato::graph
