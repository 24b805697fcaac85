// SPDX-License-Identifier: Apache-2.0
#include "search/repetend/slots.h"

#include <algorithm>
#include <functional>

namespace ostinato {
namespace {

/// Each time, the longest first, into the first gap that still holds it.
bool pack(std::vector<Nanoseconds>& gaps, const std::vector<Nanoseconds>& times) {
  std::sort(gaps.begin(), gaps.end());
  for (const Nanoseconds time : times) {
    const auto gap = std::find_if(gaps.begin(), gaps.end(), [&](Nanoseconds g) { return g >= time; });
    if (gap == gaps.end()) return false;
    *gap -= time;
  }
  return true;
}

}  // namespace

Slots::Slots(const Instance& in, int unroll, Nanoseconds period) : in_(in), period_(period) {
  devices_.resize(in.devices());
  for (int d = 0; d < in.devices(); ++d) {
    std::vector<Nanoseconds>& times = devices_[d].to_come;
    for (const int b : in.blocks_on(d)) times.insert(times.end(), unroll, in.time(b));
    std::sort(times.begin(), times.end(), std::greater<>());
  }
}

/// How much later than `from` the phase comes next.
Nanoseconds Slots::later(Nanoseconds from, Nanoseconds phase) const {
  return ((phase - from) % period_ + period_) % period_;
}

/// Including empty ones.
std::vector<Slots::Interval> Slots::gaps(const Device& device) const {
  if (device.busy.empty()) return {{0, period_}};
  std::vector<Interval> gaps;
  for (std::size_t i = 0; i < device.busy.size(); ++i) {
    const Interval& busy = device.busy[i];
    const bool last = i + 1 == device.busy.size();
    const Nanoseconds next = last ? device.busy.front().start + period_ : device.busy[i + 1].start;
    gaps.push_back({(busy.start + busy.length) % period_, next - busy.start - busy.length});
  }
  return gaps;
}

bool Slots::fits(const Device& device, Nanoseconds phase, Nanoseconds time) const {
  std::vector<Nanoseconds> left;
  bool free = false;
  for (const Interval& gap : gaps(device)) {
    const Nanoseconds before = device.busy.empty() ? 0 : later(gap.start, phase);
    if (free || before + time > gap.length) {
      left.push_back(gap.length);
      continue;
    }
    free = true;
    left.push_back(before);
    left.push_back(gap.length - before - time);
  }
  if (!free) return false;
  std::vector<Nanoseconds> times = device.to_come;
  times.erase(std::find(times.begin(), times.end(), time));
  return pack(left, times);
}

std::optional<Nanoseconds> Slots::earliest(int b, Nanoseconds ready) const {
  const Nanoseconds time = in_.time(b);
  std::vector<Nanoseconds> waits = {0};
  for (const int d : in_.devices_of(b)) {
    for (const Interval& gap : gaps(devices_[d])) {
      waits.push_back(later(ready, gap.start));
      waits.push_back(later(ready, gap.start + gap.length - time));
    }
  }
  std::sort(waits.begin(), waits.end());
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  for (const Nanoseconds wait : waits) {
    const Nanoseconds phase = later(0, ready + wait);
    const auto devices = in_.devices_of(b);
    if (std::all_of(devices.begin(), devices.end(), [&](int d) { return fits(devices_[d], phase, time); })) {
      return ready + wait;
    }
  }
  return std::nullopt;
}

void Slots::take(int b, Nanoseconds phase) {
  for (const int d : in_.devices_of(b)) {
    Device& device = devices_[d];
    const auto after = [&](Nanoseconds start, const Interval& busy) { return start < busy.start; };
    device.busy.insert(std::upper_bound(device.busy.begin(), device.busy.end(), phase, after),
                       {phase, in_.time(b)});
    device.to_come.erase(std::find(device.to_come.begin(), device.to_come.end(), in_.time(b)));
  }
}

}  // namespace ostinato
