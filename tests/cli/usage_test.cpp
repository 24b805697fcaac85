// SPDX-License-Identifier: Apache-2.0
// What every command has in common: help, usage errors, JSON, exit statuses.

#include <gtest/gtest.h>

#include <algorithm>

#include "bindings/cli/cli.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

const std::vector<std::string> kPythonCommands = {"profile", "report", "checkpoint", "doctor"};

bool is_python(const std::string& name) {
  return std::find(kPythonCommands.begin(), kPythonCommands.end(), name) != kPythonCommands.end();
}

TEST(Usage, HelpListsEveryCommandInTheOrderOfThePipeline) {
  const Result result = ostinato_run({"--help"});
  EXPECT_EQ(result.status, 0);
  std::size_t at = 0;
  for (const std::string& name : command_names()) {
    at = result.out.find("\n  " + name + " ", at);
    ASSERT_NE(at, std::string::npos) << name;
  }
}

TEST(Usage, EveryCommandExplainsItselfWithAnExample) {
  for (const std::string& name : command_names()) {
    if (is_python(name)) continue;
    const Result result = ostinato_run({name, "--help"});
    EXPECT_EQ(result.status, 0) << name;
    EXPECT_NE(result.out.find("Example:\n  ostinato " + name), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("--json"), std::string::npos) << name;
    EXPECT_EQ(result.err, "");
  }
}

TEST(Usage, TheExamplesOfTheHelpHaveNoUsageErrors) {
  for (const std::string& name : command_names()) {
    if (is_python(name)) continue;
    const std::string help = ostinato_run({name, "--help"}).out;
    std::istringstream words(help.substr(help.find("Example:\n  ostinato ") + 20));
    std::vector<std::string> args;
    for (std::string word; words >> word;) args.push_back(word);
    TemporaryFolder folder;  // what an example writes must not land beside the tests
    for (std::string& arg : args) {
      if (arg.ends_with(".toml") || arg.ends_with(".json") || arg.ends_with(".html")) arg = folder / arg;
    }
    EXPECT_NE(ostinato_run(args).status, 2) << help;
  }
}

TEST(Usage, VersionIsPrinted) {
  EXPECT_EQ(ostinato_run({"--version"}).out, "ostinato " + version() + "\n");
  EXPECT_EQ(ostinato_run({"-V"}).out, "ostinato " + version() + "\n");
}

TEST(Usage, AllThatIsMissingIsToldAtOnce) {
  EXPECT_NE(ostinato_run({"search"}).err.find("missing: PLACEMENT, --micro-batches N, --output PLAN\n"),
            std::string::npos);
  EXPECT_NE(ostinato_run({"verify"}).err.find("missing: PLAN\n"), std::string::npos);
  EXPECT_NE(
      ostinato_run({"search", "--seed", "1", "--seed", "2"}).err.find("--seed is given more than once\n"),
      std::string::npos);
}

TEST(Usage, WhatIsTooMuchIsTold) {
  const Result result = ostinato_run({"verify", "plan.json", "placement.toml", "other.toml", "more"});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("unexpected argument: other.toml more"), std::string::npos) << result.err;
}

TEST(Usage, AnUnknownShortOptionIsToldBeforeWhatIsMissing) {
  EXPECT_NE(ostinato_run({"plan", "-z"}).err.find("unknown option -z\n"), std::string::npos);
  EXPECT_NE(ostinato_run({"verify", "plan.json", "-z"}).err.find("unknown option -z\n"), std::string::npos);
}

TEST(Usage, OutputHasAShortForm) {
  const TemporaryFolder folder;
  EXPECT_EQ(ostinato_run({"placement", "v", "--devices", "2", "-o", folder / "v.toml"}).status, 0);
  EXPECT_EQ(
      ostinato_run({"search", folder / "v.toml", "--micro-batches", "2", "-o", folder / "v.json"}).status, 0);
  EXPECT_EQ(ostinato_run({"verify", folder / "v.json"}).status, 0);
}

TEST(Usage, QuietLeavesErrorsAndJson) {
  const TemporaryFolder folder;
  make_plan(folder, 2);
  EXPECT_EQ(ostinato_run({"verify", folder / "v.json", folder / "v.toml", "-q"}).out, "");
  EXPECT_TRUE(ostinato_run({"verify", folder / "v.json", folder / "v.toml", "-q", "--json"}).json()["ok"]);
  const Result searched = ostinato_run(
      {"search", folder / "v.toml", "--micro-batches", "2", "--output", folder / "plan.json", "--quiet"});
  EXPECT_EQ(searched.status, 0);
  EXPECT_EQ(searched.out + searched.err, "");
  EXPECT_NE(ostinato_run({"verify", "/no/plan.json", folder / "v.toml", "-q"}).err, "");
}

