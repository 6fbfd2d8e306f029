// Calls that wait for another actor: each has a token that goes out with the message and comes back
// with the answer. Control's thread only.
#pragma once

#include <kj/async.h>

#include <map>
#include <utility>

#include "service/actor/messages.h"

namespace headrace::service {

template <typename Answer>
class Waiting {
 public:
  kj::Promise<Answer> Add(RequestToken token) {
    auto pair = kj::newPromiseAndFulfiller<Answer>();
    waiting_.emplace(token, kj::mv(pair.fulfiller));
    return kj::mv(pair.promise);
  }
  // Whether someone still waits for it.
  bool Expects(RequestToken token) {
    const auto found = waiting_.find(token);
    return found != waiting_.end() && found->second->isWaiting();
  }
  void Give(RequestToken token, Answer answer) {
    const auto found = waiting_.find(token);
    if (found == waiting_.end()) return;
    found->second->fulfill(kj::mv(answer));
    waiting_.erase(found);
  }
  void Drop(RequestToken token) { waiting_.erase(token); }

 private:
  std::map<RequestToken, kj::Own<kj::PromiseFulfiller<Answer>>> waiting_;
};

struct Answers {
  RequestToken NextToken() { return ++last_token; }

  Waiting<Result<SegmentMemory>> mapped;
  Waiting<Status> removed;
  Waiting<Pong> pong;
  RequestToken last_token = 0;
};

}  // namespace headrace::service
