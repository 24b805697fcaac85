// SPDX-License-Identifier: Apache-2.0
#pragma once
// What goes wrong, and the exit status that the command line gives it.
//
// A user's mistake is an InputError (a message with file:line, what is wrong, what would be right). A
// programmer's mistake is an assertion. "Infeasible" is said only with a proof.

#include <stdexcept>
#include <string>

namespace ostinato {

/// Exit statuses of every `ostinato` command.
enum class ExitStatus : int {
  done = 0,
  internal_error = 1,
  usage = 2,
  bad_input = 3,
  infeasible = 4,
  stopped_at_limit = 5,  ///< before anything was found or proved; under --strict: before the search ended
  check_failed = 6,
  missing = 7,  ///< a device or library that was asked for is not there
  interrupted = 130,
};

/// What a user got wrong in a file. `what()` reads "file:line: message"; line 0 leaves the line out.
class InputError : public std::runtime_error {
 public:
  InputError(const std::string& file, int line, const std::string& message)
      : std::runtime_error(line > 0 ? file + ":" + std::to_string(line) + ": " + message
                                    : (file.empty() ? message : file + ": " + message)),
        file_(file),
        line_(line) {}
  /// At the place of `first`, with a text that names more (faults.h).
  InputError(const InputError& first, const std::string& text)
      : std::runtime_error(text), file_(first.file_), line_(first.line_) {}

  const std::string& file() const { return file_; }  ///< "": of no file
  int line() const { return line_; }                 ///< 0: of the file as a whole

 private:
  std::string file_;
  int line_;
};

/// No schedule exists; `what()` holds the proof in words.
class InfeasibleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ostinato
