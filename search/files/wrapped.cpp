// SPDX-License-Identifier: Apache-2.0
#include "search/files/wrapped.h"

namespace ostinato {
namespace {

/// The last blank at which `line` can be broken within `width`, behind its first word; else the first one
/// after; npos: none.
std::size_t break_of(std::string_view line, std::size_t width) {
  const std::size_t word = line.find_first_not_of(' ');
  if (word == std::string_view::npos) return word;
  const std::size_t last = line.rfind(' ', width);
  return last != std::string_view::npos && last > word ? last : line.find(' ', word);
}

std::string broken(std::string_view line, std::size_t hang, std::size_t width) {
  std::string text;
  std::string rest(line);
  while (rest.size() > width) {
    const std::size_t at = break_of(rest, width);
    if (at == std::string::npos) break;
    const std::size_t next = rest.find_first_not_of(' ', at);
    if (next == std::string::npos) break;
    text += rest.substr(0, rest.find_last_not_of(' ', at) + 1) + '\n';
    rest = std::string(hang, ' ') + rest.substr(next);
  }
  return text + rest;
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t hang, std::size_t width) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    result += broken(text.substr(0, end), hang, width);
    if (end == std::string_view::npos) break;
    result += '\n';
    text.remove_prefix(end + 1);
  }
  return result;
}

}  // namespace ostinato
