// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts calls of operator new in the whole process, torch's libraries included, while it is on.

#include <atomic>

namespace ostinato::test {

inline std::atomic<bool> count_news{false};
inline std::atomic<long> news{0};

}  // namespace ostinato::test
