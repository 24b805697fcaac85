// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/stretch.h"

#include <algorithm>
#include <numeric>

#include "search/bounds/feasible.h"

namespace ostinato {
namespace {

/// 1, 2, 3, 4, 6 and 8 divide it.
constexpr int kUnrolls = 24;
constexpr int kLeast = 64;
/// What both cost is not worth it for less.
constexpr int kSaving = 4;

/// On some device with limited memory, a micro-batch does not give back what it takes.
bool memory_adds_up(const Instance& in) {
  for (int d = 0; d < in.devices(); ++d) {
    if (in.limited(d) && left_behind(in, d) != 0) return true;
  }
  return false;
}

}  // namespace

int representative(const Instance& in, int micro_batches) {
  // A chain of forwards and backwards through all devices has up to two micro-batches a device in flight.
  const int least = std::max(kLeast, 3 * in.devices() + 16);
  if (micro_batches < kSaving * least || memory_adds_up(in)) return micro_batches;
  // Groups of as many micro-batches as devices: interleaved schedules.
  const int step = in.devices() <= 8 ? std::lcm(kUnrolls, in.devices()) : kUnrolls;
  const int few = least + (micro_batches - least) % step;
  return kSaving * few <= micro_batches ? few : micro_batches;
}

std::vector<ScheduledBlock> stretch(const Instance& in, const std::vector<ScheduledBlock>& schedule,
                                    const SteadyState& steady, int more) {
  Nanoseconds cut = 0;
  const int latest_first = steady.first + steady.unroll - 1;
  for (const ScheduledBlock& s : schedule) {
    if (s.micro_batch == latest_first) cut = std::max(cut, s.start);
  }
  const auto starts_at = [&](Nanoseconds time) {
    return std::partition_point(schedule.begin(), schedule.end(),
                                [&](const ScheduledBlock& s) { return s.start < time; });
  };
  const auto begin = starts_at(cut);
  const auto end = starts_at(cut + steady.period);
  std::vector<ScheduledBlock> result;
  result.reserve(schedule.size() + static_cast<std::size_t>(in.blocks()) * more * steady.unroll);
  result.insert(result.end(), schedule.begin(), begin);
  const auto again = [&](auto from, auto to, int times) {
    for (auto s = from; s != to; ++s) {
      result.push_back({s->block, s->micro_batch + times * steady.unroll, s->start + times * steady.period});
    }
  };
  for (int k = 0; k < more; ++k) again(begin, end, k);
  again(begin, schedule.end(), more);
  return result;
}

}  // namespace ostinato
