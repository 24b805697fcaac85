// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/command.h"

namespace ostinato::cli {

void print_json(const Json& object, Io& io) { io.out << object.text(2) << '\n'; }

int to_int(ExitStatus status) { return static_cast<int>(status); }

}  // namespace ostinato::cli
