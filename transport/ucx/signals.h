// The process's signals belong to the program, not to a library.
#pragma once

namespace headrace::transport {

// UCX takes SIGSEGV and its like, and SIGHUP, when it is loaded, long before main. This gives them
// back. Repeating it does nothing.
void RestoreSignalHandlers();

}  // namespace headrace::transport
