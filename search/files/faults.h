// SPDX-License-Identifier: Apache-2.0
#pragma once
// All that is wrong in a file, told at once.
//
//   Faults faults;
//   for (const Value& row : rows) faults.in([&] { read(row); });    // goes on behind a row that is wrong
//   faults.raise();                                                 // "file:3: ...\nfile:9: ..."

#include <cstddef>
#include <vector>

#include "search/files/error.h"

namespace ostinato {

class Faults {
 public:
  static constexpr std::size_t kMost = 20;  ///< that a message lists

  bool full() const { return told_.size() >= kMost; }

  void add(const InputError& fault) {
    if (!full()) told_.push_back(fault);
  }

  /// Keeps what `read` throws. Once full it reads no more, so a wrong file costs no more than a right one.
  template <typename Read>
  void in(const Read& read) {
    try {
      if (!full()) read();
    } catch (const InputError& fault) {
      add(fault);
    }
  }

  /// Throws one InputError with a line for each, in the order of the file; returns where there is none.
  void raise() const;

 private:
  std::vector<InputError> told_;
};

}  // namespace ostinato
