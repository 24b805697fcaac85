// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/spacing.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ostinato {
namespace {

/// Blocks with workspace times (blocks + edges), of all limited devices.
constexpr __int128 kMostSpacing = 1 << 28;

bool has_workspace(const Instance& in, int b) { return in.workspace(b) > 0 && in.time(b) > 0; }

bool affordable(const Instance& in) {
  __int128 work = 0;
  for (int d = 0; d < in.devices(); ++d) {
    if (!in.limited(d)) continue;
    for (const int b : in.blocks_on(d)) work += has_workspace(in, b) ? in.size() : 0;
  }
  return work <= kMostSpacing;
}

/// Bytes that a micro-batch holds while it runs the block, and for how long at least: from the block's start
/// on, or up to its end.
struct Part {
  Nanoseconds time;
  Bytes bytes;
};

/// Runs of the block at most within `time`: that of the micro-batches which hold what is held for so long.
void add_spacings(const Instance& in, int block, Bytes left, std::vector<Part> parts,
                  std::vector<Spacing>& found) {
  std::sort(parts.begin(), parts.end(), [](const Part& x, const Part& y) { return x.time > y.time; });
  Bytes held = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    held += parts[i].bytes;
    if (i + 1 < parts.size() && parts[i + 1].time == parts[i].time) continue;
    const std::int64_t runs = left / held + 1;
    if (parts[i].time / in.time(block) >= runs) found.push_back({block, runs, parts[i].time});
  }
}

void add_spacings(const Instance& in, int d, const std::vector<Held>& held, std::vector<Spacing>& found) {
  std::map<int, std::vector<Nanoseconds>> from;  // by taker
  for (const Held& h : held)
    if (h.giver >= 0 && !from.contains(h.taker)) from[h.taker] = distances_from(in, h.taker);
  for (const int b : in.blocks_on(d)) {
    if (!has_workspace(in, b)) continue;
    const std::vector<Nanoseconds> to = distances_from(in, b);
    std::vector<Part> behind, before;
    Bytes left = in.room(d) - in.workspace(b);
    for (const Held& h : held) {
      if (h.giver < 0 || from[h.taker][b] < 0 || to[h.giver] < 0) continue;
      left -= h.bytes;
      behind.push_back({to[h.giver], h.bytes});
      before.push_back({from[h.taker][b], h.bytes});
    }
    if (left < 0) continue;  // the block never runs, which is proved elsewhere
    add_spacings(in, b, left, std::move(behind), found);
    add_spacings(in, b, left, std::move(before), found);
  }
}

}  // namespace

Nanoseconds Spacing::window(const Instance& in, std::int64_t n) const {
  const __int128 window =
      static_cast<__int128>(n / runs) * apart + static_cast<__int128>(n % runs) * in.time(block);
  return static_cast<Nanoseconds>(std::min(window, __int128{1} << 61));
}

Nanoseconds Spacing::makespan(const Instance& in, std::int64_t micro_batches) const {
  return in.head(block) + window(in, micro_batches - 1) + in.time(block) + in.tail(block);
}

std::vector<Spacing> spacings(const Instance& in, const Matchings& held) {
  std::vector<Spacing> found;
  if (!affordable(in)) return found;
  for (int d = 0; d < in.devices(); ++d)
    if (held[d] && in.room(d) > 0) add_spacings(in, d, *held[d], found);
  return found;
}

}  // namespace ostinato
