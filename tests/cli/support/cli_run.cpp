// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/support/cli_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "bindings/cli/cli.h"
#include "search/profile/profile_json.h"

namespace ostinato::cli::test {

nlohmann::json Result::json() const { return nlohmann::json::parse(out); }

Result ostinato_run(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  Result result;
  result.status = run(args, out, err);
  result.out = out.str();
  result.err = err.str();
  return result;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "ostinato-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& text) const {
  std::ofstream(path_ / name) << text;
  return (path_ / name).string();
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void make_plan(const TemporaryFolder& folder, int micro_batches) {
  const Result placed = ostinato_run({"placement", "v", "--output", folder / "v.toml"});
  ASSERT_EQ(placed.status, 0) << placed.err;
  const Result searched =
      ostinato_run({"search", folder / "v.toml", "--micro-batches", std::to_string(micro_batches), "--method",
                    "1f1b", "--output", folder / "v.json"});
  ASSERT_EQ(searched.status, 0) << searched.err;
}

std::string profile_text(const std::vector<long>& forward) {
  Profile profile;
  profile.model = "test";
  profile.model_sha256 = std::string(64, 'a');
  profile.device.name = profile.device.kind = "cpu";
  profile.timer = "cpu";
  profile.repeats = 1;
  profile.micro_batch_size = 1;
  profile.completeness.complete = true;
  for (std::size_t i = 0; i < forward.size(); ++i) {
    LayerCost layer;
    layer.index = static_cast<int>(i);
    layer.name = fmt::format("{}:Layer", i);
    layer.forward = {forward[i], forward[i], forward[i], 1};
    layer.backward = {2 * forward[i], 2 * forward[i], 2 * forward[i], 1};
    layer.kept = 1000;
    layer.parameters = layer.gradients = 100;
    layer.input_bytes = layer.output_bytes = 10;
    profile.layers.push_back(layer);
  }
  return format_profile(profile);
}

}  // namespace ostinato::cli::test
