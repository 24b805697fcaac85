// SPDX-License-Identifier: Apache-2.0
#include "search/files/json.h"

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>

namespace ostinato {
namespace {

using Written = nlohmann::ordered_json;

Written written(const Json& json);

struct Writer {
  Written operator()(const Json::List& list) const {
    Written result = Written::array();
    for (const Json& json : list) result.push_back(written(json));
    return result;
  }
  Written operator()(const Json::Object& members) const {
    Written result = Written::object();
    for (const auto& [key, json] : members) result[key] = written(json);
    return result;
  }
  template <typename T>
  Written operator()(const T& value) const {
    return value;
  }
};

Written written(const Json& json) { return std::visit(Writer(), json.value()); }

/// The key, where it is a pair that begins with text.
const std::string* key_of(const Json& json) {
  const auto* pair = std::get_if<Json::List>(&json.value());
  return pair != nullptr && pair->size() == 2 ? std::get_if<std::string>(&pair->front().value()) : nullptr;
}

}  // namespace

Json::Json(std::nullptr_t) : value_(nullptr) {}
Json::Json(bool value) : value_(value) {}
Json::Json(int value) : value_(std::int64_t{value}) {}
Json::Json(long value) : value_(std::int64_t{value}) {}
Json::Json(long long value) : value_(std::int64_t{value}) {}
Json::Json(unsigned value) : value_(std::uint64_t{value}) {}
Json::Json(unsigned long value) : value_(std::uint64_t{value}) {}
Json::Json(unsigned long long value) : value_(std::uint64_t{value}) {}
Json::Json(double value) : value_(value) {}
Json::Json(const char* text) : value_(std::string(text)) {}
Json::Json(std::string text) : value_(std::move(text)) {}
Json::Json(List values) : value_(std::move(values)) {}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(std::initializer_list<Json> values) {
  if (!std::all_of(values.begin(), values.end(), [](const Json& v) { return key_of(v) != nullptr; })) {
    value_ = List(values);
    return;
  }
  value_ = Object();
  for (const Json& pair : values) (*this)[*key_of(pair)] = std::get<List>(pair.value()).back();
}

Json Json::array() { return List(); }

Json Json::object() {
  Json json;
  json.value_ = Object();
  return json;
}

Json& Json::operator[](std::string_view key) {
  if (std::holds_alternative<std::nullptr_t>(value_)) value_ = Object();
  assert(std::holds_alternative<Object>(value_));
  Object& members = std::get<Object>(value_);
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.first == key; });
  return found != members.end() ? found->second : members.emplace_back(key, Json()).second;
}

void Json::push_back(Json value) {
  if (std::holds_alternative<std::nullptr_t>(value_)) value_ = List();
  assert(std::holds_alternative<List>(value_));
  std::get<List>(value_).push_back(std::move(value));
}

void Json::update(const Json& other) {
  assert(std::holds_alternative<Object>(other.value_));
  for (const auto& [key, json] : std::get<Object>(other.value_)) (*this)[key] = json;
}

std::string Json::text(int indent) const {
  return written(*this).dump(indent, ' ', false, Written::error_handler_t::replace);
}

}  // namespace ostinato
