// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a stage has handed on stays as it is until all that take it have it: a stage on the same rank may take
// it later, and a message may be on its way, or be copied at once, as its size and its peer have it.
//
//   const HandedOn handed(outputs);        // right behind the forward
//   handed.expect_unchanged(stage);        // when it is taken, and when its send is over
//
// It counts changes as autograd does, so a change to any view of the tensor counts. It holds only the
// counters: the tensors can be freed.

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "plugin/executor/error.h"
#include "plugin/lowering/program.h"

namespace ostinato {

class HandedOn {
 public:
  HandedOn() = default;
  explicit HandedOn(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
      if (counter.enabled())  // not of inference tensors
        versions_.emplace_back(counter, counter.current_version());
    }
  }

  /// `stage` has made it. Throws ExecutionError.
  void expect_unchanged(const ProgramStage& stage) const {
    for (const auto& [counter, version] : versions_) {
      if (counter.current_version() == version) continue;
      throw ExecutionError("stage '" + stage.name +
                           "' has handed on a tensor that was changed in place while others still take it: "
                           "return a copy (.clone()), or clone it in the stage that changes it");
    }
  }

 private:
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> versions_;
};

}  // namespace ostinato
