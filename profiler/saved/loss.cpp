// SPDX-License-Identifier: Apache-2.0
#include "profiler/saved/loss.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <stdexcept>

namespace ostinato {
namespace {

/// Of one output and its labels; undefined where the loss has none.
using Term = at::Tensor (*)(const at::Tensor& output, const at::Tensor& labels);

at::Tensor rows_of_classes(const at::Tensor& output) { return output.reshape({-1, output.size(-1)}); }

at::Tensor labels_for(const std::string& name, const at::Tensor& output) {
  if (name == "mse") return at::zeros_like(output);
  if (name != "cross-entropy") return {};
  if (output.dim() == 0 || output.size(-1) < 2) {
    throw std::invalid_argument(
        "cross-entropy needs an output whose last dimension is the classes, two at least");
  }
  at::Generator seeded = at::detail::createCPUGenerator(0);
  return at::randint(0, output.size(-1), {rows_of_classes(output).size(0)}, seeded,
                     at::TensorOptions(at::kLong));
}

Term term_of(const std::string& name) {
  if (name == "sum") return [](const at::Tensor& output, const at::Tensor&) { return output.sum(); };
  if (name == "mean") return [](const at::Tensor& output, const at::Tensor&) { return output.mean(); };
  if (name == "mse") {
    return [](const at::Tensor& output, const at::Tensor& labels) { return at::mse_loss(output, labels); };
  }
  return [](const at::Tensor& output, const at::Tensor& labels) {
    return at::cross_entropy_loss(rows_of_classes(output), labels);
  };
}

}  // namespace

const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names = {"sum", "mean", "mse", "cross-entropy"};
  return names;
}

LossFunction make_loss(const std::string& name, const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> labels;
  bool any = false;
  for (const at::Tensor& output : outputs) {
    any = any || output.is_floating_point();
    labels.push_back(output.is_floating_point() ? labels_for(name, output) : at::Tensor());
  }
  if (!any) throw std::invalid_argument("no output of the program is floating point, so it has no loss");
  return [term = term_of(name), labels](const std::vector<at::Tensor>& given) {
    at::Tensor total;
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (!given[i].is_floating_point()) continue;
      const at::Tensor value = term(given[i], labels[i]);
      total = total.defined() ? total + value : value;
    }
    return total;
  };
}

}  // namespace ostinato
