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

/// `text` is an amount with a unit that `parse` knows, and only too large for int64.
template <class Parse>
bool is_too_large(const std::string& text, const Parse& parse) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string number = text.substr(0, end);
  return !number.empty() && number.front() != '.' && number.back() != '.' &&
         std::ranges::count(number, '.') <= 1 && !parse(text) && parse("1" + text.substr(end));
}

UsageError too_large(const char* option, const std::string& text, const char* unit) {
  return UsageError(fmt::format("{} is too large: \"{}\" is more than 2^63 - 1 {}", option, text, unit));
}

/// Turns what was typed into nanoseconds and bytes; throws UsageError with the option's name.
class Resolver {
 public:
  explicit Resolver(const ShapeRequest& typed) : typed_(typed) {
    check_choice("--time-unit", typed.time_unit, {"ns", "us", "ms", "s"});
    check_choice("--memory-unit", typed.memory_unit, {"B", "KiB", "MiB", "GiB"});
  }

  Nanoseconds time(const char* option, const std::string& text) const {
    const auto parse = [&](const std::string& t) { return parse_time(t, typed_.time_unit); };
    const auto value = parse(text);
    if (is_too_large(text, parse)) throw too_large(option, text, "ns");
    if (!value) throw UsageError(fmt::format("{} needs a time like 1.5 or 1.5ms, got \"{}\"", option, text));
    return *value;
  }

  Bytes memory(const char* option, const std::string& text) const {
    if (text == "unlimited") return kUnlimited;
    const auto parse = [&](const std::string& t) { return parse_memory(t, typed_.memory_unit); };
    const auto value = parse(text);
    if (is_too_large(text, parse)) throw too_large(option, text, "bytes");
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
