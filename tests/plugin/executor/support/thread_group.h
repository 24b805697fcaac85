// SPDX-License-Identifier: Apache-2.0
#pragma once
// A collective between ranks that are threads.
//
//   ThreadGroup group({0, 2});
//   at::Tensor total = group.sum(rank, part);      // returns when both ranks have come

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

namespace ostinato::testing {

class ThreadGroup {
 public:
  explicit ThreadGroup(std::vector<int> ranks) : ranks_(std::move(ranks)) {}

  /// The sum of all parts, added in the order of the ranks: the same bits on each. Throws std::logic_error
  /// where the others do not come within a minute.
  at::Tensor sum(int rank, const at::Tensor& part);

  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
  std::mutex mutex_;
  std::condition_variable met_;
  std::map<int, at::Tensor> parts_;  ///< of the round that is gathering
  at::Tensor total_;                 ///< of the last round
  int round_ = 0;
};

}  // namespace ostinato::testing
