// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whole files in and out. Nothing is lost: a file is written beside its place, flushed to the disk, and
// renamed.

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace ostinato {

/// The bytes of a file. Throws InputError where it cannot be read or is larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

/// Replaces the file as a whole: temporary file in the same folder, fsync, rename. Throws InputError on
/// failure.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// Writes a file for this user alone in the folder for temporary files, under a name that nobody can guess.
/// Returns its path; throws InputError on failure.
///   write_spare("ostinato-plan-", ".json", text)     // /tmp/ostinato-plan-x8Kq0b.json
std::filesystem::path write_spare(const std::string& begin, const std::string& end, std::string_view bytes);

}  // namespace ostinato
