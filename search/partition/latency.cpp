// SPDX-License-Identifier: Apache-2.0
// 1. The layers become an operator graph (layer_operators.h), and best_partition() assigns them; small
//    graphs also by exhaustion. Memory and transfers are estimates there, so it proves nothing.
// 2. Every layer is a stage, in the order in which the forwards start.
// 3. join(): stages that follow each other on a device become one, as long as no micro-batch takes longer.
// 4. With all_devices, an idle device takes a part of some stage: of the cuts over which the fewest bytes go
//    (at most kMostParts), the one with the least latency.
// Every latency is the real placement's, with one micro-batch in the order of the blocks.
#include "search/partition/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "search/files/error.h"
#include "search/graph/best.h"
#include "search/graph/exact.h"
#include "search/partition/layer_operators.h"
#include "search/partition/stage_cost.h"
#include "search/partition/stages.h"

namespace ostinato {

using namespace graph;
namespace {

using chain::Model;
using chain::StageCost;

/// Of the assignment's local search, for each layer: a fraction of a second for a hundred.
constexpr std::int64_t kWorkPerLayer = 20'000;
/// Positions at which a stage may be parted for an idle device, fewest bytes first.
constexpr int kMostParts = 256;

[[noreturn]] void refuse(const std::string& message) { throw InputError("", 0, message); }

/// One micro-batch, every device in the order of the blocks.
Nanoseconds latency_in_order(const Placement& placement) {
  std::vector<Nanoseconds> end(placement.blocks.size(), 0), free_at(placement.devices.size(), 0);
  Nanoseconds last = 0;
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    const Block& block = placement.blocks[b];
    Nanoseconds start = 0;
    for (const int d : block.devices) start = std::max(start, free_at[d]);
    for (const Dependency& input : block.after)
      start = std::max(start, end[input.block] + placement.transfer(input, static_cast<int>(b)));
    end[b] = start + block.time;
    for (const int d : block.devices) free_at[d] = end[b];
    last = std::max(last, end[b]);
  }
  return last;
}

/// Stages ordered so that each comes after the stages it reads from.
class Stages {
 public:
  Stages(const Profile& profile, const PartitionOptions& options, std::vector<Stage> stages)
      : profile_(profile),
        options_(options),
        graph_(profile),
        devices_(static_cast<int>(cluster_of(options).devices.size())),
        stages_(std::move(stages)),
        latency_(latency_of(stages_)) {}

  /// Joins what a device runs in turn, while no micro-batch takes longer for it.
  void join() {
    for (std::size_t first = 0; first < stages_.size();) {
      const std::size_t next = next_on_device(first);
      if (next == stages_.size() || !(try_join(first, next, first) || try_join(first, next, next))) ++first;
    }
  }

  void use_all_devices() {
    std::vector<char> used(devices_, 0);
    for (const Stage& stage : stages_) used[stage.devices.front()] = 1;
    for (int d = 0; d < devices_; ++d)
      if (!used[d]) give_part_to(d);
  }

  Nanoseconds latency() const { return latency_; }
  std::vector<Stage> take() { return std::move(stages_); }

 private:
  Nanoseconds latency_of(const std::vector<Stage>& stages) const {
    return latency_in_order(place_stages(profile_, options_, stages));
  }

  std::size_t next_on_device(std::size_t stage) const {
    std::size_t next = stage + 1;
    while (next < stages_.size() && stages_[next].devices != stages_[stage].devices) ++next;
    return next;
  }

  /// Whether some layer of `reader` reads one of `source`.
  bool reads(const Stage& reader, const Stage& source) const {
    return std::any_of(reader.layers.begin(), reader.layers.end(), [&](int l) {
      return std::any_of(graph_.inputs(l).begin(), graph_.inputs(l).end(),
                         [&](const LayerInput& input) { return source.layers.contains(input.layer); });
    });
  }

  /// Both as one stage at position `at`, which is one of theirs.
  bool try_join(std::size_t first, std::size_t next, std::size_t at) {
    for (std::size_t s = first + 1; s < next; ++s)
      if (at == first ? reads(stages_[next], stages_[s]) : reads(stages_[s], stages_[first])) return false;
    std::vector<Stage> joined = stages_;
    Stage& both = joined[at];
    both.layers.add(stages_[at == first ? next : first].layers);
    joined.erase(joined.begin() + static_cast<std::ptrdiff_t>(at == first ? next : first));
    const Nanoseconds latency = latency_of(joined);
    if (latency > latency_) return false;
    stages_ = std::move(joined);
    latency_ = latency;
    return true;
  }

