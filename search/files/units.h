// SPDX-License-Identifier: Apache-2.0
#pragma once
// The units of placement files: names and factors.

#include <array>
#include <cstdint>
#include <string_view>

namespace ostinato {

struct Unit {
  std::string_view name;
  std::int64_t factor;  ///< nanoseconds or bytes in one of it
};

/// From small to large.
inline constexpr std::array<Unit, 4> kTimeUnits = {
    {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};
inline constexpr std::array<Unit, 4> kMemoryUnits = {
    {{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}};

/// As people type amounts: powers of 1024 and of 1000.
inline constexpr std::array<Unit, 9> kTypedMemoryUnits = {{{"B", 1},
                                                           {"kB", 1'000},
                                                           {"KiB", 1 << 10},
                                                           {"MB", 1'000'000},
                                                           {"MiB", 1 << 20},
                                                           {"GB", 1'000'000'000},
                                                           {"GiB", 1 << 30},
                                                           {"TB", 1'000'000'000'000},
                                                           {"TiB", std::int64_t{1} << 40}}};

/// Bytes per second in one GB/s, the unit of bandwidth.
inline constexpr std::int64_t kGigabyte = 1'000'000'000;

}  // namespace ostinato
