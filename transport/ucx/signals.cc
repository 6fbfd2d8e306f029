#include "transport/ucx/signals.h"

#include <dlfcn.h>
#include <ucs/debug/debug.h>

#include <csignal>
#include <initializer_list>

namespace headrace::transport {
namespace {

// Which library an address lies in; null: in none.
const void* LibraryOf(const void* address) {
  Dl_info found{};
  return ::dladdr(address, &found) == 0 ? nullptr : found.dli_fbase;
}

// UCX warns of every signal that it is to give back and does not have; these lines come out when
// the process ends, since it writes them to a buffered stdout.
bool IsUcxs(int signal) {
  struct sigaction now {};
  if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler == SIG_DFL ||
      now.sa_handler == SIG_IGN) {
    return false;
  }
  return LibraryOf(reinterpret_cast<const void*>(now.sa_handler)) ==
         LibraryOf(reinterpret_cast<const void*>(&ucs_debug_disable_signal));
}

}  // namespace

void RestoreSignalHandlers() {
  for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP}) {
    if (IsUcxs(signal)) ucs_debug_disable_signal(signal);
  }
}

}  // namespace headrace::transport
