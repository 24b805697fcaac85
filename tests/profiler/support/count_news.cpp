// SPDX-License-Identifier: Apache-2.0
// In a file of its own: where the compiler sees both, it takes malloc and free for a mismatch.
#include "tests/profiler/support/count_news.h"

#include <cstdlib>
#include <new>

void* operator new(std::size_t size) {
  if (ostinato::test::count_news) ++ostinato::test::news;
  if (void* block = std::malloc(size)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
