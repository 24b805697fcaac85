// SPDX-License-Identifier: Apache-2.0
#include "search/portfolio/techniques.h"

namespace ostinato {

std::vector<const Technique*> all_techniques() {
  using namespace techniques;
  return {&kSequential, &kNamed,  &kRepeated,      &kWindows, &kDispatch,     &kPatience,
          &kRepetend,   &kSweeps, &kJustification, &kOthers,  &kSparing,      &kLocalSearch,
          &kExact,      &kOrders, &kBeams,         &kTrial,   &kMoreRepetends};
}

}  // namespace ostinato
