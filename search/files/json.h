// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON to write: a value that is put together in code and becomes text. json_values.h reads.
//
//   Json json = {{"status", 0}, {"devices", names}};   // pairs that begin with text: an object, else a list
//   if (proved) json["bound"] = bound;
//   json["steps"].push_back({block, micro_batch, start});
//   json.text(2)
//
// nlohmann/json writes the text, in json.cpp alone: a file that includes it takes several times as long to
// compile.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ostinato {

class Json {
 public:
  using List = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  ///< in the order in which keys were added
  using Value =
      std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, List, Object>;

  // None of them inline: a std::variant's copying is long code for each file that writes JSON.
  Json(std::nullptr_t = nullptr);
  Json(bool value);
  Json(int value);
  Json(long value);
  Json(long long value);
  Json(unsigned value);
  Json(unsigned long value);
  Json(unsigned long long value);
  Json(double value);
  Json(const char* text);
  Json(std::string text);
  Json(List values);
  template <typename T>
  Json(const std::vector<T>& values) : Json(List(values.begin(), values.end())) {}
  Json(std::initializer_list<Json> values);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  static Json array();
  static Json object();

  const Value& value() const { return value_; }

  /// The member `key`, added where there is none. Of null, an object; asserts that it is no other value.
  Json& operator[](std::string_view key);

  /// Appends to a list. Of null, a list; asserts that it is no other value.
  void push_back(Json value);

  /// Takes over the members of `other`, an object.
  void update(const Json& other);

  /// `indent` < 0: on one line, without a space. What is not UTF-8 is replaced (U+FFFD).
  std::string text(int indent = -1) const;

 private:
  Value value_;
};

}  // namespace ostinato
