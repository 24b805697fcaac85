// SPDX-License-Identifier: Apache-2.0
#include "search/partition/layer_operators.h"

#include <algorithm>

namespace ostinato {

using namespace graph;
namespace {

using chain::Model;
using chain::StageCost;

/// Speeds are in thousandths of the first kind's.
constexpr std::int64_t kFirstSpeed = 1000;

/// So that the largest number stays within what a graph holds, with room for rounding up.
std::int64_t unit_for(std::int64_t largest) { return largest / (kMaxGraphNumber / 2) + 1; }

std::int64_t in_units(std::int64_t value, std::int64_t unit) {
  return value / unit + (value % unit > 0 ? 1 : 0);
}

class Converter {
 public:
  explicit Converter(const Model& model) : model_(model), layers_(model.graph.layers()) {
    for (std::size_t k = 0; k < model_.on_kind.size(); ++k) totals_.push_back(total(static_cast<int>(k)));
    time_unit_ = unit_for(totals_.empty() ? 0 : totals_[0]);
    Bytes largest = 0;
    __int128 sum = 0;
    std::int64_t edges = 0;
    for (int l = 0; l < layers_; ++l) {
      largest = std::max(largest, held_by(cost(l, 0)));
      for (const LayerInput& input : model_.graph.inputs(l)) {
        largest = std::max(largest, input.bytes);
        sum += input.bytes, ++edges;
      }
    }
    bytes_unit_ = unit_for(largest);
    usual_bytes_ = edges > 0 ? static_cast<Bytes>(sum / edges) : 0;
  }

  std::int64_t time_unit() const { return time_unit_; }

  std::vector<GraphVertex> rows() const {
    std::vector<GraphVertex> rows(model_.inference ? layers_ : 2 * layers_);
    for (int l = 0; l < layers_; ++l) add_forward(l, rows);
    for (int l = 0; l < layers_ && !model_.inference; ++l) add_backward(l, rows);
    for (int l = 0; l < layers_; ++l) leave_tensors_out(l, rows);
    return rows;
  }

  GraphDevices devices() const {
    GraphDevices result;
    result.source = model_.cluster.name.empty() ? "these" : model_.cluster.name;
    for (int d = 0; d < model_.devices(); ++d) {
      const Bytes memory = model_.memory_of(d);
      const std::int64_t units =
          memory == kUnlimited ? kMaxGraphNumber * kMaxGraphNumber : memory / bytes_unit_;
      result.devices.push_back({d, units, speed_of(model_.kind_of(d)), ""});
    }
    for (int from = 0; from < model_.devices(); ++from)
      for (int to = 0; to < model_.devices(); ++to) result.rates.push_back(rate(from, to));
    return result;
  }

 private:
  StageCost cost(int layer, int kind) const { return cost_of_run(model_, kind, {layer}); }
  Nanoseconds backward(const StageCost& cost) const {
    return model_.split ? cost.backward_input + cost.backward_weight : cost.backward;
  }
  Bytes held_by(const StageCost& cost) const { return cost.fixed + cost.kept + cost.input; }

  Nanoseconds total(int kind) const {
    Nanoseconds sum = 0;
    for (int l = 0; l < layers_; ++l) sum += cost(l, kind).forward + backward(cost(l, kind));
    return std::max<Nanoseconds>(1, sum);
  }

  std::int64_t speed_of(int kind) const {
    const __int128 speed = static_cast<__int128>(totals_[0]) * kFirstSpeed / totals_[kind];
    return static_cast<std::int64_t>(std::clamp<__int128>(speed, 1, kMaxGraphNumber));
  }

  void add_forward(int l, std::vector<GraphVertex>& rows) const {
    const StageCost c = cost(l, 0);
    GraphVertex& forward = rows[l];
    forward.id = l;
    forward.name = model_.profile.layers[l].name;
    forward.operations = in_units(c.forward, time_unit_);
    forward.memory = in_units(held_by(c), bytes_unit_);
    for (const LayerInput& input : model_.graph.inputs(l)) {
      forward.after.push_back(input.layer);
      std::int64_t& tensor = rows[input.layer].tensor;
      tensor = std::max(tensor, in_units(input.bytes, bytes_unit_));
    }
  }

  void add_backward(int l, std::vector<GraphVertex>& rows) const {
    GraphVertex& back = rows[layers_ + l];
    back.id = layers_ + l;
    back.name = rows[l].name + ", backward";
    back.operations = in_units(backward(cost(l, 0)), time_unit_);
    back.after.push_back(l);
    back.together.push_back(l);
    for (const LayerInput& input : model_.graph.inputs(l)) {
      rows[layers_ + input.layer].after.push_back(layers_ + l);
      back.tensor = std::max(back.tensor, in_units(input.bytes, bytes_unit_));
    }
  }

  /// What a layer holds has its tensors in it; the graph counts them once more.
  void leave_tensors_out(int l, std::vector<GraphVertex>& rows) const {
    const auto tensors = [&](const GraphVertex& v) {
      std::int64_t sum = v.tensor;
      for (const std::int64_t from : v.after) sum += rows[from].tensor;
      return sum;
    };
    std::int64_t& memory = rows[l].memory;
    memory -= tensors(rows[l]);
    if (!model_.inference) memory -= tensors(rows[layers_ + l]);
    memory = std::max<std::int64_t>(0, memory);
  }

  /// That at which a transfer of the usual size takes what the link says, latency included.
  std::int64_t rate(int from, int to) const {
    const Nanoseconds time = from == to ? 0 : model_.links.between(from, to).time(usual_bytes_);
    if (time <= 0) return kMaxGraphNumber;
    const __int128 per_unit =
        static_cast<__int128>(std::max<Bytes>(1, usual_bytes_)) * time_unit_ * kFirstSpeed;
    return static_cast<std::int64_t>(std::clamp<__int128>(per_unit / time / bytes_unit_, 1, kMaxGraphNumber));
  }

  const Model& model_;
  const int layers_;
  std::vector<Nanoseconds> totals_;  ///< by kind: all layers in turn
  std::int64_t time_unit_ = 1, bytes_unit_ = 1;
  Bytes usual_bytes_ = 0;
};

}  // namespace

LayerOperators::LayerOperators(const Model& model) {
  const Converter converter(model);
  graph_ = build_graph(converter.rows(), model.profile.model);
  devices_ = converter.devices();
  time_unit_ = converter.time_unit() * kFirstSpeed;
}

Nanoseconds LayerOperators::nanoseconds(Ticks ticks) const {
  return static_cast<Nanoseconds>((static_cast<__int128>(ticks) * time_unit_ + kTicksPerUnit - 1) /
                                  kTicksPerUnit);
}

}  // namespace ostinato
