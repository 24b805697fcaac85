// SPDX-License-Identifier: Apache-2.0
// A plan or placement that was changed by hand or damaged: each command refuses it, or what it draws, replays
// and lowers is what `ostinato verify` finds in the file, too.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "search/numbers/random.h"
#include "tests/cli/support/cli_run.h"
#include "tests/support/source_dir.h"

namespace ostinato::cli::test {
namespace {

using nlohmann::json;

struct Files {
  const char* what;
  std::vector<std::string> search;  ///< what is asked of `ostinato search`, besides its output
  const char* placement;            ///< in configs/
};

/// Bytes that are flipped, left out, doubled, or digits that become others.
std::string change_bytes(std::string text, Random& random) {
  const int size = static_cast<int>(text.size());
  for (int times = 1 + random.below(3); times > 0; --times) {
    const auto at = static_cast<std::size_t>(random.below(size));
    const std::size_t digit = text.find_first_of("0123456789", at);
    switch (random.below(5)) {
      case 0:
        text[at % text.size()] = static_cast<char>(random.below(256));
        break;
      case 1:
        text.erase(at % text.size(), 1 + random.below(40));
        break;
      case 2:
        text.insert(at % text.size(), text.substr(at / 2, 1 + random.below(80)));
        break;
      default:
        if (digit < text.size()) text[digit] = static_cast<char>('0' + random.below(10));
    }
    if (text.empty()) return text;
  }
  return text;
}

json changed(const json& value, const json& other, Random& random) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (value.is_boolean()) return !value.get<bool>();
  if (!value.is_number() || random.below(10) == 0) return other;
  const auto number = static_cast<std::int64_t>(value);
  const std::vector<std::int64_t> likely = {
      0,     1,         -1,        number / 2, number + 1,    number - 1,
      kMost, kMost / 2, 1'000'000, 1LL << 31,  number ^ 4096, number / 1000};
  return likely[random.below(static_cast<int>(std::size(likely)))];
}

/// Values of fields that become others, rows of lists that are missing, doubled or moved.
std::string change_fields(const std::string& text, Random& random) {
  json plan = json::parse(text);
  for (int times = 1 + random.below(2); times > 0; --times) {
    const json flat = plan.flatten();
    const auto any = [&] { return std::next(flat.begin(), random.below(static_cast<int>(flat.size()))); };
    json& steps = plan["schedule"];
    const int rows = static_cast<int>(steps.size());
    switch (rows > 1 ? random.below(8) : 7) {
      case 0:
        steps.erase(static_cast<std::size_t>(random.below(rows)));
        break;
      case 1:
        steps.push_back(steps[static_cast<std::size_t>(random.below(rows))]);
        break;
      case 2:
        std::swap(steps[static_cast<std::size_t>(random.below(rows))],
                  steps[static_cast<std::size_t>(rows / 2)]);
        break;
      default:
        const auto field = any();
        plan[json::json_pointer(field.key())] = changed(field.value(), any().value(), random);
    }
  }
  return plan.dump(1);
}

/// What `verify` holds against a plan, but not against what it does: claims about other schedules, which
/// only `verify` takes the time to prove.
bool is_claim(const std::string& failure) {
  for (const char* begin : {"lower_bound", "optimal.", "no statement proves it", "a schedule ends before",
                            "capacity.lower_bound", "steady_state.period is"}) {
    if (failure.starts_with(begin)) return true;
  }
  return false;
}

class ChangedFilesTest : public testing::TestWithParam<Files> {
 protected:
  void SetUp() override {
    placement_ = (ostinato::test::source_dir() / "configs" / GetParam().placement).string();
    std::vector<std::string> args = {"search", placement_, "--time-limit",
                                     "0",      "--output", folder_ / "plan.json"};
    args.insert(args.end(), GetParam().search.begin(), GetParam().search.end());
    const Result made = ostinato_run(args);
    ASSERT_EQ(made.status, 0) << made.err;
    const bool curve = std::filesystem::is_directory(folder_ / "plan.json");
    text_ = read_text(curve ? one_of_the_curve() : folder_ / "plan.json");
  }

