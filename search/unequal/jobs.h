// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of unequal micro-batches as the search walks them: flat arrays, times and memory of each.
//
//   const Jobs jobs(placement, sizes);
//   for (const Jobs::Input& in : jobs.inputs(s)) start = std::max(start, end[in.step] + in.transfer);
//
// A step is micro_batch * blocks + block. Micro-batches differ, so nothing that relies on identical jobs
// holds here: they have no fixed order, and nothing repeats.

#include <span>
#include <vector>

#include "search/numbers/lists.h"
#include "search/placement/instance.h"
#include "search/plan/sizes.h"

namespace ostinato::unequal {

class Jobs {
 public:
  /// The other end of a dependency; the transfer is of this micro-batch's bytes.
  struct Input {
    int step;
    Nanoseconds transfer;
  };

  /// `sizes` has what docs/formats.md asks of it (check_sizes). `keep_order`: as in_order() says; none is
  /// without it. O(steps * inputs).
  Jobs(const Placement& placement, const std::vector<MicroBatch>& sizes, bool keep_order = false);

  int steps() const { return static_cast<int>(time_.size()); }
  int blocks() const { return blocks_; }
  int micro_batches() const { return micro_batches_; }
  int devices() const { return static_cast<int>(room_.size()); }
  int block(int s) const { return s % blocks_; }
  int micro_batch(int s) const { return s / blocks_; }

  Nanoseconds time(int s) const { return time_[s]; }
  Bytes memory(int s) const { return memory_[s]; }
  /// 0 for a step that takes no time: it runs at no instant.
  Bytes workspace(int s) const { return workspace_[s]; }
  std::span<const int> devices_of(int s) const { return devices_of_[block(s)]; }
  std::span<const int> blocks_on(int d) const { return blocks_on_[d]; }
  std::span<const Input> inputs(int s) const { return inputs_[s]; }
  std::span<const Input> followers(int s) const { return followers_[s]; }
  /// Runs for one micro-batch after another as they were given: it adds to gradients or losses.
  bool in_order(int b) const { return in_order_[static_cast<std::size_t>(b)] != 0; }
  /// Blocks of one micro-batch, inputs first.
  const std::vector<int>& topological() const { return topological_; }
  /// A path leads from block a to block b, or they are the same.
  bool reaches(int a, int b) const { return reaches_[static_cast<std::size_t>(a) * blocks_ + b]; }

  /// Capacity beyond static memory; kUnlimited where the device is not limited.
  Bytes room(int d) const { return room_[d]; }
  bool limited(int d) const { return room(d) != kUnlimited; }

  Nanoseconds head(int s) const { return head_[s]; }  ///< longest path to its start
  Nanoseconds tail(int s) const { return tail_[s]; }  ///< and from its end

 private:
  void connect(const Placement& placement, const std::vector<MicroBatch>& sizes);
  void measure();

  int blocks_;
  int micro_batches_;
  std::vector<Nanoseconds> time_, head_, tail_;
  std::vector<Bytes> memory_, workspace_, room_;
  Lists<int> devices_of_, blocks_on_;
  Lists<Input> inputs_, followers_;
  std::vector<int> topological_;
  std::vector<char> reaches_, in_order_;
};

}  // namespace ostinato::unequal
