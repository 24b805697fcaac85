// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the project's sources lie, for tests that read files of the project.

#include <filesystem>

namespace ostinato::test {

/// The root of the source tree that was built. In one object file, so that others compile alike wherever the
/// tree is.
///
///     read_placement(source_dir() / "configs/v-shape-4.toml");
std::filesystem::path source_dir();

}  // namespace ostinato::test
