// SPDX-License-Identifier: Apache-2.0
#include "search/files/json_values.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

#include "search/files/printable.h"

namespace ostinato {
namespace {

constexpr std::size_t kMaxKeys = 64;
constexpr std::size_t kMaxValues = std::size_t{1} << 22;

/// How far the parser has read.
struct Position {
  int line = 1;
  bool behind_newline = false;  ///< the last character read ended a line
};

/// Walks over the text and tells `Position`; copies share it.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, Position* position) : at_(at), position_(position) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    position_->behind_newline = *at_++ == '\n';
    position_->line += position_->behind_newline ? 1 : 0;
    return *this;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  Position* position_;
};

/// Builds Values from the parser's events.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const std::string& file, std::string_view format, std::string_view streamed,
          const std::function<void(const Value&)>& on_element, const Position& position)
      : file_(file), format_(format), streamed_(streamed), on_element_(on_element), position_(position) {}

  Value take() { return std::move(root_); }

  bool null() override { return add(make(ValueKind::null)); }
  bool boolean(bool value) override { return add_integer(ValueKind::boolean, value ? 1 : 0); }
  bool number_integer(std::int64_t value) override { return add_integer(ValueKind::integer, value); }
  bool number_unsigned(std::uint64_t value) override {
    if (value <= Fields::kLargest) return add_integer(ValueKind::integer, static_cast<std::int64_t>(value));
    return add_text(ValueKind::decimal, std::to_string(value));
  }
  bool number_float(double, const std::string& digits) override {
    return add_text(ValueKind::decimal, digits);
  }
  bool string(std::string& value) override { return add_text(ValueKind::text, std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // not in text

  bool start_object(std::size_t) override { return open(ValueKind::object); }
  bool start_array(std::size_t) override { return open(ValueKind::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& key) override {
    Value& object = open_.back();
    if (std::find(object.keys.begin(), object.keys.end(), key) != object.keys.end()) {
      fail("duplicate key " + in_quotes(key));
    }
    if (object.keys.size() == kMaxKeys) fail("an object of more than " + std::to_string(kMaxKeys) + " keys");
    object.keys.push_back(std::move(key));
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    const bool at_its_begin = open_.empty() && root_.keys.empty() && position_.line == 1;
    // "[json.exception...] parse error at line 1, column 2: syntax error while ...": ours has the line in
    // front.
    std::string what = error.what();
    if (const auto column = what.find("column "); column != std::string::npos) {
      what.erase(0, std::min(what.size(), what.find(": ", column) + 2));
    } else {
      what.erase(0, std::min(what.size(), what.find("] ") + 2));
    }
    if (what.find("unexpected end of input") != std::string::npos ||
        what.find("missing closing quote") != std::string::npos)
      fail("the file ends in the middle of its JSON: was it cut off, or is it still being written?");
    if (what.find("ill-formed UTF-8") != std::string::npos) fail("not valid JSON: bytes that are no UTF-8");
    if (at_its_begin)
      fail("not JSON, from the first character on: is this the right file, given for the right argument?");
    fail("not valid JSON: " + printable(what));
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw InputError(file_, line(), message); }

  /// Of the token that was just read: behind a number the parser has read one character more.
  int line() const { return position_.line - (position_.behind_newline ? 1 : 0); }

  Value make(ValueKind kind) const {
    Value value;
    value.kind = kind;
    value.line = line();
    return value;
  }

  bool add_integer(ValueKind kind, std::int64_t integer) {
    Value value = make(kind);
    value.integer = integer;
    return add(std::move(value));
  }

  bool add_text(ValueKind kind, std::string text) {
    Value value = make(kind);
    value.text = std::move(text);
    return add(std::move(value));
  }

  bool open(ValueKind kind) {
    if (open_.size() == kMaxNesting) fail("nested deeper than " + std::to_string(kMaxNesting) + " levels");
    if (in_streamed_array()) values_before_element_ = values_;
    open_.push_back(make(kind));
    // Elements of another version are not to be judged by our rules, where the file has said so by now.
    if (in_streamed_array() && std::count(open_[0].keys.begin(), open_[0].keys.end(), "format") > 0) {
      check_format(open_[0], file_, format_);
    }
    return true;
  }

  bool close() {
    Value value = std::move(open_.back());
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Value&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (in_streamed_array()) {
      on_element_(value);
      values_ = values_before_element_;  // it is gone again
    } else {
      if (++values_ > kMaxValues) fail("more than " + std::to_string(kMaxValues) + " values");
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  bool in_streamed_array() const {
    return open_.size() == 2 && open_[1].kind == ValueKind::array && open_[0].kind == ValueKind::object &&
           open_[0].keys.back() == streamed_;
  }

  const std::string& file_;
  std::string_view format_;
  std::string_view streamed_;
  const std::function<void(const Value&)>& on_element_;
  const Position& position_;
  std::vector<Value> open_;  ///< objects and arrays that are not closed yet, outermost first
  std::size_t values_ = 0;   ///< in memory
  std::size_t values_before_element_ = 0;
  Value root_;
};

}  // namespace

Value read_json(std::string_view text, const std::string& file, std::string_view format,
                std::string_view streamed, const std::function<void(const Value&)>& on_element) {
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {  // the parser would end there
    const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(nul), '\n');
    throw InputError(file, static_cast<int>(lines) + 1, "not valid JSON: a NUL character");
  }
  Position position;
  Builder builder(file, format, streamed, on_element, position);
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): the end is beside it
  nlohmann::json::sax_parse(CountingIterator(text.data(), &position),
                            CountingIterator(text.data() + text.size(), &position), &builder);
  Value root = builder.take();
  check_format(root, file, format);
  return root;
}

std::string json_string(std::string_view text) { return nlohmann::json(text).dump(); }

}  // namespace ostinato
