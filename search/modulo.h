#pragma once
// Difference constraints between the starts of a repetend, and the branching over whole periods (repetend.h).

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "search/instance.h"

namespace ostinato {

/// Longest paths between items under constraints T(y) - T(x) >= weight, with undo.
class LongestPaths {
 public:
  static constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::min() / 4;

  explicit LongestPaths(int items);
  Nanoseconds get(int x, int y) const { return length_[index(x, y)]; }
  /// False if a positive cycle arises; then the matrix must be undone. O(items^2).
  bool add(int x, int y, Nanoseconds weight);
  std::int64_t work() const { return work_; }  ///< entries looked at so far
  std::size_t mark() const { return changes_.size(); }
  void undo(std::size_t mark);
  void keep() { changes_.clear(); }  ///< what was added so far is not undone

 private:
  struct Change {
    std::size_t at;
    Nanoseconds before;
  };
  std::size_t index(int x, int y) const {
    return static_cast<std::size_t>(x) * static_cast<std::size_t>(items_) + static_cast<std::size_t>(y);
  }
  int items_;
  std::vector<Nanoseconds> length_;
  std::vector<Change> changes_;
  std::vector<int> sources_, targets_;
  std::int64_t work_ = 0;
};

/// The items of a repetend: `unroll` copies of every block; item = copy * blocks + block.
class ModuloProblem {
 public:
  ModuloProblem(const Instance& instance, int unroll);

  enum class Outcome { found, none, limit };
  /// Looks for starts with this period. `none` only after all branches were tried. The start of each item is
  /// in start().
  /// Spends up to `nodes` branches, and `work` down to 0.
  Outcome solve(Nanoseconds period, std::int64_t nodes, std::int64_t& work,
                const std::function<bool()>& stop);
  const std::vector<Nanoseconds>& start() const { return start_; }
  /// The least period for the choices of the last solution; start() becomes that of this period.
  Nanoseconds tighten(Nanoseconds at_least, Nanoseconds found);

 private:
  struct Pair {
    int x, y;
    std::int64_t k = 0;
    bool decided = false;
  };
  struct Range {
    std::int64_t least, most;
  };
  int block(int item) const { return item % in_.blocks(); }
  Range range(int x, int y) const;
  bool out_of_work() const { return paths_.work() + looked_at_ > work_limit_; }
  bool decide(std::size_t pair, std::int64_t k);
  bool propagate();
  bool memory_fits();
  Bytes least_usage(int d, int x) const;
  Outcome branch();
  std::optional<std::vector<Nanoseconds>> starts_at(Nanoseconds period) const;
  void add_dependencies();

  const Instance& in_;
  int unroll_;
  int items_;
  std::vector<std::vector<int>> on_device_;
  std::vector<Pair> pairs_;
  LongestPaths paths_;
  LongestPaths initial_;
  Nanoseconds period_ = 0;
  std::int64_t nodes_ = 0;
  std::int64_t work_limit_ = 0;
  std::function<bool()> stop_;
  std::vector<std::size_t> trail_;  ///< pairs in the order in which they were decided
  std::int64_t looked_at_ = 0;      ///< ranges computed
  std::vector<Nanoseconds> start_;
};

}  // namespace ostinato
