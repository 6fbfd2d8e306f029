#include "transport/ucx/signals.h"

#include <ucs/debug/debug.h>

#include <csignal>
#include <initializer_list>

namespace headrace::transport {

void TakeSignalsBackFromUcx() {
  for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP}) {
    ucs_debug_disable_signal(signal);
  }
}

}  // namespace headrace::transport
