// Ends a test program that starts a thread although tests say that it has one: the thread sanitizer
// leaves such programs out (tests/programs.cmake). Alone in a target: it stands in the place of the
// C library's function.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t*,
                                                                     const pthread_attr_t*,
                                                                     void* (*)(void*), void*) {
  std::fputs("a thread is started in a program that is ONE_THREAD to headrace_discover_tests\n",
             stderr);
  std::abort();
}
