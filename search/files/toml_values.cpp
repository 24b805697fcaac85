// SPDX-License-Identifier: Apache-2.0
#include "search/files/toml_values.h"

// toml++ 3.3 asserts that a key follows "[", before it finds that none does and refuses the text properly: a
// user's mistake must not end in its assertion.
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/toml.hpp>

#include <cmath>

#include "search/files/printable.h"
#include "search/files/toml_nesting.h"

namespace ostinato {
namespace {

/// Finds the text at a line and column, which toml++ counts in code points, in constant time.
class SourceText {
 public:
  explicit SourceText(std::string_view text) : text_(text) {
    line_starts_.push_back(0);
    for (std::size_t at = 0; at < text.size(); ++at) {
      if ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;  // inside a UTF-8 sequence
      if (points_ % kStride == 0) marks_.push_back(at);
      ++points_;
      if (text[at] == '\n') line_starts_.push_back(points_);
    }
  }

  /// The number that begins there, as it is written.
  std::string number_at(const toml::source_position& position) const {
    const std::size_t point = line_starts_[position.line - 1] + position.column - 1;
    std::size_t at = marks_[point / kStride];
    for (std::size_t left = point % kStride; left > 0; --left) {
      do ++at;
      while (at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xc0) == 0x80);
    }
    const std::size_t end = text_.find_first_not_of("+-0123456789._eE", at);
    return std::string(text_.substr(at, end == std::string_view::npos ? end : end - at));
  }

 private:
  static constexpr std::size_t kStride = 64;

  std::string_view text_;
  std::size_t points_ = 0;
  std::vector<std::size_t> line_starts_;  ///< code points before each line
  std::vector<std::size_t> marks_;        ///< byte offset of every kStride-th code point
};

class Converter {
 public:
  Converter(std::string_view text, const std::string& file) : source_(text), file_(file) {}

  Value value(const toml::node& node) const {
    Value result;
    result.line = static_cast<int>(node.source().begin.line);
    switch (node.type()) {
      case toml::node_type::table:
        return table(*node.as_table(), "");
      case toml::node_type::array:
        result.kind = ValueKind::array;
        for (const toml::node& item : *node.as_array()) result.items.push_back(value(item));
        break;
      case toml::node_type::string:
        text(result, node.as_string()->get());
        break;
      case toml::node_type::integer:
        result.kind = ValueKind::integer;
        result.integer = node.as_integer()->get();
        break;
      case toml::node_type::floating_point:
        decimal(result, node);
        break;
      case toml::node_type::boolean:
        result.kind = ValueKind::boolean;
        result.integer = node.as_boolean()->get() ? 1 : 0;
        break;
      default:
        result.kind = ValueKind::date;
    }
    return result;
  }

  /// Without the member `left_out`.
  Value table(const toml::table& table, std::string_view left_out) const {
    Value result;
    result.kind = ValueKind::object;
    result.line = static_cast<int>(table.source().begin.line);
    for (const auto& [key, node] : table) {
      if (key.str() == left_out) continue;
      result.keys.emplace_back(key.str());
      result.items.push_back(value(node));
      // A table implied by dotted keys or sub-tables has no position, but its key has.
      if (result.items.back().line == 0) result.items.back().line = static_cast<int>(key.source().begin.line);
    }
    return result;
  }

 private:
  static void text(Value& result, const std::string& content) {
    result.kind = ValueKind::text;
    result.text = content;
  }

  void decimal(Value& result, const toml::node& node) const {
    if (!std::isfinite(node.as_floating_point()->get())) {
      throw InputError(file_, result.line, "inf and nan are not allowed: write a finite number");
    }
    result.kind = ValueKind::decimal;
    result.text = source_.number_at(node.source().begin);
  }

  SourceText source_;
  const std::string& file_;
};

toml::table parse(std::string_view text, const std::string& file) {
  if (const int line = toml_line_deeper_than(text, kMaxNesting); line > 0) {
    throw InputError(file, line, "nested deeper than " + std::to_string(kMaxNesting) + " levels");
  }
  // toml++ 3.3 takes some of them for white space, and says nothing useful about the rest.
  if (const int line = toml_line_beyond_ascii(text); line > 0) {
    throw InputError(file, line, "not valid TOML: non-ASCII character outside quotes and comments");
  }
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    // "Error while parsing key-value pair: expected value, ...": what it was about to parse is no help.
    std::string_view what = error.description();
    const std::size_t colon = what.find(": ");
    if (what.starts_with("Error while parsing") && colon != std::string_view::npos)
      what.remove_prefix(colon + 2);
    if (text.substr(0, text.find_first_not_of(" \t\r\n") + 1).ends_with('{'))
      throw InputError(file, 1,
                       "this is JSON, not TOML: is it the right file, given for the right argument?");
    throw InputError(file, static_cast<int>(error.source().begin.line), "not valid TOML: " + printable(what));
  }
}

}  // namespace

void read_toml(std::string_view text, const std::string& file, std::string_view streamed,
               const std::function<void(const Value&)>& on_root,
               const std::function<void(const Value&)>& on_element) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.substr(0, 3) == byte_order_mark) text.remove_prefix(3);
  const toml::table root = parse(text, file);
  const Converter convert(text, file);
  const toml::node* elements = root.get(streamed);
  const bool is_array = elements != nullptr && elements->is_array();
  on_root(convert.table(root, is_array ? streamed : ""));
  if (!is_array) return;
  for (const toml::node& element : *elements->as_array()) on_element(convert.value(element));
}

std::string toml_string(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += "\\u00";
      quoted += {digits[byte >> 4], digits[byte & 15]};
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace ostinato
