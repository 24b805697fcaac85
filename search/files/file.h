// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whole files in and out. Nothing is lost: a file is written beside its place, flushed to the disk, and
// renamed.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace ostinato {

/// The bytes of a file. Throws InputError where it cannot be read or is larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

/// Takes the next bytes of a text that is too large to be held as a whole.
using Sink = std::function<void(std::string_view)>;

/// Pipes and devices (/dev/stdout) are written in place: a rename would put a regular file where the device
/// was.
bool is_special(const std::filesystem::path& path);

/// Replaces the file as a whole: temporary file in the same folder, fsync, rename. Throws InputError on
/// failure.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// The same for what `write` puts into the sink, part by part.
///   write_file("plan.json", [&](const Sink& sink) { format_plan(plan, placement, sink); });
void write_file(const std::filesystem::path& path, const std::function<void(const Sink&)>& write);

/// Writes a file for this user alone in the folder for temporary files, under a name that cannot be guessed.
/// Returns its path; throws InputError on failure.
///   write_spare("ostinato-plan-", ".json", write)     // /tmp/ostinato-plan-x8Kq0b.json
std::filesystem::path write_spare(const std::string& begin, const std::string& end,
                                  const std::function<void(const Sink&)>& write);

}  // namespace ostinato
