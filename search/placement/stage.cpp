// SPDX-License-Identifier: Apache-2.0
#include "search/placement/stage.h"

#include <algorithm>

namespace ostinato {

Layers::Layers(const std::vector<int>& rising) {
  for (const int layer : rising) push_back(layer);
}

Layers Layers::run(int first, int end) {
  Layers layers;
  if (first < end) layers.runs_ = {{first, end}};
  return layers;
}

std::size_t Layers::size() const {
  std::size_t size = 0;
  for (const LayerRun& run : runs_) size += run.end - run.first;
  return size;
}

int Layers::operator[](std::size_t position) const {
  auto run = runs_.begin();
  for (; position >= static_cast<std::size_t>(run->end - run->first); ++run)
    position -= run->end - run->first;
  return run->first + static_cast<int>(position);
}

bool Layers::contains(int layer) const {
  const auto behind = std::upper_bound(runs_.begin(), runs_.end(), layer,
                                       [](int wanted, const LayerRun& run) { return wanted < run.first; });
  return behind != runs_.begin() && layer < std::prev(behind)->end;
}

void Layers::push_back(int layer) {
  if (runs_.empty() || runs_.back().end != layer) runs_.push_back({layer, layer});
  ++runs_.back().end;
}

void Layers::add(const Layers& more) {
  std::vector<LayerRun> all;
  std::merge(runs_.begin(), runs_.end(), more.runs_.begin(), more.runs_.end(), std::back_inserter(all),
             [](const LayerRun& a, const LayerRun& b) { return a.first < b.first; });
  runs_.clear();
  for (const LayerRun& run : all) {
    if (!runs_.empty() && run.first <= runs_.back().end) {
      runs_.back().end = std::max(runs_.back().end, run.end);
    } else {
      runs_.push_back(run);
    }
  }
}

Layers Layers::split(std::size_t position) {
  Layers rest;
  auto run = runs_.begin();
  for (; run != runs_.end() && position >= static_cast<std::size_t>(run->end - run->first); ++run)
    position -= run->end - run->first;
  rest.runs_.assign(run, runs_.end());
  runs_.erase(run, runs_.end());
  if (!rest.empty() && position > 0) {
    const int cut = rest.runs_.front().first + static_cast<int>(position);
    runs_.push_back({rest.runs_.front().first, cut});
    rest.runs_.front().first = cut;
  }
  return rest;
}

}  // namespace ostinato
