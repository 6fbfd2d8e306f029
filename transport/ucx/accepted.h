// Keepalive for connections that UCX accepts: it turns it on only for those that it makes itself.
#pragma once

#include <set>

namespace headrace::transport {

// Descriptors of this process that accept TCP connections. Empty when /proc is not there.
std::set<int> ListeningSockets();

// Turns the kernel's keepalive on for what these will accept (on Linux, what is accepted inherits
// it), with the times that UcxOptions gives to the others. Best effort: without it, a machine that
// vanished is noticed by others.
void KeepAcceptedAlive(const std::set<int>& listening);

}  // namespace headrace::transport
