// SPDX-License-Identifier: Apache-2.0
#pragma once
// A loss for a saved program, which has none of its own: what training would do with its output, so that its
// time and what it keeps are in the profile.
//
//   const LossFunction loss = make_loss("cross-entropy", outputs);   // labels are made up here, once
//   at::Tensor value = loss(outputs);
//
// "sum" and "mean" of all outputs; "mse", the mean squared distance to zeros of the same shape; and
// "cross-entropy" of the last dimension's numbers, as classes, against labels drawn from them. Outputs that
// are not floating point are left out.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace ostinato {

using LossFunction = std::function<at::Tensor(const std::vector<at::Tensor>& outputs)>;

/// Names that make_loss() knows.
const std::vector<std::string>& loss_names();

/// `outputs`: of the shapes that it will be called with. Throws std::invalid_argument where none of them is
/// floating point, or cross-entropy finds no classes.
LossFunction make_loss(const std::string& name, const std::vector<at::Tensor>& outputs);

}  // namespace ostinato
