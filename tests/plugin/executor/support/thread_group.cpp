// SPDX-License-Identifier: Apache-2.0
#include "tests/plugin/executor/support/thread_group.h"

#include <ATen/ops/add.h>

#include <stdexcept>

namespace ostinato::testing {

at::Tensor ThreadGroup::sum(int rank, const at::Tensor& part) {
  std::unique_lock lock(mutex_);
  const int mine = round_;
  parts_[rank] = part;
  if (parts_.size() == ranks_.size()) {
    total_ = parts_.at(ranks_[0]);
    for (std::size_t k = 1; k < ranks_.size(); ++k) total_ = at::add(total_, parts_.at(ranks_[k]));
    parts_.clear();
    ++round_;
    met_.notify_all();
  }
  // No rank can end the next round before all have left this one: they have to come to it.
  if (!met_.wait_for(lock, std::chrono::minutes(1), [&] { return round_ > mine; }))
    throw std::logic_error("a rank of the collective did not come");
  return total_;
}

}  // namespace ostinato::testing
