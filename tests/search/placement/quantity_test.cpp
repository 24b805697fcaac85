// SPDX-License-Identifier: Apache-2.0
#include "search/placement/quantity.h"

#include <gtest/gtest.h>

namespace ostinato {
namespace {

TEST(Quantity, ReadsDecimalsExactly) {
  EXPECT_EQ(parse_scaled("12", 1000), 12000);
  EXPECT_EQ(parse_scaled("0.1", 1'000'000'000), 100'000'000);
  EXPECT_EQ(parse_scaled("0.25", 8), 2);
  EXPECT_EQ(parse_scaled("0.5", 1), 1);
  EXPECT_EQ(parse_scaled("0.4999999999999999999999", 1), 0);
  EXPECT_EQ(parse_scaled("9223372036854775807", 1), INT64_MAX);
}

TEST(Quantity, RefusesWhatIsNoNumber) {
  for (const char* text : {"", ".", "-1", "+1", "1e3", "1.2.3", "0x1", "9223372036854775808", "nan"}) {
    EXPECT_FALSE(parse_scaled(text, 1)) << text;
  }
  EXPECT_FALSE(parse_scaled("9223372036854775807", 2));
}

TEST(Quantity, TakesAUnitOrTheGivenOne) {
  EXPECT_EQ(parse_time("1.5ms", "us"), 1'500'000);
  EXPECT_EQ(parse_time("2", "us"), 2000);
  EXPECT_EQ(parse_time("2 s", "us"), 2'000'000'000);
  EXPECT_EQ(parse_memory("40GiB", "MiB"), Bytes{40} << 30);
  EXPECT_EQ(parse_memory("40", "MiB"), Bytes{40} << 20);
  EXPECT_EQ(parse_memory("1.5TiB", "MiB"), Bytes{3} << 39);
  EXPECT_FALSE(parse_memory("40Gb", "MiB"));  // bits
  EXPECT_FALSE(parse_time("ms", "us"));
}

TEST(Quantity, DecimalUnitsAreDecimal) {
  EXPECT_EQ(parse_memory("40GB", "MiB"), 40'000'000'000);
  EXPECT_EQ(parse_memory("1.5 kB", "MiB"), 1500);
  EXPECT_EQ(parse_memory("0.5MB", "MiB"), 500'000);
  EXPECT_EQ(parse_memory("1.000000000001TB", "MiB"), 1'000'000'000'001);
  EXPECT_FALSE(parse_memory("9223373TB", "MiB"));  // beyond int64
}

TEST(Quantity, PrintsTheLargestUnitThatFits) {
  EXPECT_EQ(format_time(0), "0 ns");
  EXPECT_EQ(format_time(999), "999 ns");
  EXPECT_EQ(format_time(1'500'000), "1.5 ms");
  EXPECT_EQ(format_time(1'234'567), "1.235 ms");
  EXPECT_EQ(format_memory(1), "1 B");
  EXPECT_EQ(format_memory(Bytes{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_memory(kUnlimited), "unlimited");
}

}  // namespace
}  // namespace ostinato
