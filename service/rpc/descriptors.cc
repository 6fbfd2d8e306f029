#include "service/rpc/descriptors.h"

#include <capnp/capability.h>
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "service/loop/text.h"

namespace headrace::service {

kj::Promise<Result<UniqueFd>> CopyDescriptor(schema::Descriptor::Client descriptor,
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

kj::Promise<Result<std::vector<UniqueFd>>> CopyDescriptors(
    capnp::List<schema::Descriptor>::Reader pieces) {
  auto each = kj::heapArrayBuilder<kj::Promise<Result<UniqueFd>>>(pieces.size());
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    each.add(CopyDescriptor(pieces[i], fmt::format("piece {}", i)));
  }
  return kj::joinPromises(each.finish())
      .then([](kj::Array<Result<UniqueFd>> taken) -> Result<std::vector<UniqueFd>> {
        std::vector<UniqueFd> fds;
        fds.reserve(taken.size());
        for (Result<UniqueFd>& fd : taken) {
          if (!fd) return fd.error();
          fds.push_back(std::move(fd).value());
        }
        return fds;
      });
}

}  // namespace headrace::service
