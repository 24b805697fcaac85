// SPDX-License-Identifier: Apache-2.0
#pragma once
// The autograd engine behind a narrow interface (its header takes 12 s to compile).
//
//   BackwardRoots roots(outputs);     // after the forward; the outputs themselves may go
//   roots.run(gradients);             // adds to the leaves' .grad, frees the graph
//
// Only the graph's ends are kept, not the outputs: their data is released as soon as it is sent, unless the
// graph itself needs it. Must be called without the GIL, on the thread of the forward (autocast, grad mode
// and streams live there).

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace ostinato {

class BackwardRoots {
 public:
  BackwardRoots();
  /// Takes the outputs that require a gradient and skips the rest, here and in run(). `one_by_one`: run()
  /// starts from one output after another instead of all at once, like a host that calls Tensor.backward() on
  /// each: what several outputs share is computed several times, and gradients are added in that host's
  /// order, bit for bit.
  explicit BackwardRoots(const std::vector<at::Tensor>& outputs, bool one_by_one = false);
  BackwardRoots(BackwardRoots&&) noexcept;
  BackwardRoots& operator=(BackwardRoots&&) noexcept;
  ~BackwardRoots();

  /// Whole backward from all roots. `gradients` has one entry per output, undefined where the output
  /// requires none. The roots are empty afterwards, also when the engine throws.
  void run(const std::vector<at::Tensor>& gradients);

  struct Edges;

 private:
  friend class SplitBackward;
  std::unique_ptr<Edges> edges_;
};

}  // namespace ostinato
