// SPDX-License-Identifier: Apache-2.0
#pragma once
// sha256("abc") is "ba7816bf 8f01cfea 4141...", without the blanks.

#include <string>
#include <string_view>

namespace ostinato {

/// SHA-256 (FIPS 180-4) of the bytes, lower-case hexadecimal.
std::string sha256(std::string_view bytes);

}  // namespace ostinato
