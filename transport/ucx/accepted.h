// Options that UCX does not set on its TCP sockets: keepalive on those it accepts (it turns it on
// only for those that it makes itself), and a limit of the bytes that the kernel accepts before
// they can leave.
#pragma once

#include <cstdint>
#include <set>

namespace headrace::transport {

// Limit of unsent bytes in a socket (TCP_NOTSENT_LOWAT). Without it the queue grows to megabytes,
// more than jobs have outstanding, and jobs share the link in the order in which they filled it.
inline constexpr int kUnsentBytesMax = 256 << 10;

enum class SocketKind : std::uint8_t { kListening, kConnected };

// Descriptors of this process that accept TCP connections, or that are (or will be) one. Empty when
// /proc is not there.
std::set<int> TcpSockets(SocketKind kind);

// Turns the kernel's keepalive on for what these will accept (on Linux, what is accepted inherits
// it), with the times that UcxOptions gives to the others. Best effort: without it, a machine that
// vanished is noticed by others.
void KeepAcceptedAlive(const std::set<int>& listening);

// Has these, and what those that listen will accept, fail when nothing of what they have sent was
// acknowledged for so long (UcxOptions::unacknowledged_ms; 0: nothing is done). Best effort.
void FailUnacknowledged(const std::set<int>& sockets, int after_ms);

// Bounds the queues of these, and of what those that listen will accept. Best effort: where the
// kernel does not do it, shares of a link are less exact.
void KeepQueuesShort(const std::set<int>& sockets);

}  // namespace headrace::transport
