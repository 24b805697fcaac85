// SPDX-License-Identifier: Apache-2.0
#include "tests/search/support/calls.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace ostinato::test {
namespace {

void write_lines(const Lines& lines, const std::filesystem::path& file) {
  std::ofstream out(file);
  for (const std::string& line : lines) out << line << "\n";
}

std::string all_of(int descriptor) {
  std::string text;
  char piece[4096];
  for (ssize_t count = 0; (count = ::read(descriptor, piece, sizeof piece)) > 0;)
    text.append(piece, static_cast<std::size_t>(count));
  return text;
}

[[noreturn]] void say_and_end(int descriptor, const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(descriptor, text.data() + written, text.size() - written);
    if (count <= 0) ::_exit(1);
    written += static_cast<std::size_t>(count);
  }
  ::_exit(0);
}

Lines without(const Lines& lines, std::size_t first, std::size_t count) {
  Lines left(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(first));
  left.insert(left.end(), lines.begin() + static_cast<std::ptrdiff_t>(std::min(first + count, lines.size())),
              lines.end());
  return left;
}

}  // namespace

std::string Call::text(const std::string& option, const std::string& usual) const {
  const auto found = options.find(option);
  return found == options.end() ? usual : found->second;
}

std::int64_t Call::number(const std::string& option, std::int64_t usual) const {
  const auto found = options.find(option);
  return found == options.end() ? usual : std::stoll(found->second);
}

Call parse_call(const std::string& line) {
  std::istringstream words(line);
  std::vector<std::string> all;
  for (std::string word; words >> word;) all.push_back(word);
  Call call;
  std::size_t next = 0;
  if (all.size() > 1 && all[1] == "=") {
    call.makes = all[0];
    next = 2;
  }
  if (next >= all.size()) throw std::invalid_argument("no call: " + line);
  call.verb = all[next++];
  for (; next < all.size(); ++next) {
    const std::size_t equals = all[next].find('=');
    if (equals == std::string::npos)
      call.objects.push_back(all[next]);
    else
      call.options[all[next].substr(0, equals)] = all[next].substr(equals + 1);
  }
  return call;
}

Lines read_lines(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw std::invalid_argument("no file " + file.string());
  Lines lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

std::string run_apart(const Lines& lines, const Run& run) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) {
    ::close(ends[0]);
    ::alarm(600);  // a call that never ends fails, too
    say_and_end(ends[1], run(lines));
  }
  ::close(ends[1]);
  std::string said = all_of(ends[0]);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return fmt::format("the process ended by signal {}", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? said
                                  : fmt::format("the process ended with status {}", WEXITSTATUS(status));
}

Lines shrunk(Lines lines, const Run& run) {
  for (std::size_t count = std::max<std::size_t>(lines.size() / 2, 1); count > 0;) {
    bool shorter = false;
    for (std::size_t end = lines.size(); end > 0;) {  // what comes last depends on what comes first
      const std::size_t first = end - std::min(count, end);
      const Lines less = without(lines, first, end - first);
      if (!run_apart(less, run).empty()) {
        lines = less;
        shorter = true;
      }
      end = first;
    }
    if (!shorter) count /= 2;
    count = std::min(count, lines.size());
  }
  return lines;
}

std::string tried(const Lines& lines, const Run& run, const std::filesystem::path& file) {
  write_lines(lines, file);
  if (run(lines).empty()) {
    std::filesystem::remove(file);
    return "";
  }
  const Lines few = shrunk(lines, run);
  write_lines(few, file);
  std::string text = fmt::format("{}\nafter these {} of {} calls, which are in {}:\n", run_apart(few, run),
                                 few.size(), lines.size(), file.string());
  for (const std::string& line : few) text += "  " + line + "\n";
  return text;
}

}  // namespace ostinato::test
