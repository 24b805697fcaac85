// SPDX-License-Identifier: Apache-2.0
// No command writes over what it reads, or over what it has just written.

#include <gtest/gtest.h>

#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

/// Refused with this message, and the file stays as it was.
void expect_kept(const std::string& file, const std::vector<std::string>& words, const std::string& message) {
  const std::string before = read_text(file);
  const Result result = ostinato_run(words);
  EXPECT_EQ(result.status, 2) << result.out;
  EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
  EXPECT_EQ(read_text(file), before);
}

std::vector<std::string> plan_of(const std::string& profile, const std::string& output,
                                 const std::string& placement) {
  return {"plan",     profile, "--devices",          "2",      "--micro-batches", "2",
          "--output", output,  "--placement-output", placement};
}

TEST(Outputs, AreNotWhatIsRead) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000}));
  const std::string placement = folder / "v.toml", plan = folder / "v.json";
  expect_kept(profile, plan_of(profile, profile, folder / "p.toml"), "would overwrite what is read");
  expect_kept(profile, plan_of(profile, folder / "p.json", folder / "./profile.json"), "--placement-output");
  expect_kept(profile, {"partition", profile, "--devices", "2", "--output", profile}, "--output");
  expect_kept(placement, {"search", placement, "--micro-batches", "2", "--output", placement}, "--output");
  expect_kept(plan, {"show", plan, placement, "--svg", plan}, "--svg");
}

TEST(Outputs, AreFilesOfTheirOwn) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000}));
  expect_kept(profile, plan_of(profile, folder / "p", folder / "p"), "each needs a file of its own");
  EXPECT_EQ(ostinato_run(plan_of(profile, "/dev/null", "/dev/null")).status, 0);
}

}  // namespace
}  // namespace ostinato::cli::test