  std::string one_of_the_curve() const {
    std::string last;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "plan.json")) {
      if (entry.path().extension() == ".json" && entry.path().string() > last) last = entry.path().string();
    }
    return last;
  }

  /// How many of the commands took the files; each that did must have been right to.
  int taken(const std::string& plan, const std::string& placement) const {
    const Result verified = ostinato_run({"verify", plan, placement, "--json"});
    bool runs = verified.status == 0;
    if (verified.status == 6) {
      const nlohmann::json said = verified.json();
      runs = std::all_of(said["failures"].begin(), said["failures"].end(),
                         [](const auto& failure) { return is_claim(failure.template get<std::string>()); });
    }
    int count = 0;
    for (const std::vector<std::string>& rest :
         {std::vector<std::string>{"show", plan, placement, "--html", folder_ / "p.html", "--perfetto",
                                   folder_ / "p.json"},
          {"simulate", plan, placement, "--runs", "2", "--jitter", "0.1", "--explain"},
          {"lower", plan, placement}}) {
      const Result result = ostinato_run(rest);
      count += result.status == 0;
      EXPECT_TRUE(result.status == 0 || result.status == 3) << rest[0] << ": " << result.err;
      EXPECT_FALSE(result.status == 0 && !runs) << rest[0] << " takes what verify refuses:\n"
                                                << verified.out << verified.err;
      EXPECT_FALSE(result.status == 3 && result.err.empty()) << rest[0];
    }
    return count;
  }

  TemporaryFolder folder_;
  std::string placement_, text_;
};

TEST_P(ChangedFilesTest, AreRefusedOrRight) {
  int taken_ones = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 600 && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("{}, seed {}", GetParam().what, seed));
    Random random(seed);
    std::string plan = text_, placement = placement_;
    if (seed % 5 == 4) {  // a placement that nobody compares with the plan's digest
      json without = json::parse(text_);
      without["placement"]["sha256"] = "";
      plan = without.dump();
      placement = folder_.write("changed.toml", change_bytes(read_text(placement_), random));
    } else {
      plan = seed % 2 == 0 ? change_bytes(text_, random) : change_fields(text_, random);
    }
    const int count = taken(folder_.write("changed.json", plan), placement);
    taken_ones += count > 0;
    refused += count == 0;
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(taken_ones, 5) << "some changes are harmless; where none is, nothing was tried";
}

INSTANTIATE_TEST_SUITE_P(
    Cli, ChangedFilesTest,
    testing::Values(
        Files{"v", {"--micro-batches", "5"}, "v-shape-4.toml"},
        Files{"span", {"--micro-batches", "3", "--objective", "span"}, "x-shape-4.toml"},
        Files{"shared", {"--micro-batches", "4"}, "m-shape-4.toml"},
        Files{"capacity", {"--micro-batches", "4", "--pareto", "memory", "--points", "3"}, "v-shape-4.toml"}),
    [](const auto& test) { return test.param.what; });

/// What is in a file is printed, not obeyed by the terminal.
TEST(StrangeNames, MoveNoCursor) {
  const TemporaryFolder folder;
  std::string text = read_text(ostinato::test::source_dir() / "configs/v-shape-4.toml");
  const auto put = [&](const std::string& name, const std::string& other) {
    const std::size_t at = text.find("\"" + name);
    ASSERT_NE(at, std::string::npos) << name;
    text.insert(at + 1, other);
  };
  for (const char* name : {"v-shape", "device0"}) put(name, R"(\u001b[2J\n\u009b\u202e)");
  const std::string p = folder.write("p.toml", text), plan = folder / "plan.json";
  const auto plain = [](const Result& result) {
    for (const std::string& printed : {result.out, result.err}) {
      EXPECT_EQ(printed.find('\x1b'), std::string::npos) << printed;
      EXPECT_EQ(printed.find("\u009b"), std::string::npos) << printed;
      EXPECT_EQ(printed.find("\u202e"), std::string::npos) << printed;
    }
    return result.status;
  };
  ASSERT_EQ(plain(ostinato_run({"search", p, "--micro-batches", "4", "--time-limit", "0", "--output", plan})),
            0);
  EXPECT_EQ(plain(ostinato_run({"verify", plan, p})), 0);
  EXPECT_EQ(plain(ostinato_run({"show", plan, p})), 0);
  EXPECT_EQ(plain(ostinato_run({"simulate", plan, p, "--explain"})), 0);
  EXPECT_EQ(plain(ostinato_run({"lower", plan, p})), 0);
  const std::string wrong = folder.write("wrong.json", R"({"format": "\u001b[2J"})");
  EXPECT_EQ(plain(ostinato_run({"show", wrong, p})), 3);
}

}  // namespace
}  // namespace ostinato::cli::test
