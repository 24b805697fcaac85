// SPDX-License-Identifier: Apache-2.0
#include "search/graph/csv_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "search/files/value.h"

namespace ostinato::graph {
namespace {

std::string plain(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z')
      result += static_cast<char>(c - 'A' + 'a');
    else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
      result += c;
  }
  return result;
}

/// Columns that a header field may mean: those that it names in full, else those whose name starts with it.
std::vector<std::size_t> meanings(const std::vector<CsvColumn>& columns, std::string_view field) {
  const std::string word = plain(field);
  std::vector<std::size_t> whole, begun;
  for (std::size_t c = 0; c < columns.size() && !word.empty(); ++c) {
    std::vector<std::string> names(columns[c].other.begin(), columns[c].other.end());
    names.push_back(plain(columns[c].name));
    if (std::find(names.begin(), names.end(), word) != names.end()) whole.push_back(c);
    if (std::any_of(names.begin(), names.end(), [&](const std::string& n) { return n.starts_with(word); }))
      begun.push_back(c);
  }
  return whole.empty() ? begun : whole;
}

bool contains(const std::vector<std::size_t>& list, std::size_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

}  // namespace

CsvColumns::CsvColumns(const std::vector<CsvColumn>& columns, const std::vector<std::string_view>& header)
    : at_(columns.size()) {
  std::vector<std::vector<std::size_t>> means;
  for (const std::string_view field : header) means.push_back(meanings(columns, field));
  bool usual = true;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const bool named = c < header.size() && !means[c].empty();
    usual = usual && (named ? contains(means[c], c) : columns[c].optional);
  }
  for (std::size_t f = 0; f < header.size(); ++f) {
    if (usual && f < columns.size() && !means[f].empty()) {
      at_[f] = f;
    } else if (!usual && means[f].size() > 1) {
      refuse(fmt::format("the column {} may be \"{}\" or \"{}\"; write its name in full",
                         in_quotes(header[f]), columns[means[f][0]].name, columns[means[f][1]].name));
    } else if (!usual && !means[f].empty()) {
      if (at_[means[f][0]])
        refuse(fmt::format("two columns are \"{}\": {} and {}", columns[means[f][0]].name,
                           in_quotes(header[*at_[means[f][0]]]), in_quotes(header[f])));
      at_[means[f][0]] = f;
    }
  }
  std::vector<std::string_view> unknown;
  for (std::size_t f = 0; f < header.size(); ++f)
    if (means[f].empty()) unknown.push_back(header[f]);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (!at_[c] && !columns[c].optional)
      refuse(fmt::format("no column is \"{}\"{}", columns[c].name,
                         unknown.empty() ? "" : did_you_mean(columns[c].name, unknown)));
    if (at_[c] && !columns[c].optional) needed_ = std::max(needed_, *at_[c] + 1);
  }
}

}  // namespace ostinato::graph
