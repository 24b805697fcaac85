// SPDX-License-Identifier: Apache-2.0
#pragma once
// What programs read of a command: keys in the order in which they were added.

#include <nlohmann/json_fwd.hpp>

namespace ostinato::core {

using Json = nlohmann::ordered_json;  ///< complete with <nlohmann/json.hpp>

}  // namespace ostinato::core
