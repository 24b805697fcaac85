// SPDX-License-Identifier: Apache-2.0
#include "profiler/saved/dispatch_count.h"

#include <ATen/core/dispatch/ObservedOperators.h>
#include <torch/library.h>

namespace ostinato {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
thread_local DispatchCount* counting = nullptr;

}  // namespace

void count_and_pass_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (counting && c10::ObservedOperators::isObserved(op.operator_name()))
    ++counting->counts_[op.schema().name()];
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&count_and_pass_on>());
}

DispatchCount::DispatchCount() : guard_(kKey) { counting = this; }

DispatchCount::~DispatchCount() { counting = nullptr; }

}  // namespace ostinato
