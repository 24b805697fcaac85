// SPDX-License-Identifier: Apache-2.0
// No command writes over what it reads, or over what it has just written.

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "bindings/cli/command.h"
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

using Words = std::vector<std::string>;

/// A command that works, but for what follows: an option that writes, and what it must not write over.
struct Writing {
  Words words;
  std::set<std::string> options;
  Words inputs;
};

TEST(Outputs, OfNoCommandAreWhatItReads) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const std::string placement = folder / "v.toml", plan = folder / "v.json", other = folder / "w.json",
                    profile = folder.write("profile.json", profile_text({1000, 1000})),
                    trace = folder.write("rank-0.json", "kept"), sizes = folder.write("sizes.toml", "kept"),
                    set = folder.write("set.toml", "format = \"ostinato-options/1\"\n"),
                    graph = folder.write("graph.csv", "kept"), csv = folder.write("devices.csv", "kept");
  std::filesystem::copy_file(plan, other);
  const std::string out = folder / "out";
  const std::vector<Writing> all = {
      {{"plan", profile, "--devices", "2", "--micro-batches", "2", "--options", set},
       {"--output", "--placement-output"},
       {profile, set}},
      {{"partition", profile, "--devices", "2", "--options", set}, {"--output"}, {profile, set}},
      {{"partition", profile, "--devices", "2", "--strategy", "heft"}, {"--output"}, {profile}},
      {{"partition", graph, "--devices", csv, "--strategy=best"}, {"--output"}, {graph, csv}},
      {{"search", placement, "--micro-batches", "2", "--options", set}, {"--output"}, {placement, set}},
      {{"search", placement, "--sizes", sizes}, {"--output"}, {sizes}},
      {{"show", plan, placement}, {"--html", "--svg", "--perfetto"}, {plan, placement}},
      {{"show", plan, placement, "--html", out, "--against", other, "--trace", folder / "."},
       {"--svg", "--perfetto"},
       {other, trace}},
  };
  std::set<std::string> tested;
  for (const auto& [words, options, inputs] : all) {
    for (const std::string& option : options) {
      tested.insert(words.front() + option);
      for (const std::string& input : inputs) {
        const std::string linked = folder / "linked";
        std::filesystem::create_hard_link(input, linked);
        for (const std::string& name : {input, linked}) {
          SCOPED_TRACE(words.front() + " " + option + " " + name);
          Words args = words;
          args.insert(args.end(), {option, name});
          if (words.front() == "plan")
            args.insert(args.end(), {option == "--output" ? "--placement-output" : "--output", out});
          expect_kept(input, args, option + " \"" + name + "\" would overwrite an input file");
        }
        std::filesystem::remove(linked);
      }
    }
  }
  const std::set<std::string> reads_nothing = {"placement--output", "config--output"};
  for (const Command& command : commands()) {
    if (command.run == nullptr) continue;
    std::ostringstream none;
    Words found;
    Io io{.out = none, .err = none, .options = &found};
    command.run({}, io);
    for (const std::string& option : found) {
      const std::string what = command.name + option;
      if (option.ends_with("output") || option == "--html" || option == "--svg" || option == "--perfetto") {
        EXPECT_EQ(tested.contains(what) + reads_nothing.contains(what), 1) << what;
      }
    }
  }
}

TEST(Outputs, OfACurveAreNotWhatIsRead) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  const std::string placement = folder.write("memory-4.json", read_text(folder / "v.toml"));
  expect_kept(placement,
              {"search", placement, "--micro-batches", "2", "--pareto", "memory", "--output", folder / "."},
              "would overwrite an input file");
}

TEST(Outputs, AreFilesOfTheirOwn) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("profile.json", profile_text({1000, 1000}));
  expect_kept(profile, plan_of(profile, folder / "p.json", folder / "./profile.json"), "--placement-output");
  expect_kept(profile, plan_of(profile, folder / "p", folder / "p"), "give two different files");
  const std::string relative = std::filesystem::relative(folder / "q").string();
  expect_kept(profile, plan_of(profile, relative, folder / "q"), "give two different files");
  EXPECT_EQ(ostinato_run(plan_of(profile, "/dev/null", "/dev/null")).status, 0);
}

}  // namespace
}  // namespace ostinato::cli::test
