// SPDX-License-Identifier: Apache-2.0
// The table of techniques: docs/search.md has the same, and a search tells what each brought.

#include "search/portfolio/techniques.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "search/files/file.h"
#include "search/placement/shapes.h"
#include "search/search.h"
#include "tests/support/source_dir.h"

namespace ostinato {
namespace {

/// First column of the table under "## The techniques", without its head.
std::vector<std::string> documented() {
  std::istringstream text(read_file(test::source_dir() / "docs/search.md", 1 << 20));
  std::vector<std::string> names;
  bool here = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("## ")) here = line == "## The techniques";
    if (here && line.starts_with("| ") && !line.starts_with("| ---"))
      names.push_back(line.substr(2, line.find(" |", 2) - 2));
  }
  names.erase(names.begin());
  return names;
}

TEST(Techniques, AreThoseOfTheDocs) {
  std::vector<std::string> names;
  for (const Technique* technique : all_techniques()) names.emplace_back(technique->name);
  EXPECT_EQ(names, documented());
}

TEST(Techniques, TellWhatTheyBrought) {
  const Placement placement = shape("nn", {.devices = 4, .forward = 3, .backward = 5, .capacity = 6});
  std::vector<Contribution> contributions;
  const Plan plan = search(placement, {.micro_batches = 8, .contributions = &contributions});
  EXPECT_EQ(plan.schedule, search(placement, {.micro_batches = 8}).schedule);
  ASSERT_FALSE(contributions.empty());
  EXPECT_EQ(contributions.front().technique, "one micro-batch after another");
  EXPECT_EQ(contributions.front().before, 0);
  Nanoseconds best = 0;
  for (const Contribution& row : contributions) {
    EXPECT_GE(row.runs, 1) << row.technique;
    EXPECT_GE(row.seconds, 0) << row.technique;
    if (row.after > 0) best = best == 0 ? row.after : std::min(best, row.after);
  }
  EXPECT_EQ(best, plan.makespan);
}

}  // namespace
}  // namespace ostinato
