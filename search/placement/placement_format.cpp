// SPDX-License-Identifier: Apache-2.0
// Writing ostinato-placement/1.

#include <fmt/format.h>

#include <cassert>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "search/files/toml_values.h"
#include "search/files/units.h"
#include "search/placement/lanes.h"
#include "search/placement/placement_toml.h"

namespace ostinato {
namespace {

/// Keeps the largest unit that all values given to it are multiples of.
class UnitChoice {
 public:
  explicit UnitChoice(const std::array<Unit, 4>& units, std::string_view default_name)
      : units_(units), default_name_(default_name) {}

  void add(std::int64_t value) {
    any_ = any_ || value != 0;
    while (value % units_[largest_].factor != 0) --largest_;
  }

  Unit choose() const {
    for (const Unit& unit : units_) {
      if (!any_ && unit.name == default_name_) return unit;
    }
    return units_[largest_];
  }

 private:
  const std::array<Unit, 4>& units_;
  std::string_view default_name_;
  std::size_t largest_ = 3;
  bool any_ = false;
};

Unit time_unit(const Placement& placement) {
  UnitChoice choice(kTimeUnits, "us");
  choice.add(placement.link.latency);
  for (const auto& [pair, link] : placement.links) choice.add(link.latency);
  for (const Block& block : placement.blocks) choice.add(block.time);
  return choice.choose();
}

Unit memory_unit(const Placement& placement) {
  UnitChoice choice(kMemoryUnits, "MiB");
  for (const Device& device : placement.devices) {
    if (device.memory != kUnlimited) choice.add(device.memory);
    choice.add(device.static_memory);
  }
  for (const Block& block : placement.blocks) {
    choice.add(block.memory);
    choice.add(block.workspace);
  }
  return choice.choose();
}

/// Bytes per second as GB/s, exactly: nine decimals at most.
std::string gigabytes(std::int64_t bytes_per_second) {
  std::string text = fmt::format("{}.{:09}", bytes_per_second / kGigabyte, bytes_per_second % kGigabyte);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

class Writer {
 public:
  explicit Writer(const Placement& placement)
      : placement_(placement), time_(time_unit(placement)), memory_(memory_unit(placement)) {}

  std::string run() {
    line("format = \"ostinato-placement/1\"");
    line("name = {}", toml_string(placement_.name));
    line("time_unit = \"{}\"", time_.name);
    line("memory_unit = \"{}\"", memory_.name);
    if (placement_.link.latency != 0 || placement_.link.bytes_per_second != 0) {
      line("\n[link]");
      link(placement_.link);
    }
    for (const auto& [pair, override] : placement_.links) {
      if (placement_.devices[pair.first].lane_of >= 0 || placement_.devices[pair.second].lane_of >= 0)
        continue;  // as their devices'
      line("\n[[links]]\nfrom = {}\nto = {}", pair.first, pair.second);
      link(override);
    }
    for (int d = 0; d < count_without_lanes(placement_); ++d) device(d);
    for (const Host& host : placement_.hosts) {
      line("\n[[hosts]]\ndevices = [{}]\ncores = {}", fmt::join(host.devices, ", "), host.cores);
      if (host.ranks != 1) line("ranks = {}", host.ranks);
    }
    for (const Stage& s : placement_.stages) stage(s);
    for (const Block& b : placement_.blocks) block(b);
    return std::move(text_);
  }

 private:
  template <typename... Arguments>
  void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }

  void stage(const Stage& stage) {
    std::string runs;
    for (const LayerRun& run : stage.layers.runs())
      runs += fmt::format("{}[{}, {}]", runs.empty() ? "" : ", ", run.first, run.end);
    line("\n[[stages]]\nname = {}", toml_string(stage.name));
    line("layers = {}", stage.layers.runs().size() > 1 ? "[" + runs + "]" : runs);
    if (stage.recompute) line("recompute = true");
  }

  void link(const Link& link) {
    line("latency = {}", link.latency / time_.factor);
    line("bandwidth = {}", gigabytes(link.bytes_per_second));
  }

  void device(int d) {
    const Device& device = placement_.devices[d];
    line("\n[[devices]]\nname = {}", toml_string(device.name));
    if (!device.kind.empty()) line("kind = {}", toml_string(device.kind));
    if (device.memory != kUnlimited) line("memory = {}", device.memory / memory_.factor);
    if (device.static_memory != 0) line("static = {}", device.static_memory / memory_.factor);
    std::vector<std::string> lanes;
    for (const Device& lane : placement_.devices)
      if (lane.lane_of == d) lanes.push_back(toml_string(lane.lane));
    if (!lanes.empty()) line("lanes = [{}]", fmt::join(lanes, ", "));
  }

  /// Its devices, and on which lanes of these where it is not on the devices themselves.
  void where(const Block& block) {
    std::set<int> devices;
    std::set<std::string> lanes;
    for (const int d : block.devices) {
      const Device& device = placement_.devices[d];
      devices.insert(device.lane_of < 0 ? d : device.lane_of);
      lanes.insert(toml_string(device.lane_of < 0 ? kComputing : device.lane));
    }
    assert(devices.size() * lanes.size() == block.devices.size());
    line("devices = [{}]", fmt::join(devices, ", "));
    if (lanes.size() > 1) line("lane = [{}]", fmt::join(lanes, ", "));
    if (lanes.size() == 1 && *lanes.begin() != toml_string(kComputing)) line("lane = {}", *lanes.begin());
  }

  void block(const Block& block) {
    line("\n[[blocks]]\nname = {}", toml_string(block.name));
    line("stage = {}", toml_string(block.stage));
    line("kind = \"{}\"", to_string(block.kind));
    where(block);
    line("time = {}", block.time / time_.factor);
    if (block.memory != 0) line("memory = {}", block.memory / memory_.factor);
    if (block.workspace != 0) line("workspace = {}", block.workspace / memory_.factor);
    std::string inputs;
    for (const Dependency& input : block.after) {
      const std::string name = toml_string(placement_.blocks[input.block].name);
      if (!inputs.empty()) inputs += ", ";
      inputs += input.bytes == 0 ? name : fmt::format("{{ block = {}, bytes = {} }}", name, input.bytes);
    }
    line("after = [{}]", inputs);
  }

  const Placement& placement_;
  Unit time_;
  Unit memory_;
  std::string text_;
};

}  // namespace

std::string format_placement(const Placement& placement) { return Writer(placement).run(); }

}  // namespace ostinato
