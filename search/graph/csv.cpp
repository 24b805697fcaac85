// SPDX-License-Identifier: Apache-2.0
#include "search/graph/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/graph/csv_columns.h"

namespace ostinato::graph {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// The rows of a CSV file below its header line.
class Rows {
 public:
  Rows(std::string_view text, const std::string& source, const std::vector<CsvColumn>& columns)
      : text_(text), source_(source), columns_(columns) {
    if (!next_line()) throw InputError(source_, 0, "the file is empty; its first line must be the header");
    if (!fields_.front().empty() && fields_.front().front() >= '0' && fields_.front().front() <= '9')
      fail(fmt::format("the header line is missing: \"{}\"", header()));
    try {
      at_.emplace(columns_, fields_);
    } catch (const std::invalid_argument& error) {
      fail(fmt::format("{}; the usual header is \"{}\"", error.what(), header()));
    }
  }

  /// Next row with a field for every column that is needed; blank lines are skipped.
  bool next() {
    if (!next_line()) return false;
    if (fields_.size() < at_->needed())
      fail(fmt::format("{}, but {} are needed: {}", counted(fields_.size(), "column"), at_->needed(),
                       header()));
    return true;
  }

  std::string_view text(std::size_t column) const { return fields_[*at_->at(column)]; }
  bool has(std::size_t column) const { return at_->at(column) && *at_->at(column) < fields_.size(); }
  int line() const { return line_; }

  std::int64_t number(std::size_t column, std::int64_t low, std::int64_t high) const {
    return parse(text(column), column, low, high);
  }

  std::vector<std::int64_t> list(std::size_t column, std::int64_t low, std::int64_t high) const {
    std::vector<std::int64_t> numbers;
    std::string_view rest = text(column);
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
      fail(fmt::format("{} is \"{}\"; it must be a whole number", columns_[column].name, word));
    if (value < low || value > high)
      fail(fmt::format("{} is {}; it must be between {} and {}", columns_[column].name, value, low, high));
    return value;
  }

  std::string header() const {
    std::vector<std::string_view> names;
    for (const CsvColumn& column : columns_) {
      if (!column.optional) names.emplace_back(column.name);
    }
    return fmt::format("{}", fmt::join(names, ","));
  }

  std::string_view text_;
  const std::string& source_;
  const std::vector<CsvColumn>& columns_;
  std::optional<CsvColumns> at_;
  std::vector<std::string_view> fields_;
  int line_ = 0;
};

/// With the names of the authors' files among them.
const std::vector<CsvColumn>& graph_columns() {
  static const std::vector<CsvColumn> columns = {
      {"id", {"vertex"}},
      {"successors", {"out", "outgoing", "outgoingnode", "outgoingnodes", "children"}},
      {"predecessors", {"in", "incoming", "incomingnode", "incomingnodes", "inputs", "parents"}},
      {"same device", {"colocation", "colocated", "colocationnodes", "together", "mustshare"}},
      {"tensor size", {"tensor", "size", "outputsize"}},
      {"operations", {"ops", "work", "flops"}},
      {"memory", {"ram", "ramstorage"}},
      {"device kind", {"kind", "type", "devicetype", "constraint", "deviceconstraint"}},
      {"name", {"label"}, true}};
  return columns;
}

const std::vector<CsvColumn>& device_columns() {
  static const std::vector<CsvColumn> columns = {
      {"id", {"device"}},
      {"memory", {"ram"}},
      {"operations per time unit", {"speed", "operations", "ops"}},
      {"rates", {"bandwidths", "links", "transferrates", "communicationspeed", "commnicationspeed"}},
      {"kind", {"type", "devicekind", "devicetype"}}};
  return columns;
}

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
          fmt::format("{}, but {} {} needed: {}", counted(rows[from].size(), "rate"), expected,
                      expected == 1 ? "is" : "are",
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
  Rows rows(text, source, graph_columns());
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
    if (rows.text(7).empty()) rows.fail("the device kind is empty; write NO if any device will do");
    if (rows.text(7) != "NO") v.kind = rows.text(7);
    if (rows.has(8)) v.name = rows.text(8);
    vertices.push_back(std::move(v));
  }
  return build_graph(std::move(vertices), source);
}

GraphDevices parse_devices_csv(std::string_view text, const std::string& source) {
  Rows rows(text, source, device_columns());
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
    if (device.kind.empty()) rows.fail("the kind is empty; give one, such as CPU or GPU");
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

}  // namespace ostinato::graph
