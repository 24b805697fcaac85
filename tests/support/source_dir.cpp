// SPDX-License-Identifier: Apache-2.0
#include "tests/support/source_dir.h"

namespace ostinato::test {

std::filesystem::path source_dir() { return OSTINATO_SOURCE_DIR; }

}  // namespace ostinato::test
