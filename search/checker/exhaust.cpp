// SPDX-License-Identifier: Apache-2.0
// 1. It applies only where sums stay far from the ends of int64 and no block changes memory in no time;
//    otherwise the verdict is `inapplicable`.
// 2. Forwards with three quarters of the work; if that does not decide, backwards with the rest, provided
//    that a schedule read backwards is one as well.
// 3. search(): each level extends all partial schedules by one step (partial.h) and drops what cannot end in
//    time, and what another one with the same counts dominates. An empty level proves that no schedule ends
//    below.
// Work counts blocks per child; two levels are in memory.
#include "search/checker/exhaust.h"

#include <algorithm>
#include <unordered_map>

#include "search/checker/partial.h"

namespace ostinato::checker {
namespace {

/// FNV-1a over whole counts.
struct HashCounts {
  std::size_t operator()(const std::vector<int>& counts) const {
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (const int count : counts) hash = (hash ^ static_cast<std::uint64_t>(count)) * 0x100000001b3ULL;
    return hash ^ hash >> 29;
  }
};

/// Partial schedules of equally many steps; of those with equal counts only what no other dominates.
class Level {
 public:
  void add(Partial&& state) {
    std::vector<std::size_t>& same = by_counts_[state.count];
    const auto dominates = [&](std::size_t i) { return states_[i].dominates(state); };
    if (std::any_of(same.begin(), same.end(), dominates)) return;
    std::erase_if(same, [&](std::size_t i) {
      const bool dominated = state.dominates(states_[i]);
      if (dominated) states_[i].count.clear();
      return dominated;
    });
    same.push_back(states_.size());
    states_.push_back(std::move(state));
  }

  bool empty() const { return states_.empty(); }

  /// Calls visit(state) until it returns false.
  template <typename Visit>
  void each(Visit visit) const {
    for (const Partial& state : states_) {
      const bool out = state.count.empty();
      if (!out && !visit(state)) return;
    }
  }

 private:
  std::vector<Partial> states_;
  std::unordered_map<std::vector<int>, std::vector<std::size_t>, HashCounts> by_counts_;
};

/// Counts and sums stay far from the ends of int64, and the order on a device tells what it holds.
bool applicable(const Graph& graph, int n) {
  Wide bytes = 0;
  for (int b = 0; b < graph.blocks(); ++b) {
    const Block& block = graph.block(b);
    bytes += static_cast<Wide>(std::max(block.memory, -block.memory)) * n + block.workspace;
    if (block.time == 0 && block.memory != 0) return false;
  }
  return bytes < static_cast<Wide>(1) << 62;
}

/// Whether a schedule read backwards is one as well: nothing is held before the first step and after the
/// last.
bool reversible(const Graph& graph) {
  for (int d = 0; d < graph.devices(); ++d) {
    if (graph.placement().devices[d].memory == kUnlimited) continue;
    Wide kept = 0;
    for (const int b : graph.on_device(d)) kept += graph.block(b).memory;
    if (kept != 0) return false;
  }
  return true;
}

/// One direction of time; adds to `work` and stops beyond `most_work`.
Verdict search(Moves moves, std::int64_t steps, std::int64_t blocks, std::int64_t most_work,
               std::int64_t& work) {
  Level level;
  level.add(moves.root());
  for (std::int64_t step = 0; step < steps; ++step) {
    Level next;
    Partial child;
    level.each([&](const Partial& state) {
      moves.open(state);
      for (const Choice& choice : moves.choices()) {
        work += blocks;
        if (moves.append(choice, child)) next.add(std::move(child));
      }
      return work <= most_work;
    });
    if (work > most_work) return Verdict::unknown;
    if (next.empty()) return Verdict::none;
    level = std::move(next);
  }
  return Verdict::some;
}

}  // namespace

bool all_from(const Graph& graph, int device, bool backwards) {
  bool all = true;
  graph.walk(backwards, [&](int b, const std::vector<Graph::Edge>& edges) {
    const auto& devices = graph.block(b).devices;
    all = all && (!edges.empty() || std::find(devices.begin(), devices.end(), device) != devices.end());
  });
  return all;
}

Exhaustion exhaust(const Graph& graph, const Windows& windows, int n, Nanoseconds below,
                   std::int64_t most_work) {
  Exhaustion result;
  result.verdict = Verdict::inapplicable;
  if (!windows.known() || !applicable(graph, n)) return result;
  const std::int64_t blocks = graph.blocks();
  for (const bool backwards : {false, true}) {
    const bool from_origin = windows.origin() == kNoDevice || all_from(graph, windows.origin(), backwards);
    if (!from_origin || (backwards && !reversible(graph))) continue;
    const std::int64_t most = backwards ? most_work : most_work / 4 * 3;
    result.verdict =
        search(Moves(graph, windows, n, below - 1, backwards), blocks * n, blocks, most, result.work);
    if (result.verdict != Verdict::unknown) break;
  }
  return result;
}

}  // namespace ostinato::checker