TEST(Usage, CompletionKnowsEveryCommandItsOptionsAndTheirChoices) {
  const std::string script = ostinato_run({"completion", "bash"}).out;
  for (const std::string& name : command_names()) {
    EXPECT_NE(script.find(name), std::string::npos);
    if (is_python(name)) continue;
    const std::size_t line = script.find("\n    " + name + ") words=\"--");
    ASSERT_NE(line, std::string::npos) << name;
    EXPECT_LT(script.find("--json", line), script.find(";;", line)) << name;
  }
  EXPECT_NE(script.find("--objective) words=\"makespan span latency\""), std::string::npos);
  EXPECT_NE(script.find("--strategy"), std::string::npos) << "of the other half of partition";
  EXPECT_EQ(ostinato_run({"completion", "zsh"}).out.find("autoload"), 0u);
  const Result fish = ostinato_run({"completion", "fish"});
  EXPECT_EQ(fish.status, 2);
  EXPECT_NE(fish.err.find("only bash and zsh have completions"), std::string::npos) << fish.err;
}

TEST(Usage, NothingIsAUsageError) {
  const Result result = ostinato_run({});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("Usage:"), std::string::npos);
}

TEST(Usage, SuggestsTheCommandThatWasMeant) {
  const Result result = ostinato_run({"serach"});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("did you mean search?\nTry: ostinato --help\n"), std::string::npos) << result.err;
}

TEST(Usage, ANumberThatIsNoneIsNamed) {
  const Result result = ostinato_run({"placement", "v", "--devices", "x"});
  EXPECT_NE(result.err.find("placement: --devices needs a whole number from 1 to 65536, got \"x\"\n"),
            std::string::npos)
      << result.err;
}

TEST(Usage, ANumberWithAUnitIsTold) {
  const Result result =
      ostinato_run({"search", "v.toml", "--micro-batches", "8", "--time-limit", "10s", "--output", "p.json"});
  EXPECT_NE(result.err.find("--time-limit needs a decimal number from 0 to 100000000, got \"10s\": give the "
                            "number without a unit (see --help)\n"),
            std::string::npos)
      << result.err;
}

TEST(Usage, AnExponentIsNoUnit) {
  const Result result = ostinato_run({"placement", "v", "--devices", "1e3"});
  EXPECT_NE(result.err.find("got \"1e3\": write it without an exponent\n"), std::string::npos) << result.err;
}

TEST(Usage, ATimeThatNoNumberHoldsIsTooLarge) {
  const Result result = ostinato_run({"placement", "v", "--forward", "99999999999999999999s"});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("is too large: \"99999999999999999999s\" is more than 2^63 - 1 ns"),
            std::string::npos)
      << result.err;
}

TEST(Usage, ANumberThatRoundsToNoneIsTold) {
  const Result result = ostinato_run(
      {"search", "v.toml", "--micro-batches", "8", "--time-limit", "0.0000001", "--output", "p.json"});
  EXPECT_NE(result.err.find("got \"0.0000001\": the least above 0 is 0.000001\n"), std::string::npos)
      << result.err;
}

TEST(Usage, FilesInTheWrongOrderAreNoticed) {
  const TemporaryFolder folder;
  const Result result = ostinato_run({"verify", folder / "v.toml", folder.write("plan.json", "{}")});
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find("plan.json:1: this is JSON, not TOML"), std::string::npos) << result.err;
}

TEST(Usage, SuggestsTheOptionThatWasMeant) {
  for (const char* option : {"--micro-batchs", "--micro-batchs=8"}) {
    const Result result = ostinato_run({"search", "v.toml", option, "8", "--output", "x"});
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find("unknown option --micro-batchs; did you mean --micro-batches?"),
              std::string::npos)
        << result.err;
  }
}

TEST(Usage, SuggestsTheChoiceThatWasMeant) {
  const Result result =
      ostinato_run({"search", "v.toml", "--micro-batches", "8", "--output", "x", "--objective", "makespn"});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("did you mean makespan?"), std::string::npos) << result.err;
}

