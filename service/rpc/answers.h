// Calls that wait for another actor, by what answers them. The rpc thread only.
#pragma once

#include "service/actor/messages.h"
#include "service/loop/waiting.h"

namespace headrace::service {

struct Answers {
  RequestToken NextToken() { return ++last_token; }

  Waiting<Result<SegmentMemory>> mapped;
  Waiting<Status> removed;
  Waiting<Status> answered;  // by peers
  Waiting<std::vector<PeerView>> listed;
  Waiting<std::vector<PeerStep>> tried;
  Waiting<Pong> pong;
  RequestToken last_token = 0;
};

}  // namespace headrace::service
