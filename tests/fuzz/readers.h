// SPDX-License-Identifier: Apache-2.0
#pragma once
// What reads bytes that somebody else may have written, each as a function of these bytes: for libFuzzer
// (fuzz_main.cpp), and for the mutations of the tests (mutations_test.cpp).
//
//   find_reader("plan").take(text);   // false: it was refused, by an InputError that names the file
//
// Whatever it throws is a fault; std::logic_error, where what was read contradicts itself.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ostinato::fuzz {

struct Reader {
  std::string name;
  std::vector<std::string> seeds;              ///< texts that it takes
  std::function<bool(std::string_view)> take;  ///< false: refused
};

/// Of every format that the C++ half reads, with what the commands do next (commands.h); of TOML and JSON;
/// and "search", whose bytes choose a placement.
const std::vector<Reader>& readers();

/// Throws std::out_of_range for a name that no reader has.
const Reader& find_reader(std::string_view name);

/// Stands between the placement and the plan of a pair, and between the traces of two ranks.
inline constexpr std::string_view kBetween = "\n#### plan\n";

}  // namespace ostinato::fuzz
