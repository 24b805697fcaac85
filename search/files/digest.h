// SPDX-License-Identifier: Apache-2.0
#pragma once
// Digests as they stand in files.

#include <string>
#include <string_view>

#include "search/files/value.h"

namespace ostinato {

/// Whether it is 64 lower-case hexadecimal digits.
bool is_sha256(std::string_view text);

/// The text at `key`: a digest, or "" where it is not known. Throws InputError for anything else.
const std::string& sha256_field(const Fields& fields, std::string_view key);

}  // namespace ostinato
