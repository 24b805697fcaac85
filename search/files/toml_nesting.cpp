// SPDX-License-Identifier: Apache-2.0
#include "search/files/toml_nesting.h"

#include <cstddef>
#include <limits>
#include <vector>

namespace ostinato {
namespace {

class NestingScan {
 public:
  NestingScan(std::string_view text, int limit) : text_(text), limit_(limit) {}

  int run() {
    while (at_ < text_.size()) {
      step(text_[at_]);
      if (depth_ > limit_) return line_;
    }
    return 0;
  }

  int stray() {
    while (at_ < text_.size() && stray_ == 0) step(text_[at_]);
    return stray_;
  }

 private:
  /// A bracket that is open, or (the first one) the line outside all brackets.
  struct Level {
    bool array = false;  ///< holds values; else keys and values
    bool value = false;  ///< behind '=': dots belong to numbers
    int dots = 0;        ///< of the key being read
  };

  void step(char c) {
    look_at(c);
    if (c == '[' && line_start_ && levels_.size() == 1) return header();
    if (c == '#') return skip_to_line_end();
    if (c == '"' || c == '\'') return skip_string(c);
    if (c == '\n') new_line();
    if (c == '[' || c == '{') open(c == '[');
    if ((c == ']' || c == '}') && levels_.size() > 1) close();
    if (c == '=') levels_.back().value = true;
    if (c == ',') end_pair();
    if (c == '.' && !levels_.back().array && !levels_.back().value) {
      ++levels_.back().dots;
      ++depth_;
    }
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') line_start_ = false;
    ++at_;
  }

  /// At what is in no string and in no comment.
  void look_at(char c) {
    if (static_cast<unsigned char>(c) >= 0x80 && stray_ == 0) stray_ = line_;
  }

  void new_line() {
    ++line_;
    line_start_ = true;
    if (levels_.size() == 1) end_pair();
  }

  /// [a.b] or [[a.b]]: its depth holds for the lines below it, until the next header.
  void header() {
    depth_ -= header_;
    header_ = 0;
    line_start_ = false;
    while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '#') {
      if (text_[at_] == '"' || text_[at_] == '\'') {
        skip_string(text_[at_]);
        continue;
      }
      look_at(text_[at_]);
      header_ += text_[at_] == '[' || text_[at_] == '.' ? 1 : 0;
      ++at_;
    }
    depth_ += header_;
  }

  void open(bool array) {
    levels_.push_back({.array = array});
    ++depth_;
  }

  void close() {
    depth_ -= levels_.back().dots + 1;
    levels_.pop_back();
  }

  void end_pair() {
    depth_ -= levels_.back().dots;
    levels_.back().dots = 0;
    levels_.back().value = false;
  }

  void skip_to_line_end() {
    while (at_ < text_.size() && text_[at_] != '\n') ++at_;
  }

  /// Behind the closing quote. A string of one line ends with the line at the latest; "" has an escape, ''
  /// has none. Up to two quotes before the three that close a long string are its own.
  void skip_string(char quote) {
    line_start_ = false;
    const std::string_view triple = quote == '"' ? "\"\"\"" : "'''";
    const bool long_string = text_.substr(at_, 3) == triple;
    for (at_ += long_string ? 3 : 1; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\\' && quote == '"') {
        ++at_;
        if (at_ < text_.size() && text_[at_] == '\n') ++line_;
      } else if (c == '\n') {
        if (!long_string) return;
        ++line_;
      } else if (c == quote && (!long_string || text_.substr(at_, 3) == triple)) {
        at_ += long_string ? 3 : 1;
        for (int own = 0; long_string && own < 2 && at_ < text_.size() && text_[at_] == quote; ++own) ++at_;
        return;
      }
    }
  }

  std::string_view text_;
  int limit_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  ///< only blanks so far on this line
  int header_ = 0;          ///< depth of the last header
  int depth_ = 0;           ///< header_ + open brackets + dots of the keys being read
  std::vector<Level> levels_{Level{}};
  int stray_ = 0;  ///< line of the first byte beyond ASCII outside strings and comments; 0: none so far
};

}  // namespace

int toml_line_deeper_than(std::string_view text, int limit) { return NestingScan(text, limit).run(); }

int toml_line_beyond_ascii(std::string_view text) {
  return NestingScan(text, std::numeric_limits<int>::max()).stray();
}

}  // namespace ostinato
