// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is found in TOML text before a parser sees it that is not made for it: nesting, by one that recurses,
// and characters beyond ASCII where TOML has none.

#include <string_view>

namespace ostinato {

/// The first line on which brackets, inline tables and dotted keys ([a.b.c], a.b.c = 1) together nest deeper
/// than `limit`; 0 where there is none. Text that is not TOML gets some answer: the parser says what is wrong
/// with it. O(size).
int toml_line_deeper_than(std::string_view text, int limit);

/// The first line with a byte beyond ASCII outside strings and comments, where TOML 1.0 allows none; 0 where
/// there is none. O(size).
int toml_line_beyond_ascii(std::string_view text);

}  // namespace ostinato