TEST(Usage, MissingAndMalformedArgumentsAreUsageErrors) {
  const std::vector<std::vector<std::string>> wrong = {
      {"search"},
      {"search", "v.toml", "--output", "x"},
      {"search", "v.toml", "--micro-batches", "many", "--output", "x"},
      {"search", "v.toml", "--micro-batches", "0", "--output", "x"},
      {"search", "v.toml", "--micro-batches", "4", "--output", "x", "--time-limit", "-1"},
      {"search", "v.toml", "--micro-batches", "4", "--output", "x", "--threads", "1.5"},
      {"placement", "v", "--forward", "1 parsec"},
      {"placement", "v", "--time-unit", "h"},
      {"placement", "v", "--forward", "1,,2"},
      {"placement", "v", "--memory", "1,"},
      {"placement", "v", "--bandwidth", "fast"},
      {"placement", "v", "--bandwidth", "0.0000000001"},
      {"partition", "g.csv", "--devices", "4", "--output", "x"},
      {"placement", "triangle"},
      {"partition", "p.json", "--devices", "2", "--output", "x", "--device-memory", "40"},
      {"partition", "p.json", "--devices", "0", "--output", "x"},
      {"partition", "p.json", "--devices", "65537", "--output", "x"},
      {"simulate", "a", "b", "--jitter", "2"},
      {"simulate", "a", "b", "--runs", "0"},
      {"show", "a", "b", "--width", "5"},
      {"config", "a", "--output", "b"},
  };
  for (const auto& args : wrong) {
    const Result result = ostinato_run(args);
    EXPECT_EQ(result.status, 2) << args.front() << ' ' << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find("Try: ostinato " + args.front() + " --help"), std::string::npos) << result.err;
  }
}

// Every option that takes a number, of every command, as its help lists them.
TEST(Usage, WhatIsNoNumberInRangeIsRefusedByName) {
  const std::vector<std::string> plan = {
      "plan", "p.json", "--devices", "2", "--micro-batches", "4", "--output", "x", "--placement-output", "y"};
  int options = 0;
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"placement", "v"},
                                             {"partition", "p.json", "--devices", "2", "--output", "x"},
                                             {"partition", "g.csv", "--devices", "d.csv"},
                                             {"search", "v.toml", "--micro-batches", "4", "--output", "x"},
                                             plan,
                                             {"simulate", "a", "b"},
                                             {"show", "a", "b"},
                                             {"lower", "a", "b"}}) {
    std::istringstream help(ostinato_run({command[0], command[1], "--help"}).out);
    for (std::string line; std::getline(help, line);) {
      std::istringstream words(line);
      std::string name, type;
      words >> name >> type;
      for (const char* of_the_parser : {"INT", "UINT", "FLOAT"}) EXPECT_NE(type, of_the_parser) << line;
      const std::vector<std::string> numbers = {"N", "X", "C", "D", "R", "W"};
      if (!name.starts_with("--") || std::find(numbers.begin(), numbers.end(), type) == numbers.end())
        continue;
      ++options;
      for (const char* wrong : {"-1", "nan", "inf", "1e400", "0x10", "99999999999999999999"}) {
        std::vector<std::string> args = command;
        std::erase(args, name);  // given once
        args.push_back(name + "=" + wrong);
        const Result result = ostinato_run(args);
        EXPECT_EQ(result.status, 2) << command[0] << ' ' << args.back() << result.err;
      }
    }
  }
  EXPECT_GE(options, 15);
}

TEST(Usage, FilesThatCannotBeReadAreBadInput) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"search", "/no/v.toml", "--micro-batches", "4", "--output", "x"},
           {"verify", "/no/plan.json", "/no/v.toml"},
           {"simulate", "/no/plan.json", "/no/v.toml"},
           {"show", "/no/plan.json", "/no/v.toml"},
           {"lower", "/no/plan.json", "/no/v.toml"},
           {"partition", "/no/profile.json", "--devices", "2", "--output", "x"},
           {"config", "/no/options.toml"}}) {
    const Result result = ostinato_run(args);
    EXPECT_EQ(result.status, 3) << args.front();
    EXPECT_NE(result.err.find("/no/"), std::string::npos) << result.err;
  }
}

TEST(Usage, JsonIsOneObjectAlsoWhereSomethingIsWrong) {
  const Result usage = ostinato_run({"search", "--json", "--nonsense"});
  EXPECT_EQ(usage.json()["status"], 2);
  const Result input = ostinato_run({"verify", "/no/plan.json", "/no/v.toml", "--json"});
  EXPECT_EQ(input.json()["status"], 3);
  EXPECT_NE(input.json()["error"].get<std::string>().find("/no/v.toml"), std::string::npos);
}

TEST(Usage, CommandsOfThePythonHalfSaySo) {
  for (const std::string& name : kPythonCommands) {
    const Result result = ostinato_run({name});
    EXPECT_EQ(result.status, 7);
    EXPECT_NE(result.err.find("python -m ostinato " + name), std::string::npos);
  }
}

TEST(Usage, AClosedOutputIsAnError) {
  std::ostringstream out, err;
  out.setstate(std::ios::badbit);
  EXPECT_EQ(run({"--help"}, out, err), 1);
}

}  // namespace
}  // namespace ostinato::cli::test
