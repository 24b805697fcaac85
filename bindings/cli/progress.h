// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line on a terminal that says how far the search is; nothing where standard error is no terminal.

#include <chrono>
#include <mutex>
#include <string>

#include "bindings/cli/command.h"
#include "search/search.h"

namespace ostinato::cli {

class ProgressLine {
 public:
  /// `label` stands before the figures; empty where there is one search only.
  ProgressLine(Io& io, std::string label) : io_(io), label_(std::move(label)) {}
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// May be called from any thread; draws at most ten times a second.
  void show(const Progress& progress);

 private:
  Io& io_;
  std::string label_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point drawn_;
  bool shown_ = false;
};

}  // namespace ostinato::cli
