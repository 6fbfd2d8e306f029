// What a control connection wants of TCP.
#pragma once

#include <kj/async-io.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "service/loop/text.h"

namespace headrace::service {

// Why a connection failed, in the system's words and without kj's around them.
inline std::string CauseOf(const kj::Exception& exception) {
  const std::string text = Printable(exception.getDescription().cStr(), 300);
  for (const int number : {ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, ENETDOWN}) {
    const char* cause = std::strerror(number);
    if (text.find(cause) != std::string::npos) return cause;
  }
  // However the end of the other side shows itself: nothing to read, reset, no one to write to.
  if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
    return "its service exited, was killed or closed it";
  }
  return text;
}

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
