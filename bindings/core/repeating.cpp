// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/repeating.h"

#include <chrono>

namespace ostinato::core {

Repeating repeating(const Placement& placement, double seconds, const std::function<bool()>& stopped) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  bool cut = false;
  RepetendOptions options;
  options.stop = [&] {
    cut = cut || stopped() || (seconds > 0 && Clock::now() > end);
    return cut;
  };
  Repeating found{repeating_part(placement, options)};
  const Repetend& r = found.part.repetend;
  found.cut = cut && !(r.period_proved && (r.memory_proved || !found.part.steady));
  return found;
}

Json repeating_json(const RepeatingPart& part) {
  const Repetend& r = part.repetend;
  Json json = {{"period", r.period},        {"unroll", r.unroll},
               {"lower_bound", part.bound}, {"period_proved", r.period_proved},
               {"peak_memory", part.held},  {"memory_proved", r.memory_proved}};
  if (!part.steady) {
    json["peak_memory"] = nullptr;
    json["left_behind"] = part.left_behind;
  }
  return json;
}

}  // namespace ostinato::core
