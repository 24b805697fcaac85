// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sentences for people, in lines that every terminal has room for.
//
//   wrapped("ok      every block starts after its inputs have arrived", 8, 40)
//   // ok      every block starts after its
//   //         inputs have arrived

#include <cstddef>
#include <string>
#include <string_view>

namespace ostinato {

/// Width of a command's lines unless more is asked for.
constexpr std::size_t kColumns = 80;

/// Each line of `text` that is longer than `width` bytes is broken at blanks; what is broken off stands
/// behind `hang` blanks. Runs of blanks within a line that fits stay, and a word is never broken. O(text).
std::string wrapped(std::string_view text, std::size_t hang = 0, std::size_t width = kColumns);

}  // namespace ostinato
