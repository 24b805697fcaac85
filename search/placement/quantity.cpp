// SPDX-License-Identifier: Apache-2.0
#include "search/placement/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "search/files/units.h"
#include "search/files/value.h"

namespace ostinato {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <std::size_t N>
std::optional<std::int64_t> parse(std::string_view text, std::string_view fallback,
                                  const std::array<Unit, N>& units) {
  const auto end = std::find_if_not(text.begin(), text.end(), [](char c) { return is_digit(c) || c == '.'; });
  const std::string_view number = text.substr(0, end - text.begin());
  std::string_view name = text.substr(number.size());
  while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  if (name.empty()) name = fallback;
  const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == name; });
  return unit == units.end() ? std::nullopt : parse_scaled(number, unit->factor);
}

template <std::size_t N>
std::string format(std::int64_t value, const std::array<Unit, N>& units) {
  const auto fits = [&](const Unit& unit) { return unit.factor <= value; };
  const auto largest = std::find_if(units.rbegin(), units.rend(), fits);
  const Unit& unit = largest == units.rend() ? units.front() : *largest;
  const __int128 thousandths = (static_cast<__int128>(value) * 1000 + unit.factor / 2) / unit.factor;
  std::string text = fmt::format("{}.{:03}", static_cast<std::int64_t>(thousandths / 1000),
                                 static_cast<int>(thousandths % 1000));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return fmt::format("{} {}", text, unit.name);
}

}  // namespace

std::optional<std::int64_t> parse_scaled(std::string_view text, std::int64_t factor) {
  const auto is_part = [](char c) { return is_digit(c) || c == '.'; };
  std::int64_t result = 0;
  if (!std::all_of(text.begin(), text.end(), is_part) || !scale_decimal(text, factor, result))
    return std::nullopt;
  return result;
}

std::optional<Nanoseconds> parse_time(std::string_view text, std::string_view unit) {
  return parse(text, unit, kTimeUnits);
}

std::optional<Bytes> parse_memory(std::string_view text, std::string_view unit) {
  return parse(text, unit, kTypedMemoryUnits);
}

std::string format_time(Nanoseconds time) { return format(time, kTimeUnits); }

std::string format_memory(Bytes bytes) {
  return bytes == kUnlimited ? "unlimited" : format(bytes, kMemoryUnits);
}

std::pair<std::string, std::string> format_apart(Bytes more, Bytes less) {
  std::pair<std::string, std::string> texts = {format_memory(more), format_memory(less)};
  if (texts.first == texts.second) return {fmt::format("{} B", more), fmt::format("{} B", less)};
  return texts;
}

}  // namespace ostinato
