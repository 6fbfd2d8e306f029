#include "service/peers/tls_greeting.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "service/peers/tls_options.h"

namespace headrace::service {
namespace {

Status JudgePlainGreeting(const std::string& address, std::string_view said) {
  if (said == kGreeting) return {};
  if (said.size() >= 2 && (said[0] == 0x15 || said[0] == 0x16) && said[1] == 0x03) {
    return Error(Code::kPermissionDenied,
                 address +
                     " speaks TLS, and this node has no certificate: set tls_authority, "
                     "tls_certificate and tls_key (`headracectl certs node` makes them)");
  }
  if (said.empty()) {
    return Error(Code::kUnavailable,
                 address + " closed the connection before it said anything: its log says why");
  }
  // Not what it said: who named the address as a rendezvous may be one who may not speak with it.
  return Error(Code::kCorrupt, address + " is not a Headrace service: it did not greet like one");
}

using Buffer = std::array<char, kGreeting.size()>;

// Reads what the peer says first; less when it ends before.
kj::Promise<std::string> ReadGreeting(kj::AsyncIoStream& stream) {
  auto buffer = kj::heap<Buffer>();
  auto read = stream.tryRead(buffer->data(), buffer->size(), buffer->size());
  return read
      .then([bytes = buffer->data()](std::size_t count) { return std::string(bytes, count); })
      .attach(kj::mv(buffer));
}

kj::Promise<void> WriteGreeting(kj::AsyncIoStream& stream) {
  return stream.write(kGreeting.data(), kGreeting.size());
}

// The greeting is on its way out while the other one comes in; members stand in build order, so
// that the stream is there for as long as something is written to it.
struct PlainExchange {
  SecuredPeer peer;
  kj::Promise<void> written;
};

}  // namespace

kj::Promise<Result<SecuredPeer>> GreetInPlainText(SecuredPeer peer) {
  kj::AsyncIoStream& stream = *peer.stream;
  auto written = WriteGreeting(stream).eagerlyEvaluate(nullptr);
  return ReadGreeting(stream).then(
      [exchange = PlainExchange{.peer = kj::mv(peer), .written = kj::mv(written)}](
          std::string said) mutable -> kj::Promise<Result<SecuredPeer>> {
        const Status status = JudgePlainGreeting(exchange.peer.address, said);
        if (!status) return Result<SecuredPeer>(status.error());
        auto rest = kj::mv(exchange.written);
        return rest.then([peer = kj::mv(exchange.peer)]() mutable -> Result<SecuredPeer> {
          return kj::mv(peer);
        });
      });
}

kj::Promise<Result<SecuredPeer>> GreetEncrypted(SecuredPeer peer, bool accepted) {
  kj::AsyncIoStream& stream = *peer.stream;
  auto said = accepted ? WriteGreeting(stream).then([&stream] { return ReadGreeting(stream); })
                       : ReadGreeting(stream).then([&stream](std::string text) {
                           return WriteGreeting(stream).then(
                               [text = kj::mv(text)]() mutable { return kj::mv(text); });
                         });
  return said.then([peer = kj::mv(peer)](std::string text) mutable -> Result<SecuredPeer> {
    if (text == kGreeting) return kj::mv(peer);
    return Error(text.empty() ? Code::kUnavailable : Code::kCorrupt,
                 peer.address + (text.empty() ? " closed the connection after the TLS handshake: "
                                                "its log says why"
                                              : " has the right certificate, but is no Headrace "
                                                "service"));
  });
}

}  // namespace headrace::service
