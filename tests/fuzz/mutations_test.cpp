// SPDX-License-Identifier: Apache-2.0
// Readers of files take what they can read, and refuse the rest with InputError: texts whose bytes and words
// were changed at random; and searches on placements that random bytes choose. The same readers run under
// libFuzzer (script/soak fuzz).
//
// OSTINATO_SOAK_MUTATIONS=100000 OSTINATO_SOAK_SEED=7 fuzz_tests

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "search/files/file.h"
#include "tests/fuzz/readers.h"
#include "tests/support/source_dir.h"

namespace ostinato::fuzz {
namespace {

std::int64_t asked(const char* variable, std::int64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoll(value, nullptr, 10);
}

using Engine = std::mt19937_64;  // its numbers are the same everywhere

std::size_t below(Engine& engine, std::size_t bound) { return engine() % bound; }

/// What breaks readers: numbers at the ends of their ranges, brackets, quotes, bytes that are no text.
// clang-format off
constexpr std::string_view kWords[] = {
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e400", "-0.0", "nan",
    "4294967296", "0x7f", "{", "}", "[", "]", "[[", "]]", "\"", "'''", "\"\"\"", "\\u0000", "\\", "\n",
    "\r", "\t", ",", "=", ".", "#", "null", "true", "\xef\xbb\xbf", "\xc3\x28", "\xe2\x80\xae",
    "\xf0\x9f\x98\x80", "\xff", "\xed\xa0\x80", "inf", "1e999", "07:32", "\r\n", "blocks", "after",
    "schedule", "a.b.c.d", "\xe2\x82", "1979-05-27T07:32:00Z", ";", "\x7f", "\x01"
};
// clang-format on

std::string mutated(const Reader& reader, Engine& engine) {
  std::string text;
  if (below(engine, 10) == 0) {  // nothing but words
    for (std::size_t n = below(engine, 30); n > 0; --n) text += kWords[below(engine, std::size(kWords))];
    return below(engine, 3) == 0 ? text + std::string(300, '[') : text;
  }
  text = reader.seeds[below(engine, reader.seeds.size())];
  for (std::size_t times = 1 + below(engine, 4); times > 0 && !text.empty(); --times) {
    const std::size_t at = below(engine, text.size());
    const std::string_view word = kWords[below(engine, std::size(kWords))];
    switch (below(engine, 7)) {
      case 0:
        text[at] = static_cast<char>(engine());
        break;
      case 1:
        text.erase(at, 1 + below(engine, 30));
        break;
      case 2:
        text.insert(at, text.substr(below(engine, text.size()), 1 + below(engine, 60)));
        break;
      case 3:
        text.resize(at);
        break;
      case 4:
        text.insert(at, word);
        break;
      case 5: {  // a number becomes another word
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const std::size_t end = std::min(text.find_first_not_of("0123456789", digit), text.size());
        text.replace(digit, end - digit,
                     below(engine, 3) == 0 ? word : std::string_view(std::to_string(engine() % 100)));
        break;
      }
      default: {  // a line goes elsewhere
        const std::size_t end = std::min(text.find('\n', at), text.size() - 1);
        const std::string line = text.substr(at, end + 1 - at);
        text.erase(at, line.size());
        text.insert(text.empty() ? 0 : below(engine, text.size()), line);
      }
    }
  }
  return text;
}

class MutationsTest : public testing::TestWithParam<const char*> {};

TEST_P(MutationsTest, AreTakenOrRefused) {
  const Reader& reader = find_reader(GetParam());
  for (const std::string& seed : reader.seeds) EXPECT_TRUE(reader.take(seed)) << seed;
  Engine engine(static_cast<std::uint64_t>(asked("OSTINATO_SOAK_SEED", 1)));
  const std::int64_t count = asked("OSTINATO_SOAK_MUTATIONS", 8000);
  std::int64_t taken = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string text = mutated(reader, engine);
    ASSERT_NO_THROW(taken += reader.take(text)) << "after " << i << ":\n" << text;
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, count);
}

/// Each long enough to choose all of a placement: an empty rest of the bytes is zeros.
TEST(SearchesTest, OfRandomBytesHold) {
  const Reader& search = find_reader("search");
  Engine engine(static_cast<std::uint64_t>(asked("OSTINATO_SOAK_SEED", 1)));
  const std::int64_t count = asked("OSTINATO_SOAK_MUTATIONS", 3000);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::string bytes(8 + below(engine, 64), '\0');
    for (char& byte : bytes) byte = static_cast<char>(engine());
    ASSERT_NO_THROW(found += search.take(bytes)) << "after " << i;
  }
  EXPECT_GT(found, 0);
  EXPECT_LT(found, count);
}

class CorpusTest : public testing::TestWithParam<const char*> {};

/// What libFuzzer found to take other ways through the reader.
TEST_P(CorpusTest, IsTakenOrRefused) {
  const Reader& reader = find_reader(GetParam());
  int read = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::source_dir() / "tests/fuzz/corpus" / GetParam())) {
    EXPECT_NO_THROW(reader.take(read_file(entry.path(), std::size_t{1} << 20))) << entry.path();
    ++read;
  }
  EXPECT_GE(read, 10);
}

std::string name_of(const testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  std::erase(name, '-');
  return name;
}

const auto kTexts = testing::Values("toml", "json", "placement", "plan", "pair", "profile", "devices",
                                    "graph", "graph-devices", "sizes", "bare-sizes", "options", "trace");

INSTANTIATE_TEST_SUITE_P(Readers, MutationsTest, kTexts, name_of);
INSTANTIATE_TEST_SUITE_P(Readers, CorpusTest, kTexts, name_of);
INSTANTIATE_TEST_SUITE_P(Bytes, CorpusTest, testing::Values("search"), name_of);

}  // namespace
}  // namespace ostinato::fuzz
