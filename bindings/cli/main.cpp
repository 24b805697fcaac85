// SPDX-License-Identifier: Apache-2.0
// `ostinato` without Python: the same commands, but for those that run models.

#include <iostream>
#include <string>
#include <vector>

#include "bindings/cli/cli.h"

int main(int argc, char** argv) {
  return ostinato::cli::run(std::vector<std::string>(argv + 1, argv + argc), std::cout, std::cerr);
}
