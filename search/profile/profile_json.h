// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading and writing ostinato-profile/1 (JSON); docs/profile-format.md describes every field.

#include <filesystem>
#include <string>
#include <string_view>

#include "search/profile/profile.h"

namespace ostinato {

/// Throws InputError with file:line as docs/profile-format.md asks.
Profile read_profile(const std::filesystem::path& path);
Profile parse_profile(std::string_view text, const std::string& name);

/// The same profile gives the same bytes.
std::string format_profile(const Profile& profile);

inline constexpr std::size_t kMaxProfileBytes = std::size_t{256} << 20;

}  // namespace ostinato
