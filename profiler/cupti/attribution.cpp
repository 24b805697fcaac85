// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/attribution.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace ostinato::cupti {
namespace {

bool timed(const Activity& activity) { return activity.start > 0 && activity.end >= activity.start; }

void add(const Activity& activity, DeviceTime* time) {
  const Nanoseconds duration = activity.end - activity.start;
  if (activity.kind == ActivityKind::kernel) time->kernel += duration;
  if (activity.kind == ActivityKind::memcpy) time->memcpy += duration;
  if (activity.kind == ActivityKind::memset) time->memset += duration;
  time->start = time->activities == 0 ? activity.start : std::min(time->start, activity.start);
  time->end = std::max(time->end, activity.end);
  ++time->activities;
}

/// Launches that must have a kernel. A runtime launch may be recorded again as the driver launch inside it.
/// That has no separate kernel, and is left out.
std::vector<Launch> outermost(std::vector<Launch> launches) {
  std::sort(launches.begin(), launches.end(), [](const Launch& a, const Launch& b) {
    return std::tuple(a.thread, a.start, a.driver) < std::tuple(b.thread, b.start, b.driver);
  });
  const Launch* runtime = nullptr;
  std::vector<Launch> kept;
  for (const Launch& launch : launches) {
    const bool nested =
        launch.driver && runtime && runtime->thread == launch.thread && launch.end <= runtime->end;
    if (!launch.driver) runtime = &launch;
    if (!nested) kept.push_back(launch);
  }
  return kept;
}

void count_launches(const Records& records, Losses* losses) {
  std::unordered_set<std::uint32_t> kernels;
  for (const Activity& activity : records.activities) {
    if (activity.kind == ActivityKind::kernel) kernels.insert(activity.correlation);
  }
  for (const Launch& launch : outermost(records.launches)) {
    ++losses->launches;
    losses->launches_matched += kernels.contains(launch.correlation) ? 1 : 0;
  }
}

}  // namespace

void DeviceTime::add(const DeviceTime& other) {
  kernel += other.kernel;
  memcpy += other.memcpy;
  memset += other.memset;
  activities += other.activities;
  start = std::min(start, other.start);
  end = std::max(end, other.end);
}

Losses& Losses::operator+=(const Losses& other) {
  for (const auto count : {&Losses::ranges, &Losses::records, &Losses::launches, &Losses::launches_matched,
                           &Losses::dropped, &Losses::out_of_range, &Losses::untimed, &Losses::unknown,
                           &Losses::cut_buffers, &Losses::beyond_limit, &Losses::call_errors}) {
    this->*count += other.*count;
  }
  buffers.not_returned += other.buffers.not_returned;
  buffers.untouched += other.buffers.untouched;
  buffers.overwritten += other.buffers.overwritten;
  buffers.foreign += other.buffers.foreign;
  buffers.allocated = std::max(buffers.allocated, other.buffers.allocated);
  return *this;
}

DeviceTimes attribute(const Records& records) {
  std::unordered_map<std::uint32_t, std::uint64_t> external;
  external.reserve(records.links.size());
  for (const Link& link : records.links) external[link.correlation] = link.external_id;
  DeviceTimes times;
  std::map<Range, DeviceTime> ranges;
  for (const Activity& activity : records.activities) {
    const auto link = external.find(activity.correlation);
    const auto range = link == external.end() ? std::nullopt : decode(link->second);
    if (!range) ++times.losses.out_of_range;
    if (!timed(activity)) ++times.losses.untimed;
    if (!range || !timed(activity)) continue;
    DeviceTime& time = ranges[*range];
    time.range = *range;
    add(activity, &time);
  }
  for (const auto& [range, time] : ranges) times.ranges.push_back(time);
  count_launches(records, &times.losses);
  times.losses.records = records.seen;
  times.losses.unknown = records.unknown;
  times.losses.cut_buffers = records.cut_buffers;
  times.losses.beyond_limit = records.beyond_limit;
  return times;
}

Completeness completeness(const Losses& losses) {
  Completeness result;
  auto because = [&](std::int64_t count, const char* what) {
    if (count == 0) return;
    result.reason += (result.reason.empty() ? "" : "; ") + std::to_string(count) + " " + what;
  };
  because(losses.launches - losses.launches_matched, "kernel launches without a record of the kernel");
  because(losses.dropped, "records dropped by CUPTI");
  because(losses.out_of_range, "kernels, copies or memsets outside every range");
  because(losses.untimed, "kernels, copies or memsets without times");
  because(losses.unknown, "records of an unknown kind");
  because(losses.cut_buffers, "buffers cut inside a record");
  because(losses.beyond_limit, "records beyond the limit of records kept");
  because(losses.buffers.not_returned, "buffers not returned by CUPTI");
  because(losses.buffers.overwritten, "buffers overwritten before they were read");
  because(losses.buffers.foreign, "buffers returned that another profiler handed out");
  because(losses.call_errors, "calls refused by CUPTI or the device");
  if (losses.ranges > 0 && losses.records == 0) {
    because(losses.ranges,
            "ranges opened and no record at all: no work ran on a device, or another profiler took over");
  }
  result.complete = result.reason.empty();
  result.expected = losses.launches;
  result.seen = losses.launches_matched;
  result.dropped = losses.dropped;
  result.out_of_range = losses.out_of_range;
  return result;
}

}  // namespace ostinato::cupti
