// SPDX-License-Identifier: Apache-2.0
// The options table, its file, and the files in configs/.

#include <gtest/gtest.h>

#include <filesystem>

#include "search/placement/placement_toml.h"
#include "search/profile/cluster_toml.h"
#include "tests/cli/support/cli_run.h"
#include "tests/support/source_dir.h"

namespace ostinato::cli::test {
namespace {

const std::filesystem::path kConfigs = ostinato::test::source_dir() / "configs";

TEST(Config, PrintsAFileThatItAccepts) {
  const TemporaryFolder folder;
  const Result printed = ostinato_run({"config"});
  EXPECT_EQ(printed.status, 0);
  const Result written = ostinato_run({"config", "--output", folder / "options.toml"});
  EXPECT_EQ(written.status, 0);
  EXPECT_EQ(read_text(folder / "options.toml"), printed.out);
  EXPECT_EQ(ostinato_run({"config", folder / "options.toml"}).status, 0);
}

TEST(Config, TheFileInConfigsHasTheDefaults) {
  EXPECT_EQ(read_text(kConfigs / "options.toml"), ostinato_run({"config"}).out)
      << "write it again: ostinato config --output configs/options.toml";
}

TEST(Config, ListsTheTableAsJson) {
  const nlohmann::json json = ostinato_run({"config", "--json"}).json();
  EXPECT_EQ(json["options"][0]["key"], "time_limit");
  EXPECT_EQ(json["options"][0]["default"], "10");
  const nlohmann::json checked = ostinato_run({"config", kConfigs / "options.toml", "--json"}).json();
  EXPECT_EQ(checked["count"], json["options"].size());
}

TEST(Config, EverySampleFileIsValid) {
  EXPECT_EQ(read_cluster(kConfigs / "devices.toml").devices.size(), 20);
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs)) {
    const auto name = entry.path().filename();
    if (entry.path().extension() != ".toml" || name == "options.toml" || name == "devices.toml") continue;
    ++count;
    EXPECT_NO_THROW(read_placement(entry.path())) << entry.path();
  }
  EXPECT_GE(count, 8);
}

struct Refusal {
  const char* text;  ///< after the format line
  const char* message;
};

class OptionsFile : public testing::TestWithParam<Refusal> {};

TEST_P(OptionsFile, RefusesWithFileAndLine) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("o.toml", std::string("format = \"ostinato-options/1\"\n") + GetParam().text);
  const Result result = ostinato_run({"config", path});
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find("o.toml:"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(GetParam().message), std::string::npos) << result.err;
}

INSTANTIATE_TEST_SUITE_P(
    All, OptionsFile,
    testing::Values(Refusal{"[serach]\nseed = 1\n", "did you mean"},
                    Refusal{"[search]\ntime_limt = 1\n", "did you mean"},
                    Refusal{"[search]\ntime_limit = \"1\"\n", "must be without quotes"},
                    Refusal{"[search]\nobjective = 3\n", "must be text in quotes"},
                    Refusal{"[search]\nobjective = \"speed\"\n", "is not one of"},
                    Refusal{"[search]\nthreads = 1.5\n", "whole number"},
                    Refusal{"[search]\nthreads = -1\n", "from 0 to 1024"},
                    Refusal{"[partition]\nsplit_backward = 1\n", "true or false"},
                    Refusal{"[plan]\nwithout = \"foo\"\n", "is not one of chunks"},
                    Refusal{"[plan]\nonly = \"split,foo\"\n", "is not one of chunks"},
                    Refusal{"[plan]\nreplicas = \"x\"\n", "65536, or auto, got"},
                    Refusal{"[plan]\nslices = \"0\"\n", "65536, or auto, got"},
                    Refusal{"[partition]\ndevice_memory = \"12\"\n", "with a unit"},
                    Refusal{"[search]\nseed = 1\nseed = 2\n", "seed"},
                    Refusal{"seed = 1\n[search]\n", "seed belongs in a section: write [search]"},
                    Refusal{"[search]\nseed = [1]\n", "seed must be one value, not a list"},
                    Refusal{"[search]\nmethod = \"a\\u0000b\"\n", "NUL character: 'a\\u0000b'"},
                    Refusal{"search = 1\n", "must be a table"}));

TEST(OptionsFileFormat, IsAskedFor) {
  const TemporaryFolder folder;
  EXPECT_EQ(ostinato_run({"config", folder.write("o.toml", "[search]\nseed = 1\n")}).status, 3);
  EXPECT_EQ(ostinato_run({"config", folder.write("o.toml", "format = \"ostinato-options/2\"\n")}).status, 3);
}

TEST(Options, TheCommandLineWinsOverTheFileAndTheFileOverTheDefault) {
  const TemporaryFolder folder;
  make_plan(folder, 4);
  const std::string file =
      folder.write("o.toml", "format = \"ostinato-options/1\"\n[search]\nmethod = \"gpipe\"\nseed = 7\n");
  const auto method = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"search",          folder / "v.toml", "--micro-batches", "4", "--output",
                                     folder / "x.json", "--json",          "--options",       file};
    args.insert(args.end(), more.begin(), more.end());
    return ostinato_run(args).json()["method"];
  };
  EXPECT_EQ(method({}), "gpipe");
  EXPECT_EQ(method({"--method", "1f1b"}), "1f1b");
  EXPECT_EQ(nlohmann::json::parse(read_text(folder / "x.json"))["search"]["seed"], 7);
}

}  // namespace
}  // namespace ostinato::cli::test
