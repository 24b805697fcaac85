// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is said of pipelines beside each other.

#include <string>
#include <vector>

#include "search/files/json.h"
#include "search/partition/degrees.h"

namespace ostinato::core {

/// A row for each number of replicas, how to launch `degrees[chosen]`, and what was assumed.
std::string degrees_text(const std::vector<Degree>& degrees, std::size_t chosen);
Json degrees_json(const std::vector<Degree>& degrees);

}  // namespace ostinato::core
