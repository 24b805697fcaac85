// SPDX-License-Identifier: Apache-2.0
#include "search/partition/partition_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "search/files/error.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw InputError("", 0, message); }

void check_ranges(const PartitionOptions& options) {
  constexpr int kMost = 65536;
  const auto devices = options.cluster ? options.cluster->devices.size() : options.devices;
  if (devices < 1 || devices > kMost)
    refuse(fmt::format("the number of devices must be between 1 and {}, got {}", kMost, devices));
  if (options.chunks < 1 || options.chunks > kMost) {
    refuse(fmt::format("the number of chunks per device must be between 1 and {}, got {}", kMost,
                       options.chunks));
  }
  if (options.micro_batches < 1)
    refuse(fmt::format("a step needs at least 1 micro-batch, got {}", options.micro_batches));
  if (options.device_memory < 0) refuse("the memory of a device must not be negative");
  if (options.inference && (options.split_backward || options.recompute != Recompute::never))
    refuse("inference has no backward: split_backward and recompute must be off");
}

void check_layer(const LayerCost& layer, bool split, bool inference) {
  if (layer.forward.repeats == 0) refuse(fmt::format("the forward of layer {} was not measured", layer.name));
  if (inference) return;
  if (layer.backward.repeats == 0 && !(split && layer.halves()))
    refuse(fmt::format("the backward of layer {} was not measured", layer.name));
  if (layer.halves() && layer.backward_input.median == 0 && layer.backward_weight.median == 0 &&
      layer.backward.median > 0)
    refuse(
        fmt::format("the halves of the backward of layer {} take no time, but the whole takes {}; for halves "
                    "that were not measured, 'repeats' must be 0",
                    layer.name, format_time(layer.backward.median)));
}

/// Every sum that a partition makes stays within int64.
void check_sums(const Profile& profile, int micro_batches) {
  constexpr __int128 most = std::numeric_limits<std::int64_t>::max() / 16;
  __int128 time = 0, bytes = 0;
  for (const LayerCost& layer : profile.layers) {
    for (const Spread* spread :
         {&layer.forward, &layer.backward, &layer.backward_input, &layer.backward_weight})
      time += spread->median;
    time += layer.step_time + static_cast<__int128>(layer.recompute.value_or(0));
    time += static_cast<__int128>(profile.rank.forward) + 2 * static_cast<__int128>(profile.rank.backward);
    for (const Bytes part : {layer.kept, layer.waiting, layer.labels, layer.sent, layer.forward_workspace,
                             layer.backward_workspace, layer.weight_workspace, layer.input_bytes,
                             layer.inference_workspace.value_or(0), layer.reduced.value_or(0)})
      bytes += static_cast<__int128>(part) * micro_batches;
    for (const LayerInput& part : layer.passed) bytes += part.bytes;
    for (const Bytes part : {layer.parameters, layer.gradients, layer.optimizer_state, layer.step_together,
                             layer.step_alone, layer.output_bytes})
      bytes += part;
    bytes += static_cast<__int128>(profile.rank.buffers) * (layer.input_bytes + layer.output_bytes);
  }
  time += static_cast<__int128>(2) * profile.rank.read + profile.rank.step_time;
  bytes += static_cast<__int128>(profile.rank.held) + profile.rank.step;
  if (time > most)
    refuse(
        fmt::format("the times of all layers together reach {:.1e} ns, but at most {:.1e} can be planned: "
                    "are they in nanoseconds?",
                    static_cast<double>(time), static_cast<double>(most)));
  if (bytes > most)
    refuse(
        fmt::format("the memory of all layers in {} micro-batches reaches {:.1e} bytes, but at most {:.1e} "
                    "can be planned: is it in bytes?",
                    micro_batches, static_cast<double>(bytes), static_cast<double>(most)));
}

}  // namespace

Cluster cluster_of(const PartitionOptions& options) {
  return options.cluster ? *options.cluster : alike(options.devices, options.device_memory);
}

bool has_lanes(const Profile& profile, const PartitionOptions& options) {
  return options.lanes != LanesOf::none &&
         std::ranges::any_of(profile.layers, [](const LayerCost& layer) { return !layer.lane.empty(); });
}

void check_partition(const Profile& profile, const PartitionOptions& options) {
  check_ranges(options);
  if (!profile.completeness.complete && !options.allow_incomplete) {
    refuse(
        fmt::format("the profile of {} is not complete ({}): measure again, or allow an incomplete profile "
                    "(--allow-incomplete)",
                    profile.model, profile.completeness.reason));
  }
  if (profile.layers.empty()) refuse("the profile has no layers; it needs at least one");
  const int layers = static_cast<int>(profile.layers.size());
  for (const int l : options.sharded) {
    if (l < 0 || l >= layers) refuse(fmt::format("no layer {}: the model has {}", l, layers));
  }
  for (const LayerCost& layer : profile.layers) check_layer(layer, options.split_backward, options.inference);
  check_sums(profile, options.micro_batches);
}

}  // namespace ostinato
