// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts of small placements, and what reading them says.

#include <string>

#include "search/placement/placement_toml.h"
#include "tests/support/refusal.h"

namespace ostinato::test {

/// Lines 1 to 3 of most tests here.
inline const std::string kHead = "format = \"ostinato-placement/1\"\nname = \"p\"\n[[devices]]\n";
/// A block for what follows it; lines 4 to 7 behind kHead.
inline const std::string kBlock = "[[blocks]]\nname = \"a.F\"\ndevices = [0]\ntime = 1\n";

inline Placement parse(const std::string& text) { return parse_placement(text, "p.toml").placement; }

inline std::string refusal(const std::string& text) {
  return refusal_by([&] { parse(text); });
}

inline std::string second(const std::string& fields) {
  return kHead + kBlock + "[[blocks]]\n" + fields;
}  // from line 8
inline const std::string kSecond = "name = \"b\"\ndevices = [0]\ntime = 1\n";  // 9 to 11

inline std::string stages(const std::string& first, const std::string& other) {
  return kHead + "[[stages]]\nname = \"s\"\nlayers = " + first +
         "\n[[stages]]\nname = \"t\"\nlayers = " + other + "\n" + kBlock + "stage = \"s\"\n[[blocks]]\n" +
         kSecond + "stage = \"t\"\n";
}

}  // namespace ostinato::test
