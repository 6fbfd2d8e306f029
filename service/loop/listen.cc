#include "service/loop/listen.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "service/loop/text.h"

namespace headrace::service {
namespace {

struct Remedy {
  int number;
  Code code;
  const char* text;  // with the key
};
constexpr Remedy kRemedies[] = {
    {EADDRINUSE, Code::kBusy, "another program listens there: end it, or set {} to another port"},
    {EADDRNOTAVAIL, Code::kUnavailable,
     "this host has no such address: set {} to one it has, or to *:port"},
    {EACCES, Code::kUnavailable, "ports below 1024 are for root: set {} to a higher one"}};

Error WhyNot(std::string_view key, const std::string& address, const kj::Exception& exception) {
  const std::string cause = CauseOf(exception);
  for (const Remedy& remedy : kRemedies) {
    if (cause != std::strerror(remedy.number)) continue;
    return Error(remedy.code, fmt::format("listen at {} {}: {}: {}", key, address, cause,
                                          fmt::format(fmt::runtime(remedy.text), key)));
  }
  return Error(Code::kUnavailable,
               fmt::format("listen at {} {}: {}: set it to host:port of this host, or leave it "
                           "empty",
                           key, address, cause));
}

}  // namespace

Result<kj::Own<kj::ConnectionReceiver>> ListenAt(kj::AsyncIoContext& io, std::string_view key,
                                                 const std::string& address) {
  try {
    auto parsed = io.provider->getNetwork().parseAddress(address).wait(io.waitScope);
    return parsed->listen();
  } catch (const kj::Exception& exception) {
    return WhyNot(key, address, exception);
  }
}

Status CheckListenAt(std::string_view key, const std::string& address) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  const Result<kj::Own<kj::ConnectionReceiver>> receiver = ListenAt(io, key, address);
  return receiver ? Status() : Status(receiver.error());
}

}  // namespace headrace::service
