#include "client/cli/ctl/control.h"

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/async-io.h>

#include "ipc/schema/client.capnp.h"

namespace headrace::ctl {
namespace {

Error ErrorOf(const kj::Exception& exception) {
  const Code code = exception.getType() == kj::Exception::Type::OVERLOADED     ? Code::kTimeout
                    : exception.getType() == kj::Exception::Type::DISCONNECTED ? Code::kUnavailable
                                                                               : Code::kInternal;
  return Error(code, exception.getDescription().cStr());
}

Error Refused(std::uint8_t code, const std::string& text) {
  return Error(code < kCodesCount ? static_cast<Code>(code) : Code::kInternal, text);
}

// Says hello and runs `converse(admin)`, which ends by filling `result`, as one promise.
template <typename Answer, typename Converse>
kj::Promise<void> SayHello(schema::Entrance::Client entrance, Result<Answer>& result,
                           Converse& converse) {
  auto request = entrance.adminRequest();
  request.initHello().setProtocolVersion(schema::PROTOCOL_VERSION);
  request.getHello().setProgram("headracectl");
  return request.send().then([&result, &converse](auto&& hello) -> kj::Promise<void> {
    const auto refusal = hello.getRefusal();
    if (refusal.getCode() == 0) return converse(hello.getAdmin());
    result = Refused(refusal.getCode(), refusal.getText().cStr());
    return kj::READY_NOW;
  });
}

// The whole conversation: connects, says hello, converses; takes at most `timeout_ns`.
template <typename Answer, typename Converse>
Result<Answer> Talk(const std::string& socket_path, TimeNs timeout_ns, Result<Answer>& result,
                    Converse&& converse) {
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&] {
                 auto io = kj::setupAsyncIo();
                 auto late =
                     io.provider->getTimer().afterDelay(timeout_ns * kj::NANOSECONDS).then([&] {
                       result = Error(Code::kTimeout, fmt::format("no answer within {} ms",
                                                                  timeout_ns / kMillisecond));
                     });
                 kj::Own<kj::AsyncIoStream> stream;
                 kj::Own<capnp::TwoPartyClient> client;
                 auto talk = io.provider->getNetwork()
                                 .parseAddress(kj::str("unix:", socket_path.c_str()))
                                 .then([](kj::Own<kj::NetworkAddress>&& address) {
                                   return address->connect().attach(kj::mv(address));
                                 })
                                 .then([&](kj::Own<kj::AsyncIoStream>&& connected) {
                                   stream = kj::mv(connected);
                                   client = kj::heap<capnp::TwoPartyClient>(*stream);
                                   return SayHello(client->bootstrap().castAs<schema::Entrance>(),
                                                   result, converse);
                                 });
                 talk.exclusiveJoin(kj::mv(late)).wait(io.waitScope);
               })) {
    result = ErrorOf(*exception);
  }
  if (!result) return result.error().Within("ask the service at " + socket_path);
  return result;
}

template <typename Answer>
Result<Answer> NotEnded() {
  return Error(Code::kInternal, "the conversation did not end");
}

}  // namespace

std::uint32_t ProtocolVersion() { return schema::PROTOCOL_VERSION; }

Result<PingAnswer> Ping(const std::string& socket_path, TimeNs timeout_ns) {
  Result<PingAnswer> result = NotEnded<PingAnswer>();
  const TimeNs asked_ns = MonotonicNow();
  return Talk(socket_path, timeout_ns, result, [asked_ns, &result](schema::Admin::Client admin) {
    return admin.pingRequest().send().then([asked_ns, &result](auto&& answer) {
      result = PingAnswer{.control_ns = answer.getControlNs(),
                          .dispatch_ns = answer.getDispatchNs(),
                          .round_trip_ns = MonotonicNow() - asked_ns};
    });
  });
}

Status SetPolicy(const std::string& socket_path, const std::string& job, const std::string& policy,
                 TimeNs timeout_ns) {
  Result<bool> result = NotEnded<bool>();
  const Result<bool> asked =
      Talk(socket_path, timeout_ns, result, [&](schema::Admin::Client admin) {
        auto request = admin.setPolicyRequest();
        request.setJob(job.c_str());
        request.setPolicy(policy.c_str());
        return request.send().then([&result](auto&& answer) {
          if (answer.getCode() == 0) {
            result = true;
          } else {
            result = Refused(answer.getCode(), answer.getText().cStr());
          }
        });
      });
  if (!asked) return asked.error();
  return {};
}

}  // namespace headrace::ctl
