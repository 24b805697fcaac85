// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/statements.h"

#include <algorithm>
#include <set>

#include "search/bounds/cut_out.h"
#include "search/bounds/idle.h"
#include "search/bounds/trial.h"
#include "search/bounds/whole_steps.h"
#include "search/bounds/windows.h"

namespace ostinato {
namespace {

/// M4 and M5 of all devices.
Nanoseconds of_windows(const Instance& in, const Instance& mirror, const Matchings& held,
                       const Windows& windows, const std::function<bool()>& stop) {
  Nanoseconds bound = 0;
  for (int d = 0; d < in.devices() && windows.known() && !(stop && stop()); ++d)
    bound = std::max({bound, least_end_of(in, windows, d), idle_bound(in, mirror, held, windows, d)});
  return bound;
}

/// M3 of all devices.
Nanoseconds of_memory(const Instance& in, const Matchings& held, int n) {
  Nanoseconds bound = 0;
  for (int d = 0; d < in.devices(); ++d) {
    if (!held[d] || in.room(d) <= 0) continue;
    const Area area = area_of(in, d, *held[d]);
    if (area.bytes_time == 0) continue;
    bound = std::max(bound, area.head + window_of(area, n, in.room(d)) + area.tail);
  }
  return bound;
}

/// Times that stay of each set that is cut out.
constexpr std::size_t kMostStays = 8;

std::vector<Nanoseconds> times_that_stay(const Instance& in, const std::vector<int>& cut) {
  Nanoseconds longest = 0;
  std::set<Nanoseconds> times = {0};
  for (const int b : cut) {
    times.insert(in.time(b));
    longest = std::max(longest, in.time(b));
  }
  for (int b = 0; b < in.blocks(); ++b) {
    for (const Edge& e : in.inputs(b)) times.insert(e.transfer);
  }
  std::vector<Nanoseconds> result(times.begin(), times.lower_bound(longest));
  result.resize(std::min(result.size(), kMostStays));
  return result;
}

/// M6 for one set, leaving the first `stays` nanoseconds of each of its blocks.
Nanoseconds beside(const Instance& in, const std::vector<int>& cut, Nanoseconds stays, int n,
                   const std::function<bool()>& stop) {
  Placement rest = in.placement();
  std::vector<Nanoseconds> longest(rest.blocks.size(), stays);
  __int128 cut_out = 0;
  for (int b = 0; b < in.blocks(); ++b) {
    Nanoseconds& time = rest.blocks[b].time;
    if (time == 0) longest[b] = 0;
    if (std::find(cut.begin(), cut.end(), b) != cut.end()) {
      cut_out += std::max<Nanoseconds>(0, time - stays);
      time = std::min(time, stays);
    } else if (!shares_with_all(in, b, cut)) {
      longest[b] = time = 0;
    }
  }
  const Instance left(rest, longest);
  const Instance mirror = left.reversed();
  const Matchings held = match_all(left);
  const Windows windows(left, mirror, held, n, kNoDevice, stop);
  const Nanoseconds bound = std::max(of_memory(left, held, n), of_windows(left, mirror, held, windows, stop));
  return static_cast<Nanoseconds>(cut_out * n) + bound;
}

/// Whether nothing runs, in the direction of the instance, before the device does.
bool all_from(const Instance& in, int device) {
  for (int b = 0; b < in.blocks(); ++b) {
    const auto devices = in.devices_of(b);
    if (in.inputs(b).empty() && !std::binary_search(devices.begin(), devices.end(), device)) return false;
  }
  return true;
}

/// A schedule read backwards is one as well.
bool reversible(const Instance& in) {
  for (int d = 0; d < in.devices(); ++d) {
    __int128 kept = 0;
    for (const int b : in.blocks_on(d)) kept += in.memory(b);
    if (in.limited(d) && kept != 0) return false;
  }
  return true;
}

bool applicable(const Instance& in, int n) {
  __int128 bytes = 0;
  for (int b = 0; b < in.blocks(); ++b) {
    if (in.time(b) == 0 && in.memory(b) != 0) return false;
    bytes += static_cast<__int128>(std::max(in.memory(b), -in.memory(b))) * n + in.workspace(b);
  }
  return bytes < __int128{1} << 62;
}

/// Three quarters of the work forwards, the rest backwards.
Trial try_both_ways(const Instance& in, const Instance& mirror, const Windows& windows, Nanoseconds below,
                    std::int64_t most_work, const std::function<bool()>& stop) {
  Trial trial;
  for (const Instance* way : {&in, &mirror}) {
    const bool backwards = way == &mirror;
    const bool from_origin = windows.origin() == kNoDevice || all_from(*way, windows.origin());
    if (!from_origin || (backwards && !reversible(in))) continue;
    const std::int64_t most = backwards ? most_work : most_work / 4 * 3;
    trial.verdict = try_one_way(*way, windows, below - 1, most, trial.work, stop);
    if (trial.verdict != Trial::unknown) break;
  }
  return trial;
}

Nanoseconds makespan_by_windows(const Instance& in, const Instance& mirror, int n,
                                const std::function<bool()>& stop) {
  if (!Windows::affordable(in, n)) return 0;
  const Matchings held = match_all(in);
  const Windows windows(in, mirror, held, n, kNoDevice, stop);
  Nanoseconds bound = of_windows(in, mirror, held, windows, stop);
  for (const std::vector<int>& cut : sets_to_cut(in)) {
    for (const Nanoseconds stays : times_that_stay(in, cut))
      bound = std::max(bound, beside(in, cut, stays, n, stop));
  }
  return bound;
}

Nanoseconds span_by_windows(const Instance& in, const Instance& mirror, int n, Nanoseconds enough,
                            std::int64_t most_work, const std::function<bool()>& stop) {
  if (!Windows::affordable(in, n)) return 0;
  const Matchings held = match_all(in);
  Nanoseconds bound = 0;
  for (const Instance* way : {&in, &mirror}) bound = whole_steps_bound(*way, n, bound, enough);
  for (int d = 0; d < in.devices() && bound < enough && most_work > 0; ++d) {
    const Windows windows(in, mirror, held, n, d, stop);
    if (!windows.known()) break;
    most_work -= windows.work();
    bound = std::max(bound, of_windows(in, mirror, held, windows, stop));
  }
  return bound;
}

}  // namespace

Nanoseconds bound_by_windows(const Instance& in, const Instance& mirror, Objective objective, int n,
                             Nanoseconds enough, std::int64_t most_work, const std::function<bool()>& stop) {
  if (objective == Objective::span) return span_by_windows(in, mirror, n, enough, most_work, stop);
  return makespan_by_windows(in, mirror, objective == Objective::latency ? 1 : n, stop);
}

Trial try_all(const Instance& in, const Instance& mirror, Objective objective, int n, Nanoseconds below,
              std::int64_t most_work, const std::function<bool()>& stop) {
  const bool of_several = objective == Objective::latency && n > 1;
  if (of_several || !applicable(in, n) || !Windows::affordable(in, n)) return {};
  const Matchings held = match_all(in);
  if (objective != Objective::span)
    return try_both_ways(in, mirror, Windows(in, mirror, held, n), below, most_work, stop);
  Trial all;
  for (int d = 0; d < in.devices(); ++d) {
    if (!all_from(in, d) && !all_from(mirror, d)) continue;
    const Trial one =
        try_both_ways(in, mirror, Windows(in, mirror, held, n, d), below, most_work - all.work, stop);
    all.work += one.work;
    all.verdict = one.verdict == Trial::none ? Trial::none : Trial::unknown;
    if (all.verdict == Trial::none) break;
  }
  return all;
}

}  // namespace ostinato
