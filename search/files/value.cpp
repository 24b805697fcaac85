// SPDX-License-Identifier: Apache-2.0
#include "search/files/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "search/files/printable.h"

namespace ostinato {
namespace {

constexpr int kSignificant = 26;  // 10^26 * 2^40 < 2^127

/// A decimal number without its sign: digits * 10^exponent.
struct Magnitude {
  __int128 digits = 0;
  std::int64_t exponent = 0;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Reads digits with one optional point; false without any digit. Moves `text` behind them.
bool take_digits(std::string_view& text, Magnitude& magnitude) {
  bool any = false, point = false;
  int significant = 0;
  for (; !text.empty(); text.remove_prefix(1)) {
    const char c = text.front();
    if (c == '_') continue;
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (!is_digit(c)) break;
    any = true;
    if (significant > 0 || c != '0') ++significant;
    if (significant <= kSignificant) {
      magnitude.digits = magnitude.digits * 10 + (c - '0');
      magnitude.exponent -= point ? 1 : 0;
    } else {
      magnitude.exponent += point ? 0 : 1;
    }
  }
  return any;
}

/// Reads "e-12" or nothing; false where something else follows. Exponents beyond a million count as a
/// million.
bool take_exponent(std::string_view text, Magnitude& magnitude) {
  if (text.empty()) return true;
  if (text.front() != 'e' && text.front() != 'E') return false;
  text.remove_prefix(1);
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '+' || negative)) text.remove_prefix(1);
  if (text.empty()) return false;
  std::int64_t exponent = 0;
  for (const char c : text) {
    if (c == '_') continue;
    if (!is_digit(c)) return false;
    exponent = std::min<std::int64_t>(exponent * 10 + (c - '0'), 1'000'000);
  }
  magnitude.exponent += negative ? -exponent : exponent;
  return true;
}

/// magnitude * factor, rounded; negative where it is beyond int64.
__int128 round_scaled(const Magnitude& magnitude, std::int64_t factor) {
  __int128 value = magnitude.digits * factor;
  std::int64_t exponent = magnitude.exponent;
  for (; exponent > 0 && value != 0; --exponent) {
    if (value > Fields::kLargest) return -1;
    value *= 10;
  }
  if (exponent < -39) return 0;  // 10^39 > 2^129: nothing is left
  if (exponent < 0) {
    // Divide by 10^-exponent in steps that fit; the last digit that goes decides, halves away from zero.
    for (; exponent < -1; ++exponent) value /= 10;
    value = (value + 5) / 10;
  }
  return value > Fields::kLargest ? -1 : value;
}

std::string shown(const Value& value) {
  switch (value.kind) {
    case ValueKind::integer:
      return std::to_string(value.integer);
    case ValueKind::decimal:
      return printable(value.text.substr(0, 40));
    case ValueKind::text:
      return in_quotes(value.text);
    case ValueKind::boolean:
      return value.integer != 0 ? "true" : "false";
    default:
      return to_string(value.kind);
  }
}

std::string range_text(std::int64_t low, std::int64_t high) {
  if (high == Fields::kLargest) return "from " + std::to_string(low);
  return "from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

const char* to_string(ValueKind kind) {
  switch (kind) {
    case ValueKind::null:
      return "null";
    case ValueKind::boolean:
      return "true or false";
    case ValueKind::integer:
      return "a whole number";
    case ValueKind::decimal:
      return "a number";
    case ValueKind::text:
      return "a text";
    case ValueKind::array:
      return "a list";
    case ValueKind::object:
      return "a table";
    case ValueKind::date:
      return "a date";
  }
  return "null";
}

bool scale_decimal(std::string_view decimal, std::int64_t factor, std::int64_t& result) {
  const bool negative = !decimal.empty() && decimal.front() == '-';
  if (negative || (!decimal.empty() && decimal.front() == '+')) decimal.remove_prefix(1);
  Magnitude magnitude;
  if (!take_digits(decimal, magnitude) || !take_exponent(decimal, magnitude)) return false;
  const __int128 value = round_scaled(magnitude, factor);
  if (value < 0) return false;
  result = static_cast<std::int64_t>(negative ? -value : value);
  return true;
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t shown_bytes = 80;
  if (name.size() <= shown_bytes) return fmt::format("'{}'", printable(name));
  std::size_t cut = shown_bytes;
  while (cut > 0 && (static_cast<unsigned char>(name[cut]) & 0xc0) == 0x80)
    --cut;  // not inside a UTF-8 sequence
  return fmt::format("'{}...'", printable(name.substr(0, cut)));
}

std::int64_t integer_in(const Value& value, const std::string& file, const std::string& name,
                        std::int64_t low, std::int64_t high) {
  const bool is_integer = value.kind == ValueKind::integer;
  if (!is_integer && value.kind != ValueKind::decimal) {
    throw InputError(file, value.line, name + " must be a whole number, not " + to_string(value.kind));
  }
  if (!is_integer && value.text.find_first_not_of("+-0123456789_") != std::string::npos) {
    throw InputError(file, value.line, name + " must be a whole number, not " + shown(value));
  }
  if (!is_integer || value.integer < low || value.integer > high) {
    throw InputError(file, value.line,
                     name + " is " + shown(value) + ", out of range: " + range_text(low, high));
  }
  return value.integer;
}

namespace {

/// "a profile" of "ostinato-profile/1".
std::string kind_of(std::string_view format) {
  const std::size_t begin = format.find('-') + 1;
  const std::string name(format.substr(begin, format.find('/') - begin));
  if (name == "devices") return "a device file";
  return (name.starts_with('o') ? "an " : "a ") + name + (name.ends_with('s') ? " file" : "");
}

}  // namespace

void check_format(const Value& root, const std::string& file, std::string_view expected) {
  if (root.kind != ValueKind::object) {
    throw InputError(file, root.line, "the file must hold a table, not " + std::string(to_string(root.kind)));
  }
  const auto key = std::find(root.keys.begin(), root.keys.end(), "format");
  if (key == root.keys.end()) {
    throw InputError(file, root.line,
                     "this is not " + kind_of(expected) + ": it has no 'format', where " +
                         in_quotes(expected) + " is expected; is it the right file?");
  }
  const Value& format = root.items[key - root.keys.begin()];
  if (format.kind == ValueKind::text && format.text == expected) return;
  const std::string is = "'format' is " + shown(format), wanted = in_quotes(expected);
  const bool same_kind = format.text.starts_with(expected.substr(0, expected.find('/') + 1));
  if (format.kind != ValueKind::text || same_kind)
    throw InputError(file, format.line, is + "; this version of ostinato reads " + wanted);
  throw InputError(file, format.line, is + "; " + wanted + " is expected here: is this the right file?");
}

Fields::Fields(const Value& object, const std::string& file, std::string_view what,
               std::initializer_list<std::string_view> known, Faults* faults)
    : object_(object), file_(file), what_(what), faults_(faults) {
  if (object.kind != ValueKind::object) {
    fail(nullptr, std::string(what) + " must be a table, not " + to_string(object.kind));
  }
  Faults unknown;
  Faults& told = faults == nullptr ? unknown : *faults;
  for (std::size_t i = 0; i < object.keys.size(); ++i) {
    if (told.full() || std::find(known.begin(), known.end(), object.keys[i]) != known.end()) continue;
    told.add(InputError(file, object.items[i].line,
                        "unknown key " + in_quotes(object.keys[i]) + " in " + std::string(what) +
                            did_you_mean(object.keys[i], known)));
  }
  unknown.raise();
}

template <typename T, typename Read>
T Fields::kept(T otherwise, const Read& read) const {
  if (faults_ == nullptr) return read();
  try {
    return read();
  } catch (const InputError& fault) {
    faults_->add(fault);
    sound_ = false;
    return otherwise;
  }
}

const Value* Fields::find(std::string_view key) const {
  for (std::size_t i = 0; i < object_.keys.size(); ++i) {
    if (object_.keys[i] == key) return &object_.items[i];
  }
  return nullptr;
}

const Value& Fields::need_any(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) fail(nullptr, std::string(what_) + " has no " + in_quotes(key));
  return *value;
}

const Value& Fields::need(std::string_view key, ValueKind kind) const {
  const Value& value = need_any(key);
  if (value.kind != kind)
    fail(&value, in_quotes(key) + " must be " + to_string(kind) + ", not " + to_string(value.kind));
  return value;
}

const std::string& Fields::text(std::string_view key) const {
  static const std::string none;
  return kept<const std::string&>(none,
                                  [&]() -> const std::string& { return need(key, ValueKind::text).text; });
}

std::string Fields::text_or(std::string_view key, const std::string& absent) const {
  return find(key) == nullptr ? absent : text(key);
}

bool Fields::boolean(std::string_view key) const {
  return kept(false, [&] { return need(key, ValueKind::boolean).integer != 0; });
}

double Fields::decimal(std::string_view key) const {
  const Value& value = need_any(key);
  if (value.kind == ValueKind::integer && value.integer >= 0) return static_cast<double>(value.integer);
  if (value.kind != ValueKind::decimal)
    fail(&value, in_quotes(key) + " must be a number of at least 0, not " + shown(value));
  double number = -1;
  std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
  if (!(number >= 0) || !std::isfinite(number))
    fail(&value, in_quotes(key) + " is " + shown(value) + ", out of range: from 0");
  return number;
}

std::int64_t Fields::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  return kept(low, [&] { return integer_in(need_any(key), file_, in_quotes(key), low, high); });
}

