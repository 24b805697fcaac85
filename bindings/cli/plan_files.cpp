// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "search/checker/checker.h"
#include "search/plan/plan_json.h"

namespace ostinato::cli {
namespace fs = std::filesystem;

PlanArguments::PlanArguments(CommandLine& line) {
  line.text("plan", plan, "Plan file (JSON)").required().type_name("PLAN");
  line.text("placement", placement, "Its placement (TOML); default: found by digest in the plan's folder")
      .type_name("PLACEMENT");
}

std::string PlanArguments::placement_file() const {
  return placement.empty() ? placement_of(plan).string() : placement;
}

PlanAndPlacement PlanArguments::read_checked() const {
  PlanAndPlacement result = read();
  refuse_unless_it_runs(result.plan, result.file.placement, plan, placement_file());
  return result;
}

PlanAndPlacement PlanArguments::read() const { return read_plan_and_placement(plan, placement_file()); }

void check_same_model(const ModelFacts& first, const ModelFacts& theirs, const std::string& other) {
  if (first.sha256.empty() || theirs.sha256.empty() || first.sha256 == theirs.sha256) return;
  throw InputError(other, 0,
                   fmt::format("this is a placement of another model (its digest begins with {:.12}, that of "
                               "the first plan's with {:.12}): their times do not compare",
                               theirs.sha256, first.sha256));
}

void check_can_write(const fs::path& path) {
  if (path == "-") throw InputError("-", 0, "is not a file name here; for standard output give /dev/stdout");
  std::error_code error;
  if (is_special(path)) return;
  if (fs::is_directory(path, error)) throw InputError(path.string(), 0, "this is a folder; give a file");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error))
    throw InputError(path.string(), 0, "the folder does not exist; create it first");
  if (access(folder.c_str(), W_OK) != 0) throw InputError(path.string(), 0, "the folder is not writable");
}

namespace {

/// Not so for what is no file on a disk: /dev/null may be named twice.
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (a.empty() || b.empty()) return false;
  if (fs::exists(a, error) && !fs::is_regular_file(a, error)) return false;
  // weakly_canonical() leaves a name relative that is nowhere yet.
  const auto whole = [&error](const fs::path& path) {
    return fs::weakly_canonical(fs::absolute(path, error), error);
  };
  return fs::equivalent(a, b, error) || whole(a) == whole(b);
}

}  // namespace

void check_apart(const std::vector<Written>& outputs, const std::vector<std::string>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [option, path] = outputs[i];
    for (std::size_t j = 0; j < i; ++j)
      if (same_file(path, outputs[j].second))
        throw UsageError(fmt::format("{} and {} are both \"{}\": give two different files", outputs[j].first,
                                     option, path));
    for (const std::string& input : inputs)
      if (same_file(path, input))
        throw UsageError(
            fmt::format("{} \"{}\" would overwrite an input file: give another name", option, path));
  }
}

namespace {

/// Where it is then, in words.
std::string rescue(const Found& found, Io& io) {
  try {
    const std::string ending = found.path.extension().string();
    return "is in " + write_spare("ostinato-" + found.what + "-", ending, found.write).string();
  } catch (const InputError&) {
    found.write([&io](std::string_view text) { io.err << text; });
    return "was printed to standard error";
  }
}

}  // namespace

Found found_plan(const fs::path& path, const Plan& plan, const Placement& placement) {
  return {"plan", path, [&](const Sink& sink) { format_plan(plan, placement, sink); }};
}

void save(const std::vector<Found>& all, Io& io) {
  std::vector<std::string> failures;
  for (const Found& one : all) {
    try {
      write_file(one.path, one.write);
    } catch (const InputError& error) {
      failures.push_back(fmt::format("{}; the {} {}", error.what(), one.what, rescue(one, io)));
    }
  }
  if (!failures.empty()) throw InputError("", 0, fmt::format("{}", fmt::join(failures, "\n")));
}

}  // namespace ostinato::cli
