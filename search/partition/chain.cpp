#include "search/partition/chain.h"

#include <fmt/format.h>

#include <algorithm>

#include "search/error.h"
#include "search/partition/chain_placement.h"
#include "search/partition/chain_problem.h"

namespace ostinato {
namespace {

using namespace chain;

[[noreturn]] void refuse(const std::string& message) { throw InputError("", 0, message); }

void check_options(const PartitionOptions& options) {
  constexpr int kMost = 65536;
  if (options.devices < 1 || options.devices > kMost) {
    refuse(fmt::format("the number of devices must be between 1 and {}, got {}", kMost, options.devices));
  }
  if (options.chunks < 1 || options.chunks > kMost) {
    refuse(fmt::format("the number of chunks per device must be between 1 and {}, got {}", kMost,
                       options.chunks));
  }
  if (options.micro_batches < 1) {
    refuse(fmt::format("a step needs at least 1 micro-batch, got {}", options.micro_batches));
  }
  if (options.device_memory < 0) refuse("the memory of a device must not be negative");
}

void check_layer(const LayerCost& layer, bool split) {
  if (layer.forward.repeats == 0) refuse(fmt::format("the forward of layer {} was not measured", layer.name));
  if (!split && layer.backward.repeats == 0) {
    refuse(fmt::format("the backward of layer {} was not measured", layer.name));
  }
  if (split && (layer.backward_input.repeats == 0 || layer.backward_weight.repeats == 0)) {
    refuse(fmt::format("the profile has no split backward of layer {}: partition with a whole backward",
                       layer.name));
  }
}

void check_profile(const Profile& profile, const PartitionOptions& options) {
  if (!profile.completeness.complete && !options.allow_incomplete) {
    refuse(
        fmt::format("the profile of {} is not complete ({}): measure again, or allow an incomplete profile",
                    profile.model, profile.completeness.reason));
  }
  const std::size_t layers = profile.layers.size();
  const long stages = static_cast<long>(options.devices) * options.chunks;
  if (static_cast<long>(layers) < stages) {
    refuse(fmt::format("{} devices with {} chunks each need at least {} layers, the model has {}",
                       options.devices, options.chunks, stages, layers));
  }
  for (const LayerCost& layer : profile.layers) check_layer(layer, options.split_backward);
}

Problem problem_at(const LayerSums& sums, const PartitionOptions& options, int cap) {
  Problem problem{sums, options.devices, devices_of_stages(options), {}, options.device_memory, cap == 1};
  for (int s = 0; s < problem.stages(); ++s) {
    problem.in_flight.push_back(std::min({options.micro_batches, problem.stages() - s, cap}));
  }
  return problem;
}

/// Why nothing fits with one micro-batch in flight: the shortest proof that holds.
std::string why_infeasible(const Profile& profile, const Problem& problem) {
  const int layers = problem.sums.layers();
  for (int i = 0; i < layers; ++i) {
    const Bytes needed = problem.needed(problem.add({}, 0, i, i + 1));
    if (needed > problem.memory) {
      return fmt::format("layer {} alone needs {} bytes with one micro-batch in flight, a device has {}",
                         profile.layers[i].name, needed, problem.memory);
    }
  }
  const Bytes fixed = problem.sums.fixed(0, layers);
  if (fixed / problem.devices > problem.memory) {
    return fmt::format("parameters, gradients and optimizer state take {} bytes, {} devices hold {} each",
                       fixed, problem.devices, problem.memory);
  }
  return fmt::format(
      "each of the partitions of {} layers into {} stages puts more than {} bytes on some device, even "
      "with one micro-batch in flight",
      layers, problem.stages(), problem.memory);
}

/// The best partition where memory does not count; then, where it does not fit, caps from the largest down
/// until fewer in flight cannot have a shorter period.
class Levels {
 public:
  Levels(const LayerSums& sums, const PartitionOptions& options)
      : sums_(sums), options_(options), chain_(sums.time(0, sums.layers())) {}

  /// The best cuts; `ends` is empty where none was found.
  ChainCuts best() {
    const int most = std::min(options_.micro_batches, options_.devices * options_.chunks);
    const Problem full = problem_at(sums_, options_, most);
    Problem unlimited = full;
    unlimited.memory = kUnlimited;
    const Found free = solve(unlimited, kNodes);
    if (all_fit(full, free.ends)) return {free.ends, free.busiest, free.lower_bound, most};
    for (int cap = most; cap >= 1; --cap) {
      if (!best_.ends.empty() && (least_period(cap) >= period_ || best_.busiest == free.lower_bound)) break;
      last_ = solve(problem_at(sums_, options_, cap), kNodes / 10);
      if (last_.ends.empty()) continue;
      const Nanoseconds period = std::max(last_.busiest, least_period(cap));
      if (!best_.ends.empty() && period >= period_) continue;
      period_ = period;
      best_ = {last_.ends, last_.busiest, last_.lower_bound, cap};
    }
    return best_;
  }

  bool proved_empty() const { return last_.proved_empty; }  ///< of the last level, cap == 1

 private:
  /// Nodes of branch and bound: a fraction of a second.
  static constexpr long kNodes = 3'000'000;

  Found solve(const Problem& problem, long nodes) const {
    return options_.chunks == 1 ? solve_single(problem) : solve_chunks(problem, nodes);
  }

  Nanoseconds least_period(int cap) const { return (chain_ + cap - 1) / cap; }

  const LayerSums& sums_;
  const PartitionOptions& options_;
  const Nanoseconds chain_;
  Found last_;
  ChainCuts best_;
  Nanoseconds period_ = 0;
};

}  // namespace

ChainCuts cut_chain(const Profile& profile, const PartitionOptions& options) {
  check_options(options);
  check_profile(profile, options);
  const LayerSums sums(profile, options.split_backward);
  Levels levels(sums, options);
  ChainCuts cuts = levels.best();
  if (!cuts.ends.empty()) return cuts;
  if (levels.proved_empty()) {
    throw InfeasibleError("no partition fits: " + why_infeasible(profile, problem_at(sums, options, 1)));
  }
  refuse(fmt::format(
      "no partition with {} chunks per device was found that fits {} bytes, and none was shown to be "
      "impossible: give more memory or devices, or fewer chunks",
      options.chunks, options.device_memory));
}

Placement partition_chain(const Profile& profile, const PartitionOptions& options) {
  return build_placement(profile, options, cut_chain(profile, options).ends);
}

}  // namespace ostinato
