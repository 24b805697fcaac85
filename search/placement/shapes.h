// SPDX-License-Identifier: Apache-2.0
#pragma once
// The placements that have names: V, X, M, NN, K (Tessel, figure 2) and their relatives.
//
//   Placement p = shape("v", {.devices = 4, .forward = 1, .backward = 2});
//   Placement q = shape("m", {.devices = 4, .forward = {{30, 20, 20, 40}}});   // device by device
//
// Every stage becomes a forward block and, for training, a backward block or its two halves, with the
// dependencies mirrored. shape_stages.h says which stages a shape has.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// One value for all devices, or one for each of them.
template <typename T>
class PerDevice {
 public:
  PerDevice(T value) : values_{std::move(value)} {}
  PerDevice(std::vector<T> values) : values_(std::move(values)) {}

  /// The value of `device`, for a list that has one for each.
  const T& operator[](int device) const { return values_.size() == 1 ? values_[0] : values_[device]; }
  const std::vector<T>& values() const { return values_; }

 private:
  std::vector<T> values_;
};

/// Times in nanoseconds, memory in bytes. A list has one value per device: of each stage that runs there.
struct ShapeOptions {
  int devices = 4;
  int chunks = 2;                          ///< stages per device of "looped", "wave" and "chains"
  PerDevice<Nanoseconds> forward = 1000;   ///< of one stage
  PerDevice<Nanoseconds> backward = 2000;  ///< whole, or the input half where split
  PerDevice<Nanoseconds> weight = 0;  ///< any > 0: the backwards are split, and these are the weight halves
  Nanoseconds shard_forward = 1000;   ///< of a stage on all devices
  Nanoseconds shard_backward = 1000;  ///< always whole
  PerDevice<Bytes> memory = 1;        ///< taken by each forward, given back by the last of its backward
  std::optional<Bytes> shard_memory = {};  ///< the same of a stage on all devices, on each of them; absent: 0
                                           ///< for embeddings, `memory` of device 0 for K's join
  PerDevice<Nanoseconds> offload = 0;  ///< of copying what a stage keeps to the host, and of copying it back,
                                       ///< on a lane; 0: it stays
  PerDevice<Bytes> workspace = 0;      ///< of every block on that device while it runs
  PerDevice<Bytes> capacity = kUnlimited;
  PerDevice<Bytes> static_memory = 0;
  Link link = {};        ///< between any two devices
  Bytes bytes = 0;       ///< carried by every edge from one stage to another
  bool training = true;  ///< false: forwards only
  int layers = 0;        ///< of the model, which the stages then share (Placement::stages); 0: not known
};

/// "v", "x", "m", "nn", "nn-first", "multimodal", "k", "looped", "wave", "skip", "chains".
const std::vector<std::string>& shape_names();

/// Layers are shared equally, but for stages on all devices, which get one each; every chain that nothing
/// connects to another is a copy of the model. Throws InputError where the options do not fit the shape: an
/// odd number of devices for X, a list that has not one value per device, fewer layers than stages.
Placement shape(const std::string& name, const ShapeOptions& options);

}  // namespace ostinato
