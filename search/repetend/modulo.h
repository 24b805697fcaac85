// SPDX-License-Identifier: Apache-2.0
#pragma once
// Exact search of a repetend with a given period: branching over whole periods between blocks that share a
// device (repetend.h has the model).
//
//   ModuloProblem problem(in, 1);
//   ModuloEffort effort;
//   if (problem.solve(period, {}, effort) == ModuloProblem::Outcome::found) use(problem.start());
//
// Each node halves the range of one pair's k at its least value; the pair with the fewest values left for how
// often it failed before comes first (Boussemart et al. 2004: dom/wdeg). Bounds follow from the longest paths
// alone and are tightened to a fixpoint by the pairs (one value left: both its constraints) and by the
// memory:
//   - at the start of every block, what its device holds at least, and by how many periods each other block
//     may lie further off before that is too much;
//   - on average over a period, the matched bytes (modulo_compress.h) times how long they are held at least.
// Two blocks of no time never meet, wherever they start, so they are no pair. Where such blocks change memory
// it follows from the starts alone what counts at one instant: a solution is judged once more when it is
// whole, and none that was found proves nothing.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "search/placement/instance.h"
#include "search/repetend/modulo_compress.h"
#include "search/schedule/longest_paths.h"

namespace ostinato {

/// What a repetend may hold, beyond static memory.
struct ModuloLimits {
  std::vector<Bytes> room;                                ///< [device]; kUnlimited: not limited
  __int128 total = std::numeric_limits<__int128>::max();  ///< of the peaks of all devices together
};

/// What a search may spend; it counts down. Work is counted, not timed.
struct ModuloEffort {
  std::int64_t nodes = 4000;       ///< branches
  std::int64_t work = 30'000'000;  ///< entries of the matrix of longest paths and ranges looked at
  std::function<bool()> stop = {};
};

/// Items up to which the matrix of longest paths is small enough to be worth it.
inline constexpr std::int64_t kMostItems = 400;
inline bool searchable(const Instance& instance, int unroll) {
  return static_cast<std::int64_t>(instance.blocks()) * unroll <= kMostItems;
}

/// The items of a repetend: `unroll` copies of every block; item = copy * blocks + block.
class ModuloProblem {
 public:
  ModuloProblem(const Instance& instance, int unroll);

  enum class Outcome { found, none, limit };
  /// Looks for starts with this period. `none` is a proof that there are none; `limit` is not.
  Outcome solve(Nanoseconds period, const ModuloLimits& limits, ModuloEffort& effort);
  /// From now on, of pairs that are equally good to branch over another one comes first: other solutions.
  void reorder(std::uint64_t seed);
  /// Of each item, after `found`.
  const std::vector<Nanoseconds>& start() const { return start_; }
  /// The least period for the choices of the last solution; start() then has this period.
  Nanoseconds tighten(Nanoseconds at_least, Nanoseconds found);

 private:
  struct Pair {
    int x, y;    ///< x < y
    int shared;  ///< devices that both hold
    std::int64_t k = 0;
    std::int64_t failed = 1;  ///< how often it had no value left, and `shared`: wide blocks come first
    bool decided = false;
  };
  struct Range {
    std::int64_t least, most;
  };
  /// k <= `k` and k > `k`: which of the two is tried first.
  struct Split {
    std::int64_t k;
    bool below_first;
  };
  /// How much of the search is to be undone.
  struct Mark {
    std::size_t changes;
    std::size_t decisions;
  };
  int block(int item) const { return item % in_.blocks(); }
  int item(int copy, int block) const { return copy * in_.blocks() + block; }
  Range range(int x, int y) const;
  bool at_least(int x, int y, std::int64_t k) { return paths_.add(x, y, in_.time(block(x)) + k * period_); }
  bool at_most(int x, int y, std::int64_t k) {
    return paths_.add(y, x, in_.time(block(y)) - (k + 1) * period_);
  }
  bool out_of_work() const { return paths_.work() + looked_at_ > work_limit_; }
  __int128 reach() const;
  bool too_long() const;
  bool begin();
  bool keep_compressed();
  bool decide(Pair& pair, std::int64_t k);
  bool propagate();
  bool decide_forced(bool& again);
  bool propagate_memory(bool& again);
  bool average_fits();
  Bytes own_usage(int x) const;
  __int128 least_usage(int d, int x) const;
  bool tighten_usage(int d, int x, Bytes room, bool& again);
  bool fits() const;
  std::size_t choose() const;
  Split split_at(int x, int y, const Range& r) const;
  Outcome branch();
  Mark mark() const { return {paths_.mark(), trail_.size()}; }
  void undo(const Mark& mark);
  std::optional<std::vector<Nanoseconds>> starts_at(Nanoseconds period) const;
  void add_pairs();
  void add_dependencies();

  const Instance& in_;
  const Compression compression_;
  int unroll_;
  int items_;
  std::vector<std::vector<int>> on_device_;
  std::vector<Pair> pairs_;
  LongestPaths initial_;
  LongestPaths paths_;
  Nanoseconds period_ = 0;
  Nanoseconds reach_ = 0;
  ModuloLimits limits_;
  bool limited_ = false;
  ModuloEffort* effort_ = nullptr;
  std::int64_t work_limit_ = 0;
  std::vector<std::size_t> trail_;  ///< pairs in the order in which they were decided
  std::int64_t looked_at_ = 0;      ///< ranges computed
  std::vector<Nanoseconds> start_;
};

}  // namespace ostinato
