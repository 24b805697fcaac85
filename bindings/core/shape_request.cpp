// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/shape_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bindings/core/numbers.h"
#include "bindings/core/options.h"
#include "bindings/core/usage_error.h"
#include "search/files/error.h"
#include "search/files/units.h"
#include "search/placement/placement_check.h"
#include "search/placement/quantity.h"
#include "search/placement/shapes.h"

namespace ostinato::core {
namespace {

/// Turns what was typed into nanoseconds and bytes; throws UsageError with the option's name.
class Resolver {
 public:
  explicit Resolver(const ShapeRequest& typed) : typed_(typed) {
    check_choice("--time-unit", typed.time_unit, {"ns", "us", "ms", "s"});
    check_choice("--memory-unit", typed.memory_unit, {"B", "KiB", "MiB", "GiB"});
  }

  Nanoseconds time(const char* option, const std::string& text) const {
    const auto value = parse_time(text, typed_.time_unit);
    if (!value) throw UsageError(fmt::format("{} needs a time like 1.5 or 1.5ms, got \"{}\"", option, text));
    return *value;
  }

  Bytes memory(const char* option, const std::string& text) const {
    if (text == "unlimited") return kUnlimited;
    const auto value = parse_memory(text, typed_.memory_unit);
    if (!value)
      throw UsageError(fmt::format("{} needs an amount like 64, 64MiB or 64MB, got \"{}\"", option, text));
    return *value;
  }

  PerDevice<Nanoseconds> times(const char* option, const std::string& text) const {
    return list(text, [&](const std::string& part) { return time(option, part); });
  }

  PerDevice<Bytes> memories(const char* option, const std::string& text) const {
    return list(text, [&](const std::string& part) { return memory(option, part); });
  }

  std::int64_t bandwidth() const {
    const auto value = parse_scaled(typed_.bandwidth, kGigabyte);
    if (!value || rounds_to_zero(typed_.bandwidth, kGigabyte))
      throw UsageError(fmt::format("--bandwidth needs GB/s like 12.5, got \"{}\"", typed_.bandwidth));
    return *value;
  }

 private:
  template <typename Parse>
  static PerDevice<std::int64_t> list(const std::string& text, Parse parse) {
    std::vector<std::int64_t> values;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      values.push_back(parse(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    return values;
  }

  const ShapeRequest& typed_;
};

ShapeOptions resolve(const ShapeRequest& typed) {
  const Resolver of(typed);
  ShapeOptions options{.devices = typed.devices, .chunks = typed.chunks};
  options.layers = typed.layers;
  options.forward = of.times("--forward", typed.forward);
  options.backward = of.times("--backward", typed.backward);
  options.weight = of.times("--weight", typed.weight);
  options.shard_forward = of.time("--shard-forward", typed.shard_forward);
  options.shard_backward = of.time("--shard-backward", typed.shard_backward);
  options.memory = of.memories("--memory", typed.memory);
  if (!typed.shard_memory.empty()) options.shard_memory = of.memory("--shard-memory", typed.shard_memory);
  options.offload = of.times("--offload", typed.offload);
  options.workspace = of.memories("--workspace", typed.workspace);
  options.capacity = of.memories("--capacity", typed.capacity);
  options.static_memory = of.memories("--static", typed.static_memory);
  options.link = {of.time("--latency", typed.latency), of.bandwidth()};
  options.bytes = of.memory("--bytes", typed.bytes);
  options.training = !typed.inference;
  return options;
}

}  // namespace

Placement shape_of(const ShapeRequest& request) {
  check_choice("shape", request.shape, shape_names());
  const ShapeOptions options = resolve(request);
  try {
    Placement placement = shape(request.shape, options);
    check_placement(placement, {}, "");
    return placement;
  } catch (const InputError& error) {
    throw UsageError(error.what());
  }
}

}  // namespace ostinato::core
