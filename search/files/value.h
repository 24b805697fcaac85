// SPDX-License-Identifier: Apache-2.0
#pragma once
// A parsed value that knows its line, whichever language the file is in (toml_values.h, json_values.h), and
// the reader of its fields that all formats share: one wording for every refusal.
//
//   Fields fields(value, file, "[[devices]]", {"name", "memory"});   // refuses any other key: "did you mean"
//   device.name = fields.text("name");                               // refuses a missing key or a number
//   device.memory = fields.scaled("memory", 1024, 0, kUnlimited);    // optional, "12.5" -> 12800
//
// Every refusal is an InputError "file:line: what is wrong; what would be right". Where Fields is given
// Faults, its getters leave the refusal there, and the reader goes on with the next field.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "search/files/error.h"
#include "search/files/faults.h"
#include "search/files/nearest.h"

namespace ostinato {

/// Nesting that every reader refuses beyond (docs/formats.md).
inline constexpr int kMaxNesting = 64;

/// decimal: a number with a fraction or exponent, or a whole one beyond int64. date: any of TOML's dates and
/// times.
enum class ValueKind { null, boolean, integer, decimal, text, array, object, date };

/// As a user would call it: "a whole number", "a table or object", ...
const char* to_string(ValueKind kind);

struct Value {
  ValueKind kind = ValueKind::null;
  int line = 0;                   ///< from 1
  std::int64_t integer = 0;       ///< of integer; of boolean 0 or 1
  std::string text;               ///< of text: its content; of decimal: the number as it is written
  std::vector<std::string> keys;  ///< of object, without duplicates; same order and size as items
  std::vector<Value> items;       ///< of array or object
};

/// `decimal * factor` to the nearest whole number, halves away from zero; computed on the decimal digits, so
/// that no binary fraction rounds first (0.1 us is 100 ns). False where the text is no finite decimal number
/// or the result does not fit int64. `decimal`: [+-]digits[.digits][e[+-]digits], with TOML's underscores. 0
/// < factor <= 2^40; digits beyond the 26th significant one do not count. O(size).
bool scale_decimal(std::string_view decimal, std::int64_t factor, std::int64_t& result);

/// The fields of one object or table. Keeps references to its arguments: they must outlive it. Each getter is
/// linear in the number of fields, which is small.
class Fields {
 public:
  static constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

  /// Refuses what is no object, and all keys that are not among `known`. `what` names the object in messages.
  /// With `faults`: text, text_or, boolean, integer and scaled return 0, "" or `absent` for what is wrong.
  Fields(const Value& object, const std::string& file, std::string_view what,
         std::initializer_list<std::string_view> known, Faults* faults = nullptr);

  /// Whether no field that was asked for is wrong.
  bool sound() const { return sound_; }

  /// The field, or null.
  const Value* find(std::string_view key) const;
  /// The field; refused where it is missing or of another kind.
  const Value& need(std::string_view key, ValueKind kind) const;

  const std::string& text(std::string_view key) const;
  std::string text_or(std::string_view key, const std::string& absent) const;
  bool boolean(std::string_view key) const;
  double decimal(std::string_view key) const;  ///< >= 0, finite; also a whole number
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high = kLargest) const;
  std::uint64_t unsigned_integer(std::string_view key) const;

  /// The field times `factor` (scale_decimal) in [low, int64 max]; the second form refuses a missing field.
  std::int64_t scaled(std::string_view key, std::int64_t factor, std::int64_t low, std::int64_t absent) const;
  std::int64_t scaled(std::string_view key, std::int64_t factor, std::int64_t low) const;

  /// Throws InputError at the line of `at` (of the object, where null).
  [[noreturn]] void fail(const Value* at, const std::string& message) const;

 private:
  /// What `read` returns; where it throws and there are faults to add to, `otherwise`.
  template <typename T, typename Read>
  T kept(T otherwise, const Read& read) const;
  const Value& need_any(std::string_view key) const;
  std::int64_t scale(const Value& value, std::string_view key, std::int64_t factor, std::int64_t low) const;

  const Value& object_;
  const std::string& file_;
  std::string_view what_;
  Faults* faults_;
  mutable bool sound_ = true;
};

/// `value` as an integer in [low, high]; `name` says in messages which.
std::int64_t integer_in(const Value& value, const std::string& file, const std::string& name,
                        std::int64_t low, std::int64_t high);

/// Refuses a file that is not an object, or whose "format" is not `expected`, before any other key is looked
/// at: an unknown version may have other keys.
void check_format(const Value& root, const std::string& file, std::string_view expected);

/// A name as it stands in messages: quoted, and cut where it is long.
std::string in_quotes(std::string_view name);

/// "; did you mean 'x'?" or "".
template <typename Candidates>
std::string did_you_mean(std::string_view word, const Candidates& candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : "; did you mean " + in_quotes(best) + "?";
}

}  // namespace ostinato
