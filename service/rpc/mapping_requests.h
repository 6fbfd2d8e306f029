// The requests of calls to the mapping actor. The rpc thread only.
#pragma once

#include <kj/async.h>

#include <cstdint>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/result.h"
#include "service/actor/inbox.h"
#include "service/loop/waiting.h"
#include "service/mapping/messages.h"
#include "service/rpc/messages.h"
#include "service/rpc/request_tokens.h"

namespace headrace::service {

class MappingRequests {
 public:
  // Both outlive this.
  MappingRequests(InboxWriter<MappingMessage>& mapping, RequestTokens& tokens)
      : mapping_(mapping), tokens_(tokens) {}

  // Sends MapSegment or MapDeviceSegment and waits for the memory, as long as it takes. `token`
  // becomes its number, for ProgressOf.
  template <typename Request>
  kj::Promise<Result<SegmentMemory>> Map(Request request, RequestToken& token) {
    request.token = token = tokens_.Next();
    if (!mapping_.Send(std::move(request))) return Result<SegmentMemory>(Behind());
    return mapped_.Add(token);
  }
  std::uint64_t ProgressOf(RequestToken token) const { return mapped_.ProgressOf(token); }
  // Unmapping may take long too; without room for the message it happens here.
  void Discard(SegmentMemory memory, std::uint32_t uid) {
    [[maybe_unused]] const bool sent = mapping_.Send(DiscardMemory{std::move(memory), uid});
  }
  // A mapper that is too far behind for it maps in vain.
  void Cancel(SessionId session) {
    [[maybe_unused]] const bool sent = mapping_.Send(CancelMapping{session});
  }

  void Handle(SegmentMapped message) {
    HR_CHECK(tokens_.WasUsed(message.token), message.token);
    if (mapped_.Expects(message.token)) {
      mapped_.Fulfill(message.token, std::move(message.memory));
    } else if (message.memory) {
      // Its connection ended while it was mapped.
      Discard(std::move(message.memory).value(), message.uid);
    }
  }
  void Handle(const SegmentProgress& message) { mapped_.Advance(message.token, message.bytes); }

 private:
  InboxWriter<MappingMessage>& mapping_;
  RequestTokens& tokens_;
  Waiting<Result<SegmentMemory>> mapped_;
};

}  // namespace headrace::service
