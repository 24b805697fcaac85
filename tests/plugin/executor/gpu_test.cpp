// SPDX-License-Identifier: Apache-2.0
// The executor on a real GPU, which the ranks share as threads: with one GPU there is no NCCL between two
// ranks. Skipped with the reason elsewhere; the target `gpu` runs it.

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "plugin/lowering/lower.h"
#include "tests/plugin/executor/support/accelerator_run.h"
#include "tests/plugin/executor/support/layers.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using testing::Layer;
using testing::Queue;
using testing::StreamExchange;
using testing::together;

/// Why there is no GPU to test on; empty: there is one.
std::string no_gpu() {
  const bool has_cuda = ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
  if (!has_cuda || !c10::impl::hasDeviceGuardImpl(at::kCUDA)) return "torch was built without CUDA";
  return c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() > 0 ? "" : "torch finds no GPU";
}

/// A Layer that reads its inputs late and whose outputs are late: whoever does not wait for them sees other
/// bytes.
class Late : public Layer {
 public:
  using Layer::Layer;
  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override {
    std::vector<at::Tensor> late;
    for (const at::Tensor& input : inputs) late.push_back(input + late_zero(input.device()));
    std::vector<at::Tensor> outputs = Layer::forward(micro_batch, late);
    for (at::Tensor& output : outputs) output = output + late_zero(output.device());
    return outputs;
  }

 private:
  static at::Tensor late_zero(at::Device device) {
    at::Tensor ones = at::ones({2048, 2048}, at::TensorOptions().device(device));
    for (int i = 0; i < 8; ++i) ones = at::mm(ones, ones) / 2048;
    return (ones.select(0, 0).select(0, 0) - 1) * 0;
  }
};

std::map<int, Late> layers_of(const Program& program, at::Device device) {
  std::map<int, Late> layers;
  for (int s = 0; s < static_cast<int>(program.stages.size()); ++s)
    layers.try_emplace(s, program.stages[s], s, device);
  return layers;
}

TEST(GpuExecutor, RanksThatShareItComputeWhatOneThreadDoes) {
  if (const std::string reason = no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const at::Device gpu(at::kCUDA, 0);
  int equal = 0, tensors = 0;
  for (const bool split : {false, true}) {
    for (const std::vector<int>& devices : {std::vector{0, 1, 2, 3}, {0, 1, 2, 2, 1, 0}}) {
      const Placement placement = testing::chain(devices, split);
      const Program program = lower(testing::backward_first(placement, 6, 4), placement);
      StreamExchange exchange(Queue::of_a_pair);
      auto layers = layers_of(program, gpu);
      EXPECT_EQ(
          together(run_all(program, exchange, layers, {.device_of = [&](int) { return gpu; }, .steps = 5})),
          "");
      std::map<int, Layer> reference;
      for (int s = 0; s < static_cast<int>(program.stages.size()); ++s)
        reference.try_emplace(s, program.stages[s], s, gpu);
      for (int step = 0; step < 5; ++step) testing::run_reference(program, reference);
      for (const auto& [s, layer] : reference) {
        for (const auto& [ours, expected] : {std::pair(layers.at(s).weight.grad(), layer.weight.grad()),
                                             std::pair(layers.at(s).bias.grad(), layer.bias.grad())}) {
          EXPECT_TRUE(at::allclose(ours, expected)) << "stage " << s;
          equal += at::equal(ours, expected);
          ++tensors;
        }
      }
    }
  }
  std::printf(
      "gpu-run: executor of 4 ranks on one GPU: %d of %d gradients equal those of one thread bit for bit\n",
      equal, tensors);
}

}  // namespace
}  // namespace ostinato
