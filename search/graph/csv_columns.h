// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which column of a CSV file holds what, by the names in its header line. Private to csv.h.
//
//   const std::vector<CsvColumn> kinds = {{"id", {}}, {"memory", {"ram"}}, {"label", {}, true}};
//   CsvColumns columns(kinds, {"RAM", "Id"});        // columns.at(0) is 1, columns.at(1) is 0
//
// Names count without case, spaces and punctuation ("#Tensor size", "tensor_size"), and may be cut short
// ("mem"). Where every column may stand for what usually stands at its place, all do, so that there even a
// letter will do; else each name must be clear. A column that is none of these is not read.

#include <optional>
#include <string_view>
#include <vector>

namespace ostinato::graph {

struct CsvColumn {
  const char* name;                     ///< for messages
  std::vector<std::string_view> other;  ///< names that mean the same: small letters and digits alone
  bool optional = false;                ///< only behind all that are not
};

class CsvColumns {
 public:
  /// `header`: the fields of the header line. Throws std::invalid_argument with the reason where a column is
  /// missing, named twice, or not clear.
  CsvColumns(const std::vector<CsvColumn>& columns, const std::vector<std::string_view>& header);

  /// The field of this column; nullopt where an optional one is not there.
  std::optional<std::size_t> at(std::size_t column) const { return at_[column]; }
  std::size_t needed() const { return needed_; }  ///< fields of a row, at least

 private:
  std::vector<std::optional<std::size_t>> at_;
  std::size_t needed_ = 0;
};

}  // namespace ostinato::graph
