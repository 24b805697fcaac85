// SPDX-License-Identifier: Apache-2.0
#include "search/plan/plan.h"

#include <string_view>
#include <utility>

namespace ostinato {

const char* to_string(Objective objective) {
  switch (objective) {
    case Objective::makespan:
      return "makespan";
    case Objective::span:
      return "span";
    case Objective::latency:
      return "latency";
  }
  return "makespan";
}

std::string in_words(const Baseline& baseline) {
  if (baseline.name == "your_run") return "your run now";
  std::string name = baseline.name, where = "the best stages";
  for (const auto& [suffix, words] : {std::pair{"_even_split", "an even split of layers"},
                                      std::pair{"_recompute", "the best stages, recomputing"},
                                      std::pair{"_same_stages", "the plan's stages"}}) {
    if (!name.ends_with(suffix)) continue;
    name = name.substr(0, name.size() - std::string_view(suffix).size());
    where = words;
  }
  if (name == "1f1b") name = "1F1B";
  if (name == "interleaved-1f1b") name = "interleaved 1F1B";
  if (name == "gpipe") name = "one after the other";
  return name + " on " + where;
}

}  // namespace ostinato
