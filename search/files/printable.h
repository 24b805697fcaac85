// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text of a file as it may stand on a terminal or in a log.
//
//   printable("a\n\x1b[31mb")      // a\n\u001b[31mb, written out: nothing moves the cursor or changes
//   colours

#include <string>
#include <string_view>

namespace ostinato {

/// With every control character (below space, DEL, U+0080 to U+009F, line separators, marks that turn the
/// direction of writing) written out; newlines stay where `newlines`. Bytes that are no UTF-8 stay.
std::string printable(std::string_view text, bool newlines = false);

}  // namespace ostinato
