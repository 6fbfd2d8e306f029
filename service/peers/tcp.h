// TCP options of control connections.
#pragma once

#include <kj/async-io.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace headrace::service {

// Messages are small and latency matters: sets TCP_NODELAY, and keeps the retransmission timeout
// from doubling, which would turn one second without network into three. Sockets without these
// options still work.
inline void TuneForControl(kj::AsyncIoStream& stream) {
  KJ_IF_MAYBE (fd, stream.getFd()) {
    const int on = 1;
    for (const int option : {TCP_NODELAY, TCP_THIN_LINEAR_TIMEOUTS}) {
      [[maybe_unused]] const int set = ::setsockopt(*fd, IPPROTO_TCP, option, &on, sizeof on);
    }
  }
}

}  // namespace headrace::service
