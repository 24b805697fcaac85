// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values that a TorchScript program hands on: tensors, and lists, tuples and dictionaries of them.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// The same structure with `change` applied to each tensor; what is no tensor stays.
c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change);

/// The tensors of values, in order.
std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values);

/// What a transfer of them carries: memory that several show goes once.
Bytes bytes_of(const std::vector<at::Tensor>& tensors);

/// Shapes and types of tensors, and other values in words: equal where a measurement of one stands for the
/// other.
std::string shapes_of(const std::vector<c10::IValue>& values);

}  // namespace ostinato
