// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequences of calls as lines of text: recorded before they are made, replayed from a file, and shrunk.
//
//   p1 = shape v devices=3 forward=5
//   p2 = search p1 micro_batches=4
//   written p2
//
// A call names what calls before it have made. One whose object is not there, as its call was left out or
// refused, does nothing: so any part of a sequence is one.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ostinato::test {

struct Call {
  std::string makes;  ///< the name of what it makes; "": nothing
  std::string verb;
  std::vector<std::string> objects;
  std::map<std::string, std::string> options;

  /// Of an option that is not there: `usual`.
  std::string text(const std::string& option, const std::string& usual) const;
  std::int64_t number(const std::string& option, std::int64_t usual) const;
};

using Lines = std::vector<std::string>;

/// Throws std::invalid_argument for a line that is no call.
Call parse_call(const std::string& line);

/// Makes the calls, and says what is wrong; "": nothing.
using Run = std::function<std::string(const Lines&)>;

Lines read_lines(const std::filesystem::path& file);

/// Runs in a process of its own: what is wrong, or how the process ended.
std::string run_apart(const Lines& lines, const Run& run);

/// As few of the lines as still fail, in the same order: none of them can be left out. They must fail.
Lines shrunk(Lines lines, const Run& run);

/// Runs what is written to the file first, so that a crash leaves it. "" and no file where nothing is wrong;
/// else what is, with the shrunk sequence, which is in the file then.
std::string tried(const Lines& lines, const Run& run, const std::filesystem::path& file);

}  // namespace ostinato::test
