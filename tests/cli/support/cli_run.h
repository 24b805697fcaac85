// SPDX-License-Identifier: Apache-2.0
#pragma once
// Running commands in the test's own process, in a folder of their own.
//
//   TemporaryFolder folder;
//   Result r = ostinato_run({"placement", "v", "--output", folder / "v.toml"});
//   EXPECT_EQ(r.status, 0) << r.err;

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ostinato::cli::test {

struct Result {
  int status = -1;
  std::string out, err;

  /// Standard output as JSON: throws where it is anything else than one object.
  nlohmann::json json() const;
};

Result ostinato_run(const std::vector<std::string>& args);

/// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// The path of a file in it.
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  /// Writes a file, and returns its path.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

std::string read_text(const std::filesystem::path& path);

/// A V-shape placement on 4 devices in the folder, and a plan of it for `micro_batches`: "v.toml", "v.json".
void make_plan(const TemporaryFolder& folder, int micro_batches);

/// An ostinato-profile/1 file of a model whose layers take these times forward (ns), and twice as long
/// backward.
std::string profile_text(const std::vector<long>& forward);

/// Times of ten layers.
inline const std::vector<long> kUneven = {1000, 1000, 1000, 5000, 1000, 1000, 1000, 1000, 2000, 2000};

}  // namespace ostinato::cli::test
