#include "search/partition/graph_csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "search/files/error.h"
#include "search/files/file.h"

namespace ostinato {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// The rows of a CSV file below its header line.
class Rows {
 public:
  Rows(std::string_view text, const std::string& source, const std::vector<const char*>& columns)
      : text_(text), source_(source), columns_(columns) {
    if (!next_line()) throw InputError(source_, 0, "the file is empty; its first line must be the header");
    if (!fields_.front().empty() && fields_.front().front() >= '0' && fields_.front().front() <= '9')
      throw InputError(source_, line_, fmt::format("the header line is missing: \"{}\"", header()));
  }

  /// Next row with at least as many fields as there are columns; blank lines are skipped.
  bool next() {
    if (!next_line()) return false;
    if (fields_.size() < columns_.size())
      fail(fmt::format("{} columns, but {} are needed: {}", fields_.size(), columns_.size(), header()));
    return true;
  }

  std::string_view text(std::size_t column) const { return fields_[column]; }
  bool has(std::size_t column) const { return column < fields_.size(); }
  int line() const { return line_; }

  std::int64_t number(std::size_t column, std::int64_t low, std::int64_t high) const {
    return parse(fields_[column], column, low, high);
  }

  std::vector<std::int64_t> list(std::size_t column, std::int64_t low, std::int64_t high) const {
    std::vector<std::int64_t> numbers;
    std::string_view rest = fields_[column];
    while (!rest.empty()) {
      const auto end = std::min(rest.find(';'), rest.size());
      numbers.push_back(parse(trimmed(rest.substr(0, end)), column, low, high));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return numbers;
  }

  [[noreturn]] void fail(const std::string& message) const { throw InputError(source_, line_, message); }

 private:
  bool next_line() {
    while (!text_.empty()) {
      const auto end = std::min(text_.find('\n'), text_.size());
      const std::string_view line = trimmed(text_.substr(0, end));
      text_.remove_prefix(std::min(end + 1, text_.size()));
      ++line_;
      if (line.empty()) continue;
      split(line);
      return true;
    }
    return false;
  }

  void split(std::string_view line) {
    fields_.clear();
    for (;;) {
      const auto comma = line.find(',');
      fields_.push_back(trimmed(line.substr(0, comma)));
      if (comma == std::string_view::npos) return;
      line.remove_prefix(comma + 1);
    }
  }

  std::int64_t parse(std::string_view word, std::size_t column, std::int64_t low, std::int64_t high) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size())
      fail(fmt::format("{} is \"{}\"; it must be a whole number", columns_[column], word));
    if (value < low || value > high)
      fail(fmt::format("{} is {}; it must be between {} and {}", columns_[column], value, low, high));
    return value;
  }

  std::string header() const { return fmt::format("{}", fmt::join(columns_, ",")); }

  std::string_view text_;
  const std::string& source_;
  std::vector<const char*> columns_;
  std::vector<std::string_view> fields_;
  int line_ = 0;
};

constexpr std::int64_t kMaxId = std::numeric_limits<std::int64_t>::max();

/// Rates of every row, from the triangle (rates to later devices) or the full matrix.
void fill_rates(GraphDevices& devices, const std::vector<std::vector<std::int64_t>>& rows,
                const std::vector<int>& lines) {
  const std::size_t n = rows.size();
  const bool triangle = rows.back().empty() || n == 1;
  devices.rates.assign(n * n, 0);
  for (std::size_t from = 0; from < n; ++from) {
    const std::size_t expected = triangle ? n - 1 - from : n;
    if (rows[from].size() != expected && !(n == 1 && rows[from].size() == 1))
      throw InputError(
          devices.source, lines[from],
          fmt::format("{} rates, but {} are needed: {}", rows[from].size(), expected,
                      triangle ? "one to each later device" : "one to every device, itself included"));
    for (std::size_t i = 0; i < rows[from].size(); ++i) {
      const std::size_t to = triangle ? from + 1 + i : i;
      if (to >= n) break;
      if (to != from && rows[from][i] == 0)
        throw InputError(
            devices.source, lines[from],
            fmt::format("the rate to device {} is 0; it must be at least 1", devices.devices[to].id));
      devices.rates[from * n + to] = rows[from][i];
      if (triangle) devices.rates[to * n + from] = rows[from][i];
    }
  }
}

}  // namespace

OperatorGraph parse_graph_csv(std::string_view text, const std::string& source) {
  Rows rows(text, source,
            {"id", "successors", "predecessors", "same device", "tensor size", "operations", "memory",
             "device kind"});
  std::vector<GraphVertex> vertices;
  while (rows.next()) {
    GraphVertex v;
    v.line = rows.line();
    v.id = rows.number(0, 0, kMaxId);
    v.before = rows.list(1, 0, kMaxId);
    v.after = rows.list(2, 0, kMaxId);
    v.together = rows.list(3, 0, kMaxId);
    v.tensor = rows.number(4, 0, kMaxGraphNumber);
    v.operations = rows.number(5, 0, kMaxGraphNumber);
    v.memory = rows.number(6, 0, kMaxGraphNumber);
    if (rows.text(7).empty()) rows.fail("the device kind is empty; write NO where any device will do");
    if (rows.text(7) != "NO") v.kind = rows.text(7);
    if (rows.has(8)) v.name = rows.text(8);
    vertices.push_back(std::move(v));
  }
  return build_graph(std::move(vertices), source);
}

GraphDevices parse_devices_csv(std::string_view text, const std::string& source) {
  Rows rows(text, source, {"id", "memory", "operations per time unit", "rates", "kind"});
  GraphDevices devices;
  devices.source = source;
  std::vector<std::vector<std::int64_t>> rates;
  std::vector<int> lines;
  std::unordered_map<std::int64_t, int> seen;
  while (rows.next()) {
    GraphDevice device;
    device.id = rows.number(0, 0, kMaxId);
    const auto [first, added] = seen.emplace(device.id, rows.line());
    if (!added)
      rows.fail(fmt::format("device {} is given twice, first in line {}", device.id, first->second));
    device.memory = rows.number(1, 0, kMaxId / 4);
    device.speed = rows.number(2, 1, kMaxGraphNumber);
    rates.push_back(rows.list(3, 0, kMaxGraphNumber));
    device.kind = rows.text(4);
    if (device.kind.empty()) rows.fail("the kind is empty; it is CPU or GPU, say");
    devices.devices.push_back(std::move(device));
    lines.push_back(rows.line());
  }
  if (devices.devices.empty()) throw InputError(source, 0, "the file has no devices");
  fill_rates(devices, rates, lines);
  return devices;
}

OperatorGraph read_graph_csv(const std::filesystem::path& path) {
  return parse_graph_csv(read_file(path, kMaxGraphBytes), path.string());
}

GraphDevices read_devices_csv(const std::filesystem::path& path) {
  return parse_devices_csv(read_file(path, kMaxGraphBytes), path.string());
}

}  // namespace ostinato
