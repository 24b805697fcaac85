// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stand-in for libcupti, loaded as the collector would load the real one.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "profiler/cupti/collector.h"
#include "tests/profiler/cupti/standin/standin.h"

namespace ostinato::cupti {

inline StandIn& stand_in() {
  void* handle = dlopen(CUPTI_STANDIN, RTLD_NOW);
  return *reinterpret_cast<StandIn* (*)()>(dlsym(handle, "cupti_stand_in"))();
}

/// As if a driver were installed: an empty library with its name.
struct Driver {
  Driver() : handle(dlopen(CUDA_STANDIN, RTLD_NOW)) {}
  ~Driver() { dlclose(handle); }
  void* handle;
};

/// Every case starts with a fresh stand-in and the library loaded from it.
class WithStandIn : public testing::Test {
 protected:
  WithStandIn() : cupti(stand_in()) { cupti.reset(); }

  const Library& library() {
    const Driver driver;  // which its version is asked with
    std::string problem;
    const Library* library = load_library(CUPTI_STANDIN, &problem);
    if (!library) throw std::runtime_error(problem);
    return *library;
  }

  StandIn& cupti;
};

inline Range forward(int operator_id, int layer, int micro_batch = 0) {
  return {.operator_id = operator_id, .layer = layer, .kind = Kind::forward, .micro_batch = micro_batch};
}

}  // namespace ostinato::cupti