std::uint64_t Fields::unsigned_integer(std::string_view key) const {
  const Value& value = need_any(key);
  std::uint64_t number = 0;
  if (value.kind == ValueKind::decimal) {
    const char* end = value.text.data() + value.text.size();
    const auto [stop, error] = std::from_chars(value.text.data(), end, number);
    if (stop == end && error == std::errc()) return number;
  }
  return static_cast<std::uint64_t>(integer_in(value, file_, in_quotes(key), 0, kLargest));
}

std::int64_t Fields::scale(const Value& value, std::string_view key, std::int64_t factor,
                           std::int64_t low) const {
  std::int64_t result = 0;
  bool fits = false;
  if (value.kind == ValueKind::integer) {
    fits = !__builtin_mul_overflow(value.integer, factor, &result);
  } else if (value.kind == ValueKind::decimal) {
    fits = scale_decimal(value.text, factor, result);
  } else {
    fail(&value, in_quotes(key) + " must be a number, not " + to_string(value.kind));
  }
  if (!fits)
    fail(&value, in_quotes(key) + " is " + shown(value) +
                     ", out of range: too large for 64 bits in its smallest unit");
  const bool lost_sign = low >= 0 && !value.text.empty() && value.text.front() == '-';  // -0.1 rounds to 0
  if (result < low || lost_sign)
    fail(&value, in_quotes(key) + " is " + shown(value) + ", out of range: from " + std::to_string(low));
  return result;
}

std::int64_t Fields::scaled(std::string_view key, std::int64_t factor, std::int64_t low,
                            std::int64_t absent) const {
  const Value* value = find(key);
  return value == nullptr ? absent : kept(absent, [&] { return scale(*value, key, factor, low); });
}

std::int64_t Fields::scaled(std::string_view key, std::int64_t factor, std::int64_t low) const {
  return kept(low, [&] { return scale(need_any(key), key, factor, low); });
}

void Fields::fail(const Value* at, const std::string& message) const {
  throw InputError(file_, at == nullptr ? object_.line : at->line, message);
}

}  // namespace ostinato
