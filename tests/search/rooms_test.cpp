// SPDX-License-Identifier: Apache-2.0
// What the sources may not do: the checker and the search include nothing of each other, and no two types
// have one name (the linker takes the code of either for both).

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/source_dir.h"

namespace ostinato {
namespace {

namespace fs = std::filesystem;

/// Calls visit(path from the root, line) for every line of the C++ sources in the folders.
template <typename Visit>
void for_lines(const std::vector<std::string>& folders, Visit visit) {
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(test::source_dir() / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp") continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);)
        visit(fs::relative(entry.path(), test::source_dir()).string(), line);
    }
  }
}

TEST(Rooms, TheCheckerAndTheSearchIncludeNothingOfEachOther) {
  const std::string_view include = "#include \"search/";
  int includes = 0;
  for_lines({"search"}, [&](const std::string& path, const std::string& line) {
    if (!line.starts_with(include)) return;
    ++includes;
    const std::string_view rest = std::string_view(line).substr(include.size());
    const std::string_view room = rest.substr(0, rest.find('/'));
    if (path.starts_with("search/checker/")) {
      const std::set<std::string_view> allowed = {"checker", "files", "placement", "plan", "profile"};
      EXPECT_TRUE(allowed.contains(room)) << path << ": " << line;
      for (const char* derived : {"instance.h", "layer_graph.h"})
        EXPECT_EQ(line.find(derived), std::string::npos) << path << ": " << line;
    } else {
      EXPECT_NE(room, "checker") << path << ": " << line;
    }
  });
  EXPECT_GT(includes, 100);
}

/// The name of the type that a line at the border of a namespace defines, or "".
std::string type_defined_in(const std::string& line) {
  for (const std::string_view kind : {"struct ", "class ", "enum class "}) {
    if (!line.starts_with(kind) || line.find('{') == std::string::npos) continue;
    const std::size_t end = line.find_first_of(" {:", kind.size());
    return line.substr(kind.size(), end - kind.size());
  }
  return "";
}

TEST(Rooms, NoTwoTypesHaveOneName) {
  std::map<std::string, std::set<std::string>> files;  // of each qualified name
  std::string current;
  std::vector<std::string> spaces;
  for_lines({"search", "plugin", "profiler", "bindings"},
            [&](const std::string& path, const std::string& line) {
              if (path != current) spaces.clear();
              current = path;
              if (line.starts_with("namespace ") && line.ends_with('{')) spaces.push_back(line);
              if (line.starts_with("}  // namespace") && !spaces.empty()) spaces.pop_back();
              const std::string name = type_defined_in(line);
              std::string qualified;
              for (const std::string& space : spaces)
                qualified += space == "namespace {" ? path + " " : space + " ";
              // A member that is defined apart has the name of its class: `struct Outer::Inner {`.
              if (!name.empty() && line.find("::") >= line.find('{')) files[qualified + name].insert(path);
            });
  EXPECT_GT(files.size(), 200u);
  for (const auto& [name, where] : files) {
    EXPECT_EQ(where.size(), 1u) << name << " in " << *where.begin() << " and " << *where.rbegin();
  }
}

}  // namespace
}  // namespace ostinato
