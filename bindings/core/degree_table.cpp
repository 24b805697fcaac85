// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/degree_table.h"

#include <fmt/format.h>

#include "search/files/counted.h"
#include "search/files/wrapped.h"
#include "search/placement/quantity.h"

namespace ostinato::core {
namespace {

std::string row(const Degree& degree, bool chosen) {
  std::string text = fmt::format("{:1} {:>8} {:>6} {:>4} {:>13}", chosen ? "*" : "", degree.pipeline,
                                 degree.slices, degree.replicas, degree.options.search.micro_batches);
  if (!degree.choice) return text + "   " + degree.why_not + "\n";
  return text + fmt::format(" {:>10} {:>10} {:>10} {:>10}\n", format_time(degree.winner().value()),
                            format_time(degree.all_reduce), format_time(degree.optimizer()),
                            format_time(degree.step()));
}

std::string module_arguments(const Degree& best) {
  if (best.slices == 1) return fmt::format("num_stages={}", best.pipeline);
  return fmt::format("topology=PipeModelDataParallelTopology(num_pp={}, num_mp={}, num_dp={})", best.pipeline,
                     best.slices, best.replicas);
}

}  // namespace

std::string degrees_text(const std::vector<Degree>& degrees, std::size_t chosen) {
  const Degree& best = degrees[chosen];
  std::string text = fmt::format("{:1} {:>8} {:>6} {:>4} {:>13} {:>10} {:>10} {:>10} {:>10}\n", "",
                                 "pipeline", "slices", "data", "micro-batches",
                                 to_string(best.winner().plan->objective), "gradients", "optimizer", "step");
  for (std::size_t i = 0; i < degrees.size(); ++i) text += row(degrees[i], i == chosen);
  const bool costs = best.all_reduce > 0 || best.replicas == 1;
  return text + wrapped(fmt::format(
                    "Launch {} with PipelineModule({}) and gradient_accumulation_steps {}. The plan "
                    "below is for {}. Assumed: a ring over the replicas sums the gradients after the last "
                    "backward{}; {}.\n",
                    counted(best.pipeline * best.slices * best.replicas, "rank"), module_arguments(best),
                    best.options.search.micro_batches,
                    best.replicas == 1 ? "the only replica" : "one of " + counted(best.replicas, "replica"),
                    costs ? "" : ", free because no link was measured",
                    best.profile->zero.ranks > 0 ? "ZeRO divides the optimizer state over the replicas"
                                                 : "each replica holds the whole optimizer state (no ZeRO)"));
}

Json degrees_json(const std::vector<Degree>& degrees) {
  Json list = Json::array();
  for (const Degree& degree : degrees) {
    Json json = {{"pipeline", degree.pipeline},
                 {"slices", degree.slices},
                 {"replicas", degree.replicas},
                 {"micro_batches", degree.options.search.micro_batches}};
    if (degree.choice) {
      json["objective_value"] = degree.winner().value();
      json["all_reduce"] = degree.all_reduce;
      json["optimizer"] = degree.optimizer();
      json["step"] = degree.step();
    } else {
      json["why_not"] = degree.why_not;
    }
    list.push_back(json);
  }
  return list;
}

}  // namespace ostinato::core
