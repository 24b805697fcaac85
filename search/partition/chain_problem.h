#pragma once
// The chain partition as numbers: sums over runs of layers, and what a device carries when stages are put on
// it. Private to search/partition.

#include <vector>

#include "search/partition/chain.h"
#include "search/partition/profile.h"
#include "search/placement.h"

namespace ostinato::chain {

/// Sums and maxima over runs of layers [first, end), each in constant time after O(layers log layers).
class LayerSums {
 public:
  LayerSums(const Profile& profile, bool split_backward);

  int layers() const { return static_cast<int>(time_.size()) - 1; }
  Nanoseconds time(int first, int end) const { return time_[end] - time_[first]; }  ///< forward + backward
  Bytes fixed(int first, int end) const { return fixed_[end] - fixed_[first]; }     ///< static memory
  Bytes kept(int first, int end) const { return kept_[end] - kept_[first]; }  ///< without the stage's input
  Bytes input(int layer) const { return input_[layer]; }
  Bytes workspace(int first, int end) const;  ///< largest of a forward or a backward; first < end

 private:
  std::vector<Nanoseconds> time_;  ///< prefix sums, as the next two
  std::vector<Bytes> fixed_, kept_;
  std::vector<Bytes> input_;                   ///< per layer
  std::vector<std::vector<Bytes>> workspace_;  ///< [k][i]: largest of layers [i, i + 2^k)
};

/// What one device carries: stages are added in the order of the chain.
struct Load {
  Nanoseconds time = 0;
  Bytes fixed = 0;
  Bytes kept = 0;       ///< of all micro-batches in flight
  Bytes workspace = 0;  ///< above fixed + kept; where one micro-batch is in flight at a time: above fixed
};

/// One level of the partition: which device runs stage s, and how many micro-batches of it are in flight.
struct Problem {
  const LayerSums& sums;
  int devices = 1;
  std::vector<int> device_of;  ///< per stage
  std::vector<int> in_flight;  ///< per stage
  Bytes memory = kUnlimited;
  bool serial = false;  ///< one micro-batch at a time: later stages keep nothing while an earlier one runs

  int stages() const { return static_cast<int>(device_of.size()); }
  /// `load` with layers [first, end) as stage s added.
  Load add(Load load, int stage, int first, int end) const;
  Bytes needed(const Load& load) const;
  bool fits(const Load& load) const { return memory == kUnlimited || needed(load) <= memory; }
};

/// Ends of the stages; empty: none was found.
using Ends = std::vector<int>;

struct Found {
  Ends ends;
  Nanoseconds busiest = 0;
  Nanoseconds lower_bound = 0;  ///< proven for this problem
  bool proved_empty = false;    ///< nothing fits, and every partition was excluded
};

/// One stage per device: exact. Bisection on the busiest device, then a dynamic program that among the
/// partitions with that optimum takes the smallest sum of squared loads, then the fewest bytes over the cuts.
Found solve_single(const Problem& problem);

/// Several stages per device: see cut_chain(). `nodes`: of branch and bound, all its runs together.
Found solve_chunks(const Problem& problem, long nodes);

/// Branch and bound over the cuts: the first partition whose busiest device takes at most `limit`, with
/// layers given out from the front. `nodes` is counted down; where it reaches 0 the answer is open
/// (`complete` is false).
struct Searched {
  Ends ends;
  bool complete = true;
};
Searched search_cuts(const Problem& problem, Nanoseconds limit, long& nodes);

/// Moves cuts, one at a time and in runs, while that makes (bytes over the memory, busiest, sum of squares,
/// bytes over the cuts) smaller, compared in this order.
Ends improve_cuts(const Problem& problem, Ends ends);

/// What a device carries under these cuts, one entry per device.
std::vector<Load> loads_of(const Problem& problem, const Ends& ends);

/// Whether every device holds what these cuts give it.
bool all_fit(const Problem& problem, const Ends& ends);

}  // namespace ostinato::chain
