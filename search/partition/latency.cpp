#include "search/partition/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "search/files/error.h"
#include "search/partition/graph_best.h"
#include "search/partition/stage_cost.h"
#include "search/partition/stages.h"

namespace ostinato {
namespace {

using chain::Model;
using chain::StageCost;

/// Of the assignment's local search, for each layer: a fraction of a second for a hundred.
constexpr std::int64_t kWorkPerLayer = 20'000;
/// Positions at which a stage may be parted for an idle device, fewest bytes first.
constexpr int kMostParts = 256;
/// Speeds are counted in thousandths of that of the first kind.
constexpr std::int64_t kFirstSpeed = 1000;

[[noreturn]] void refuse(const std::string& message) { throw InputError("", 0, message); }

/// How many of these units the operator graph can count with: its numbers are small.
std::int64_t unit_for(std::int64_t largest) { return largest / (kMaxGraphNumber / 2) + 1; }

std::int64_t in_units(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

/// The layers as an operator graph: vertex l runs the forward of layer l, vertex layers + l its backward.
class LayerOperators {
 public:
  explicit LayerOperators(const Model& model)
      : model_(model), layers_(model.graph.layers()), graph_(build_graph(rows(), model.profile.model)) {
    for (int d = 0; d < model_.devices(); ++d) {
      const Bytes memory = model_.memory_of(d);
      devices_.devices.push_back(
          {.id = d,
           .memory = memory == kUnlimited ? kMaxGraphNumber * kMaxGraphNumber : memory / bytes_unit_,
           .speed = speed_of(model_.kind_of(d)),
           .kind = ""});
    }
    for (int from = 0; from < model_.devices(); ++from)
      for (int to = 0; to < model_.devices(); ++to) devices_.rates.push_back(rate(from, to));
  }

  const OperatorGraph& graph() const { return graph_; }
  const GraphDevices& devices() const { return devices_; }

 private:
  StageCost cost(int layer, int kind) const { return cost_on_kind(model_, kind, {layer}); }
  Nanoseconds backward(const StageCost& cost) const {
    return model_.split ? cost.backward_input + cost.backward_weight : cost.backward;
  }

  /// All layers in turn on this kind of device.
  Nanoseconds total(int kind) const {
    Nanoseconds sum = 0;
    for (int l = 0; l < layers_; ++l) sum += cost(l, kind).forward + backward(cost(l, kind));
    return sum;
  }
  std::int64_t speed_of(int kind) const {
    const __int128 first = static_cast<__int128>(total(0)) * kFirstSpeed;
    const auto speed = static_cast<std::int64_t>(first / std::max<Nanoseconds>(1, total(kind)));
    return std::clamp<std::int64_t>(speed, 1, kMaxGraphNumber);
  }

  std::vector<GraphVertex> rows() {
    time_unit_ = unit_for(total(0));
    Bytes largest = 0, sum = 0;
    for (int l = 0; l < layers_; ++l) {
      const StageCost c = cost(l, 0);
      largest = std::max({largest, c.fixed + c.kept + c.input, model_.profile.layers[l].output_bytes});
      for (const LayerInput& input : model_.graph.inputs(l)) {
        largest = std::max(largest, input.bytes);
        sum += input.bytes, ++edges_;
      }
    }
    bytes_unit_ = unit_for(largest);
    usual_bytes_ = edges_ > 0 ? sum / edges_ : 0;
    std::vector<GraphVertex> rows(static_cast<std::size_t>(2 * layers_));
    for (int l = 0; l < layers_; ++l) add(l, rows);
    return rows;
  }

  void add(int l, std::vector<GraphVertex>& rows) const {
    const StageCost c = cost(l, 0);
    GraphVertex &forward = rows[l], &back = rows[layers_ + l];
    forward.id = l;
    forward.operations = in_units(c.forward, time_unit_);
    forward.memory = in_units(c.fixed + c.kept + c.input, bytes_unit_);
    back.id = layers_ + l;
    back.operations = in_units(backward(c), time_unit_);
    back.after.push_back(l);
    back.together.push_back(l);
    for (const LayerInput& input : model_.graph.inputs(l)) {
      forward.after.push_back(input.layer);
      rows[layers_ + input.layer].after.push_back(layers_ + l);
      const std::int64_t bytes = in_units(input.bytes, bytes_unit_);
      rows[input.layer].tensor = std::max(rows[input.layer].tensor, bytes);
      back.tensor = std::max(back.tensor, bytes);
    }
  }

  /// That at which a transfer of the usual size takes what the link says, latency included.
  std::int64_t rate(int from, int to) const {
    if (from == to) return kMaxGraphNumber;
    const Nanoseconds time = model_.links.between(from, to).time(usual_bytes_);
    if (time <= 0) return kMaxGraphNumber;
    const __int128 per_unit =
        static_cast<__int128>(std::max<Bytes>(1, usual_bytes_)) * time_unit_ * kFirstSpeed;
    return static_cast<std::int64_t>(std::clamp<__int128>(per_unit / time / bytes_unit_, 1, kMaxGraphNumber));
  }

  const Model& model_;
  const int layers_;
  std::int64_t time_unit_ = 1, bytes_unit_ = 1, edges_ = 0;
  Bytes usual_bytes_ = 0;
  OperatorGraph graph_;
  GraphDevices devices_;
};

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

/// Stages in an order in which each stands behind those that it reads from.
class Stages {
 public:
  Stages(const Profile& profile, const PartitionOptions& options, std::vector<ModelStage> stages)
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
    std::vector<char> used(static_cast<std::size_t>(devices_), 0);
    for (const ModelStage& stage : stages_) used[stage.devices.front()] = 1;
    for (int d = 0; d < devices_; ++d)
      if (!used[d]) give_part_to(d);
  }

  std::vector<ModelStage> take() { return std::move(stages_); }

 private:
  Nanoseconds latency_of(const std::vector<ModelStage>& stages) const {
    return latency_in_order(place_stages(profile_, options_, stages));
  }

  std::size_t next_on_device(std::size_t stage) const {
    std::size_t next = stage + 1;
    while (next < stages_.size() && stages_[next].devices != stages_[stage].devices) ++next;
    return next;
  }

  /// Whether some layer of `reader` reads one of `source`.
  bool reads(const ModelStage& reader, const ModelStage& source) const {
    return std::any_of(reader.layers.begin(), reader.layers.end(), [&](int l) {
      return std::any_of(graph_.inputs(l).begin(), graph_.inputs(l).end(), [&](const LayerInput& input) {
        return std::binary_search(source.layers.begin(), source.layers.end(), input.layer);
      });
    });
  }

  /// Both as one stage at position `at`, which is that of one of them.
  bool try_join(std::size_t first, std::size_t next, std::size_t at) {
    for (std::size_t s = first + 1; s < next; ++s)
      if (at == first ? reads(stages_[next], stages_[s]) : reads(stages_[s], stages_[first])) return false;
    std::vector<ModelStage> joined = stages_;
    ModelStage& both = joined[at];
    both.layers.clear();
    std::merge(stages_[first].layers.begin(), stages_[first].layers.end(), stages_[next].layers.begin(),
               stages_[next].layers.end(), std::back_inserter(both.layers));
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
    std::optional<std::vector<ModelStage>> best;
    for (const Cut& cut : cuts()) {
      for (const std::size_t moved : {0, 1}) {
        std::vector<ModelStage> parted = stages_;
        const auto at = parted.begin() + static_cast<std::ptrdiff_t>(cut.stage);
        ModelStage rest = *at;
        const auto middle = static_cast<std::ptrdiff_t>(cut.before);
        at->layers.erase(at->layers.begin() + middle, at->layers.end());
        rest.layers.erase(rest.layers.begin(), rest.layers.begin() + middle);
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
  std::vector<ModelStage> stages_;
  Nanoseconds latency_;
};

/// Every layer a stage of its own, in the order in which the forwards start.
std::vector<ModelStage> one_a_layer(const GraphSolution& solution, int layers) {
  std::vector<ModelStage> stages;
  for (const int v : solution.order)
    if (v < layers) stages.push_back({{v}, {solution.assignment[v]}});
  return stages;
}

Nanoseconds busiest_of(const Model& model, const std::vector<ModelStage>& stages) {
  std::vector<Nanoseconds> busy(static_cast<std::size_t>(model.devices()), 0);
  for (const ModelStage& stage : stages) {
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
  const LayerOperators operators(model);
  GraphBest best;
  try {
    const GraphCosts costs(operators.graph(), operators.devices());
    best = best_partition(costs, {.runs = 1, .work = kWorkPerLayer * layers, .threads = 1});
  } catch (const InfeasibleError& error) {
    best.reason = error.what();  // its memory is an estimate from above: no proof
  }
  if (!best.reason.empty())
    refuse("no assignment of the layers was found that fits the memory of the devices");
  Stages stages(profile, options, one_a_layer(best.solution, layers));
  stages.join();
  if (all_devices) stages.use_all_devices();
  StageCuts cuts{.stages = stages.take(), .in_flight = options.micro_batches};
  cuts.busiest = busiest_of(model, cuts.stages);
  return cuts;
}

}  // namespace ostinato
