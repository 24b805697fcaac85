// SPDX-License-Identifier: Apache-2.0
#pragma once
// Floating point operations of a call, from the shapes of its arguments: a multiplication and an addition are
// two.
//
// Known: products of matrices and vectors (mm, addmm, _addmm_activation, bmm, baddbmm, mv, addmv, dot,
// mkldnn's linear), convolutions and their backward, and the fused attentions and theirs, which are counted
// as the products they stand for, whether or not a mask leaves some out. Everything else is unknown, not 0:
// elementwise work is not counted. The same conventions as torch.utils.flop_counter, beside which the tests
// put it.

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace ostinato {

/// `arguments` as the dispatcher has them, at least those without defaults in the schema.
std::optional<std::int64_t> flops_of(std::string_view name, c10::ArrayRef<const c10::IValue> arguments);

}  // namespace ostinato
