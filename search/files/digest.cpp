// SPDX-License-Identifier: Apache-2.0
#include "search/files/digest.h"

namespace ostinato {

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

const std::string& sha256_field(const Fields& fields, std::string_view key) {
  const std::string& digest = fields.text(key);
  if (!digest.empty() && !is_sha256(digest)) {
    fields.fail(fields.find(key),
                in_quotes(key) + " must be 64 lower-case hexadecimal digits, not " + in_quotes(digest));
  }
  return digest;
}

}  // namespace ostinato
