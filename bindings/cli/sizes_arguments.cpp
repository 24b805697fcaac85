// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/sizes_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "bindings/core/usage_error.h"
#include "search/files/counted.h"
#include "search/files/error.h"

namespace ostinato::cli {

void SizesArguments::declare(CommandLine& line, const std::string& help) {
  line.text("--sizes", file, help).type_name("FILE");
  line.flag("--keep-order", keep_order,
            "With --sizes: run backwards, and forwards that compute losses, in the given order, so that "
            "gradients are added in the same order as in 1F1B");
}

void SizesArguments::check() const {
  if (keep_order && !given()) throw UsageError("--keep-order needs --sizes");
}

void SizesArguments::check_count(int micro_batches, std::size_t sizes) const {
  if (micro_batches == 0 || static_cast<std::size_t>(micro_batches) == sizes) return;
  throw InputError(file, 0,
                   fmt::format("has {}, but --micro-batches is {}; leave that option out",
                               counted(sizes, "micro-batch"), micro_batches));
}

bool typed(const std::vector<std::string>& args, std::string_view option) {
  return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
    return arg == option || arg.starts_with(std::string(option) + "=");
  });
}

}  // namespace ostinato::cli
