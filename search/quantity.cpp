#include "search/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <string>

#include "search/units.h"

namespace ostinato {
namespace {

using Wide = unsigned __int128;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// value * 10 + digit; false where that is beyond what later steps can multiply.
bool append(Wide& value, char digit) {
  value = value * 10 + static_cast<unsigned>(digit - '0');
  return value <= std::numeric_limits<std::int64_t>::max();
}

template <std::size_t N>
std::optional<std::int64_t> parse(std::string_view text, std::string_view fallback,
                                  const std::array<Unit, N>& units) {
  const auto end = std::find_if_not(text.begin(), text.end(), [](char c) { return is_digit(c) || c == '.'; });
  const std::string_view number = text.substr(0, static_cast<std::size_t>(end - text.begin()));
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
  const Wide thousandths =
      (static_cast<Wide>(value) * 1000 + static_cast<Wide>(unit.factor) / 2) / unit.factor;
  std::string text = fmt::format("{}.{:03}", static_cast<std::int64_t>(thousandths / 1000),
                                 static_cast<int>(thousandths % 1000));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return fmt::format("{} {}", text, unit.name);
}

}  // namespace

std::optional<std::int64_t> parse_scaled(std::string_view text, std::int64_t factor) {
  const std::size_t point = std::min(text.find('.'), text.size());
  const std::string_view whole = text.substr(0, point);
  std::string_view fraction = point < text.size() ? text.substr(point + 1) : "";
  if (whole.empty() && fraction.empty()) return std::nullopt;
  if (!std::all_of(whole.begin(), whole.end(), is_digit)) return std::nullopt;
  if (!std::all_of(fraction.begin(), fraction.end(), is_digit)) return std::nullopt;
  Wide result = 0;
  for (const char digit : whole) {
    if (!append(result, digit)) return std::nullopt;
  }
  result *= static_cast<Wide>(factor);
  fraction = fraction.substr(0, 18);  // what lies beyond is less than a nanosecond or byte of any unit
  Wide numerator = 0;
  Wide denominator = 1;
  for (const char digit : fraction) {
    numerator = numerator * 10 + static_cast<unsigned>(digit - '0');
    denominator *= 10;
  }
  result += (2 * numerator * static_cast<Wide>(factor) + denominator) / (2 * denominator);
  if (result > static_cast<Wide>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return static_cast<std::int64_t>(result);
}

std::optional<Nanoseconds> parse_time(std::string_view text, std::string_view unit) {
  return parse(text, unit, kTimeUnits);
}

std::optional<Bytes> parse_memory(std::string_view text, std::string_view unit) {
  return parse(text, unit, kMemoryUnits);
}

std::string format_time(Nanoseconds time) { return format(time, kTimeUnits); }

std::string format_memory(Bytes bytes) {
  return bytes == kUnlimited ? "unlimited" : format(bytes, kMemoryUnits);
}

}  // namespace ostinato
