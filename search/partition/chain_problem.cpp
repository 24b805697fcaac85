#include "search/partition/chain_problem.h"

#include <algorithm>
#include <bit>

namespace ostinato::chain {

LayerSums::LayerSums(const Profile& profile, bool split_backward) : time_{0}, fixed_{0}, kept_{0} {
  std::vector<Bytes> workspace;
  for (const LayerCost& layer : profile.layers) {
    const Nanoseconds backward =
        split_backward ? layer.backward_input.median + layer.backward_weight.median : layer.backward.median;
    time_.push_back(time_.back() + layer.forward.median + backward);
    fixed_.push_back(fixed_.back() + layer.parameters + layer.gradients + layer.optimizer_state);
    kept_.push_back(kept_.back() + layer.kept);
    input_.push_back(layer.input_bytes);
    workspace.push_back(std::max(layer.forward_workspace, layer.backward_workspace));
  }
  workspace_.push_back(std::move(workspace));
  for (std::size_t width = 1; 2 * width <= workspace_[0].size(); width *= 2) {
    const std::vector<Bytes>& half = workspace_.back();
    std::vector<Bytes> whole;
    for (std::size_t i = 0; i + width < half.size(); ++i) whole.push_back(std::max(half[i], half[i + width]));
    workspace_.push_back(std::move(whole));
  }
}

Bytes LayerSums::workspace(int first, int end) const {
  const int k = std::bit_width(static_cast<unsigned>(end - first)) - 1;
  return std::max(workspace_[k][first], workspace_[k][end - (1 << k)]);
}

Load Problem::add(Load load, int stage, int first, int end) const {
  const Bytes workspace = sums.workspace(first, end);
  load.time += sums.time(first, end);
  load.fixed += sums.fixed(first, end);
  load.kept += (sums.kept(first, end) + sums.input(first)) * in_flight[stage];
  load.workspace = std::max(load.workspace, serial ? load.kept + workspace : workspace);
  return load;
}

Bytes Problem::needed(const Load& load) const {
  return load.fixed + load.workspace + (serial ? 0 : load.kept);
}

std::vector<Load> loads_of(const Problem& problem, const Ends& ends) {
  std::vector<Load> loads(problem.devices);
  int first = 0;
  for (int s = 0; s < problem.stages(); ++s) {
    Load& load = loads[problem.device_of[s]];
    load = problem.add(load, s, first, ends[s]);
    first = ends[s];
  }
  return loads;
}

bool all_fit(const Problem& problem, const Ends& ends) {
  const std::vector<Load> loads = loads_of(problem, ends);
  return std::all_of(loads.begin(), loads.end(), [&](const Load& load) { return problem.fits(load); });
}

}  // namespace ostinato::chain
