#include "client/cli/ctl/control.h"

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/async-io.h>

#include "ipc/schema/client.capnp.h"

namespace headrace::ctl {
namespace {

// The whole conversation as one promise. `result` outlives it.
kj::Promise<void> Converse(schema::Entrance::Client entrance, Result<PingAnswer>& result) {
  auto request = entrance.adminRequest();
  request.initHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  request.getHello().setProgram("headracectl");
  const TimeNs asked_ns = MonotonicNow();
  return request.send().then([asked_ns, &result](auto&& hello) -> kj::Promise<void> {
    const auto refusal = hello.getRefusal();
    if (refusal.getCode() != 0) {
      result = Error(static_cast<Code>(refusal.getCode()), refusal.getText().cStr());
      return kj::READY_NOW;
    }
    return hello.getAdmin().pingRequest().send().then([asked_ns, &result](auto&& answer) {
      result = PingAnswer{.control_ns = answer.getControlNs(),
                          .dispatch_ns = answer.getDispatchNs(),
                          .round_trip_ns = MonotonicNow() - asked_ns};
    });
  });
}

Error ErrorOf(const kj::Exception& exception) {
  const Code code = exception.getType() == kj::Exception::Type::OVERLOADED     ? Code::kTimeout
                    : exception.getType() == kj::Exception::Type::DISCONNECTED ? Code::kUnavailable
                                                                               : Code::kInternal;
  return Error(code, exception.getDescription().cStr());
}

}  // namespace

std::uint32_t ProtocolVersion() { return schema::PROTOCOL_VERSION; }

Result<PingAnswer> Ping(const std::string& socket_path, TimeNs timeout_ns) {
  Result<PingAnswer> result = Error(Code::kInternal, "the conversation did not end");
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 auto io = kj::setupAsyncIo();
                 auto late =
                     io.provider->getTimer().afterDelay(timeout_ns * kj::NANOSECONDS).then([&] {
                       result = Error(Code::kTimeout, fmt::format("no answer within {} ms",
                                                                  timeout_ns / kMillisecond));
                     });
                 kj::Own<kj::AsyncIoStream> stream;
                 kj::Own<capnp::TwoPartyClient> client;
                 auto talk =
                     io.provider->getNetwork()
                         .parseAddress(kj::str("unix:", socket_path.c_str()))
                         .then([](kj::Own<kj::NetworkAddress>&& address) {
                           return address->connect().attach(kj::mv(address));
                         })
                         .then([&](kj::Own<kj::AsyncIoStream>&& connected) {
                           stream = kj::mv(connected);
                           client = kj::heap<capnp::TwoPartyClient>(*stream);
                           return Converse(client->bootstrap().castAs<schema::Entrance>(), result);
                         });
                 talk.exclusiveJoin(kj::mv(late)).wait(io.waitScope);
               })) {
    result = ErrorOf(*exception);
  }
  if (!result) return result.error().Within("ask the service at " + socket_path);
  return result;
}

}  // namespace headrace::ctl
