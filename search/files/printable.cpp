// SPDX-License-Identifier: Apache-2.0
#include "search/files/printable.h"

#include <fmt/format.h>

namespace ostinato {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

/// The control character that begins there, and its bytes; 0 bytes where none does.
struct Control {
  unsigned point;
  std::size_t bytes;
};

Control control_at(std::string_view text, std::size_t at) {
  const unsigned first = byte_at(text, at), second = byte_at(text, at + 1);
  if (first < 0x20 || first == 0x7f) return {first, 1};
  if (first == 0xc2 && second >= 0x80 && second < 0xa0) return {second, 2};
  if (first != 0xe2 || (second != 0x80 && second != 0x81)) return {0, 0};
  const unsigned third = byte_at(text, at + 2);
  const unsigned point = 0x2000 + ((second & 0x3f) << 6) + (third & 0x3f);
  const bool turns = point == 0x200e || point == 0x200f || (point >= 0x2028 && point <= 0x202e) ||
                     (point >= 0x2066 && point <= 0x2069);
  return {point, (third & 0xc0) == 0x80 && turns ? std::size_t{3} : 0};
}

}  // namespace

std::string printable(std::string_view text, bool newlines) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto [point, bytes] = control_at(text, at);
    if (bytes == 0 || (newlines && point == '\n')) {
      result += text[at++];
      continue;
    }
    result += point == '\n' ? "\\n" : point == '\t' ? "\\t" : fmt::format("\\u{:04x}", point);
    at += bytes;
  }
  return result;
}

}  // namespace ostinato
