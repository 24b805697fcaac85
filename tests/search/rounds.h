// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often a test draws. OSTINATO_ROUNDS=100 draws a hundred times as often: long, by hand.

#include <cstdlib>

namespace ostinato::test {

inline int rounds(int usual) {
  const char* times = std::getenv("OSTINATO_ROUNDS");
  return times == nullptr ? usual : usual * std::stoi(times);
}

}  // namespace ostinato::test
