// SPDX-License-Identifier: Apache-2.0
#pragma once
// TOML text as values with lines. Only toml_values.cpp sees toml++, which is heavy to compile.

#include <functional>
#include <string>
#include <string_view>

#include "search/files/value.h"

namespace ostinato {

/// Parses `text` and calls `on_root` with the top-level table, then `on_element` with each table of the array
/// of tables `streamed`, in the order of the file, one at a time: 10^6 blocks never stand in memory twice.
/// The root lacks `streamed`. Decimal numbers keep the digits of the file. `file` stands in messages.
///
/// Throws InputError with file:line for what is not TOML 1.0, for a duplicate key, and for nesting deeper
/// than kMaxNesting (brackets and dotted keys together).
void read_toml(std::string_view text, const std::string& file, std::string_view streamed,
               const std::function<void(const Value&)>& on_root,
               const std::function<void(const Value&)>& on_element);

/// `text` as a TOML basic string, quoted and escaped.
std::string toml_string(std::string_view text);

}  // namespace ostinato
