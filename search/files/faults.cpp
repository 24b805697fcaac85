// SPDX-License-Identifier: Apache-2.0
#include "search/files/faults.h"

#include <algorithm>
#include <string>

namespace ostinato {

void Faults::raise() const {
  if (told_.empty()) return;
  std::vector<InputError> sorted = told_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const InputError& a, const InputError& b) { return a.line() < b.line(); });
  std::string text = sorted.front().what();
  for (std::size_t i = 1; i < sorted.size(); ++i) text += std::string("\n") + sorted[i].what();
  if (full()) text += "\nThese are the first " + std::to_string(kMost) + ".";
  throw InputError(sorted.front(), text);
}

}  // namespace ostinato
