// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON text as values with lines. nlohmann/json's document type forgets where a value stood and merges
// duplicate keys, so this builds on its event interface.

#include <functional>
#include <string>
#include <string_view>

#include "search/files/value.h"

namespace ostinato {

/// Parses `text`, checks its "format" (check_format) and returns the top-level object. The elements of its
/// member `streamed`, if that is an array, go to `on_element` as they are read, in order, and are left out of
/// the result: 10^6 steps never stand in memory. They may come before the other members.
///
/// Throws InputError with file:line for what is not JSON (RFC 8259), for a duplicate key, for nesting deeper
/// than kMaxNesting, for an object of more than 64 keys and for more than 2^22 values besides the streamed
/// ones: no file of ours holds that.
Value read_json(std::string_view text, const std::string& file, std::string_view format,
                std::string_view streamed, const std::function<void(const Value&)>& on_element);

/// `text` as a JSON string, quoted and escaped. Asserts that it is UTF-8.
std::string json_string(std::string_view text);

}  // namespace ostinato
