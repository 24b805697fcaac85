// SPDX-License-Identifier: Apache-2.0
// `ostinato` without Python: the same commands, except those that run models.

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "bindings/cli/cli.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE,
              SIG_DFL);  // a reader that has gone ends it without a word, also where that was ignored
  return ostinato::cli::run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
}
