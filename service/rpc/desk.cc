#include "service/rpc/desk.h"

#include <fmt/format.h>

#include "ipc/base/foreign_text.h"

namespace headrace::service {
namespace {

constexpr std::size_t kProgramNameMax = 127;

}  // namespace

void Client::Lose() {
  if (session == SessionId{}) return;
  const bool exited = HasExited(peer);
  desk.leases.End(session, false, Code::kPeerLost,
                  exited ? "exited or was killed" : "closed its connection", exited);
}

Status CheckHello(schema::Hello::Reader hello, std::string_view service_version) {
  if (hello.getProtocolVersion() == schema::PROTOCOL_VERSION) return {};
  const auto program = hello.getProgram();
  return Error(Code::kVersionMismatch,
               fmt::format("headraced {} speaks protocol {}, {} speaks protocol {}: update the {}",
                           service_version, schema::PROTOCOL_VERSION,
                           Printable({program.begin(), program.size()}, kProgramNameMax),
                           hello.getProtocolVersion(),
                           hello.getProtocolVersion() < schema::PROTOCOL_VERSION
                               ? "latter, which is older"
                               : "service, which is older"));
}

kj::Promise<Result<UniqueFd>> TakeDescriptor(schema::Descriptor::Client descriptor,
                                             std::string what) {
  // One that is yet to be resolved may never be, and the call and all that came with it would stay.
  if (capnp::ClientHook::from(capnp::Capability::Client(descriptor))->whenMoreResolved() !=
      nullptr) {
    return Result<UniqueFd>(
        Error(Code::kInvalidArgument, what + ": the capability is a promise of one"));
  }
  auto fd = descriptor.getFd();
  return fd.then(
      [kept = kj::mv(descriptor), what](kj::Maybe<int> found) -> Result<UniqueFd> {
        KJ_IF_MAYBE (number, found) {
          return Duplicate(*number);
        }
        return Error(Code::kInvalidArgument,
                     what +
                         ": no file descriptor came with the message; give the capability one, and "
                         "pass no more at a time than PROTOCOL.md allows");
      },
      [what](const kj::Exception& exception) -> Result<UniqueFd> {
        return Error(Code::kInvalidArgument, what + ": " + CauseOf(exception));
      });
}

}  // namespace headrace::service
