// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a placement surely has no schedule (docs/bounds.md, I1 and I2), for the sets of modes of C2.

#include "search/checker/graph.h"

namespace ostinato::checker {

/// False says nothing. O(pairs of the matchings * (blocks + edges)).
bool cannot_fit(const Graph& graph, int n);

}  // namespace ostinato::checker
