// SPDX-License-Identifier: Apache-2.0
#include "search/plan/plan.h"

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

}  // namespace ostinato
