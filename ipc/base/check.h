// HR_CHECK(condition, values...): our own bugs end the process, with the values printed. Always on,
// never for input: what a client, a peer or a file says is refused with an Error instead.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace headrace {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition,
                                     const std::string& values) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s\n", file, line, condition, values.c_str());
  std::abort();
}

template <typename... Values>
std::string CheckValues(const Values&... values) {
  std::ostringstream out;
  ((out << " [" << values << "]"), ...);
  return out.str();
}

}  // namespace headrace

#define HR_CHECK(condition, ...)                                     \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::headrace::CheckFailed(__FILE__, __LINE__, #condition,        \
                              ::headrace::CheckValues(__VA_ARGS__)); \
  } while (false)
