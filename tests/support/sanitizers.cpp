// SPDX-License-Identifier: Apache-2.0
// What sanitizers ask a test program for when it starts. Not in the environment, so that it holds however a
// test is started, and when CTest asks for the names of tests. Linked by the presets with sanitizers only,
// and not compiled with any: it runs before they are ready.

extern "C" {

/// GCC leaves both off. A stack that its function has left, and what is read before it is initialised.
const char* __asan_default_options() {
  return "detect_stack_use_after_return=1:check_initialization_order=1";
}

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

/// history_size: more of what a thread did before, so that both sides of a race are shown.
///
/// ignore_interceptors_accesses: torch's wheel is not compiled with the thread sanitizer, which sees of it
/// only calls into libc: locks and threads, which order what our code does, and memcpy and free. It does not
/// see the reference counts that torch's own code changes, nor how libgomp's threads wait for each other, and
/// would take for races what these order. So what memcpy, free and the like touch is overlooked, whoever
/// calls them. (called_from_lib suppressions would overlook torch's locks, too.)
const char* __tsan_default_options() {
  return "history_size=4:second_deadlock_stack=1"
#ifdef OSTINATO_TESTS_WITH_TORCH
         ":ignore_interceptors_accesses=1"
#endif
      ;
}

/// NVTX's headers read a function's address while another thread may enter it there for the first time: an
/// aligned word, and whichever is read leads on.
const char* __tsan_default_suppressions() { return "race:^nvtxInitOnce_v3$\n"; }

}  // extern "C"
