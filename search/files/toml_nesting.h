// SPDX-License-Identifier: Apache-2.0
#pragma once
// How deep TOML text nests, found without recursion before a parser that recurses sees the text.

#include <string_view>

namespace ostinato {

/// The first line on which brackets, inline tables and dotted keys ([a.b.c], a.b.c = 1) together nest deeper
/// than `limit`; 0 where there is none. Text that is not TOML gets some answer: the parser says what is wrong
/// with it. O(size).
int toml_line_deeper_than(std::string_view text, int limit);

}  // namespace ostinato
