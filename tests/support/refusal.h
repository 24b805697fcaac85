// SPDX-License-Identifier: Apache-2.0
#pragma once
// What readers say against a text, as a table of cases.
//
//   const auto read = [&] { parse_plan(text, "plan.json", placement); };
//   EXPECT_EQ(refusal_by(read), "plan.json:1: a plan has no 'span'");

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "search/files/error.h"

namespace ostinato::test {

/// The message of the InputError; "accepted" where there is none.
inline std::string refusal_by(const std::function<void()>& reading) {
  try {
    reading();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

/// `text` with one place changed. The test fails where it has no such place.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// A case of a parameterized test, named `what`.
struct Refusal {
  const char* what;
  std::string text;
  std::string message;
};

inline void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.what; }

}  // namespace ostinato::test
