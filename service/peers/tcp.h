// What a control connection wants of TCP.
#pragma once

#include <kj/async-io.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

namespace headrace::service {

// Messages are small and waited for: no gathering of small writes, and no doubling of the time
// between retransmissions, which would turn a second without network into three. A socket that
// knows neither still works.
inline void TuneForControl(kj::AsyncIoStream& stream) {
  KJ_IF_MAYBE (fd, stream.getFd()) {
    const int on = 1;
    for (const int option : {TCP_NODELAY, TCP_THIN_LINEAR_TIMEOUTS}) {
      [[maybe_unused]] const int set = ::setsockopt(*fd, IPPROTO_TCP, option, &on, sizeof on);
    }
  }
}

}  // namespace headrace::service
