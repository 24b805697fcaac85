// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many of what, for people.
//
//   counted(1, "micro-batch")        // 1 micro-batch
//   counted(2, "micro-batch")        // 2 micro-batches

#include <cstdint>
#include <string>
#include <string_view>

namespace ostinato {

/// `of`: one of them. Knows the endings s, es (batch, process) and ies (entry, copy).
std::string counted(std::int64_t count, std::string_view of);

}  // namespace ostinato