  /// A stage, and how many of its layers stay before the cut.
  struct Cut {
    std::size_t stage;
    std::size_t before;
  };

  std::vector<Cut> cuts() const {
    std::vector<std::pair<Bytes, Cut>> all;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (std::size_t before = 1; before < stages_[s].layers.size(); ++before)
        all.push_back({graph_.bytes_across(stages_[s].layers[before]), {s, before}});
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Cut> list;
    for (const auto& [bytes, cut] : all)
      if (static_cast<int>(list.size()) < kMostParts) list.push_back(cut);
    return list;
  }

  void give_part_to(int device) {
    std::optional<std::vector<Stage>> best;
    for (const Cut& cut : cuts()) {
      for (const std::size_t moved : {0, 1}) {
        std::vector<Stage> parted = stages_;
        const auto at = parted.begin() + static_cast<std::ptrdiff_t>(cut.stage);
        Stage rest = *at;
        rest.layers = at->layers.split(cut.before);
        (moved == 0 ? at->devices : rest.devices) = {device};
        parted.insert(at + 1, std::move(rest));
        const Nanoseconds latency = latency_of(parted);
        if (best && latency >= latency_) continue;
        latency_ = latency;
        best = std::move(parted);
      }
    }
    if (!best) refuse(fmt::format("{} devices need at least as many layers", devices_));
    stages_ = std::move(*best);
  }

  const Profile& profile_;
  const PartitionOptions& options_;
  const LayerGraph graph_;
  const int devices_;
  std::vector<Stage> stages_;
  Nanoseconds latency_;
};

/// Every layer as a separate stage, in the order in which the forwards start.
std::vector<Stage> one_a_layer(const GraphSolution& solution, int layers) {
  std::vector<Stage> stages;
  for (const int v : solution.order)
    if (v < layers) stages.push_back({.layers = {v}, .devices = {solution.assignment[v]}});
  return stages;
}

/// Of the operators, which are an estimate: their optimum need not be the stages' own, so where it is found
/// by exhaustion, what the local search finds is looked at too.
std::vector<GraphSolution> assignments(const Model& model, const std::function<bool()>& stop) {
  const LayerOperators operators(model);
  std::vector<GraphSolution> found;
  try {
    const GraphCosts costs(operators.graph(), operators.devices());
    for (const bool exhaust : {false, true}) {
      if (exhaust && costs.graph().size() > kMostExactVertices) continue;
      GraphBest best = best_partition(costs, {.runs = 1,
                                              .work = kWorkPerLayer * model.graph.layers(),
                                              .exhaust = exhaust,
                                              .threads = 1,
                                              .interrupted = stop});
      if (best.reason.empty()) found.push_back(std::move(best.solution));
    }
  } catch (const InfeasibleError&) {  // their memory is an estimate from above: no proof
  }
  return found;
}

Nanoseconds busiest_of(const Model& model, const std::vector<Stage>& stages) {
  std::vector<Nanoseconds> busy(model.devices(), 0);
  for (const Stage& stage : stages) {
    const StageCost c = cost_of_stage(model, stage);
    busy[stage.devices.front()] +=
        c.forward + (model.split ? c.backward_input + c.backward_weight : c.backward);
  }
  return *std::max_element(busy.begin(), busy.end());
}

}  // namespace

StageCuts cut_for_latency(const Profile& profile, const PartitionOptions& asked, bool all_devices) {
  PartitionOptions options = asked;
  options.sharded.clear();
  options.recompute = Recompute::never;
  check_partition(profile, options);
  const Model model(profile, options);
  const int layers = model.graph.layers();
  if (layers > kMostLatencyLayers)
    refuse(
        fmt::format("{} layers are too many for stages by latency, at most {}", layers, kMostLatencyLayers));
  if (all_devices && layers < model.devices())
    refuse(fmt::format("{} devices need at least as many layers, the model has {}", model.devices(), layers));
  std::optional<Stages> best;
  for (const GraphSolution& solution : assignments(model, options.stop)) {
    Stages stages(profile, options, one_a_layer(solution, layers));
    stages.join();
    if (all_devices) stages.use_all_devices();
    if (!best || stages.latency() < best->latency()) best.emplace(std::move(stages));
  }
  if (!best) refuse("no assignment of the layers was found that fits the memory of the devices");
  StageCuts cuts{.stages = best->take(), .in_flight = options.micro_batches};
  cuts.busiest = busiest_of(model, cuts.stages);
  return cuts;
}

}  // namespace ostinato
