// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `search` and `plan` are told of micro-batches that differ in size.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/cli/command_line.h"

namespace ostinato::cli {

struct SizesArguments {
  std::string file;  ///< ostinato-sizes/1; "": micro-batches are alike
  bool keep_order = false;

  /// Declares --sizes, with this help, and --keep-order.
  void declare(CommandLine& line, const std::string& help);

  /// After parsing. Throws UsageError.
  void check() const;

  bool given() const { return !file.empty(); }

  /// Throws InputError where --micro-batches (0: not given) is another number than the file's.
  void check_count(int micro_batches, std::size_t sizes) const;
};

/// Before anything is parsed: was the option typed?
bool typed(const std::vector<std::string>& args, std::string_view option);

}  // namespace ostinato::cli
