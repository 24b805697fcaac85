// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operators by name, counted by torch's dispatcher and not by the recorder, which is checked against it.
//
// A fallback for a key that is in use on the counting thread alone (TESTING_ONLY_GenericMode, which torch has
// for such modes) sees every operator that is called there, also those that operators call, and passes it on
// unchanged. Questions that torch shows to no recorder (aten::size, aten::is_leaf, ...) are left out.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <map>
#include <string>

namespace ostinato {

/// Counts from its construction to its destruction, on the thread that makes it; one at a time a thread.
class DispatchCount {
 public:
  DispatchCount();
  ~DispatchCount();
  DispatchCount(const DispatchCount&) = delete;
  DispatchCount& operator=(const DispatchCount&) = delete;

  const std::map<std::string, std::int64_t>& counts() const { return counts_; }

 private:
  friend void count_and_pass_on(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*);

  std::map<std::string, std::int64_t> counts_;
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace ostinato
