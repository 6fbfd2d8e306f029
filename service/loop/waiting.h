// Calls that wait for another actor: each has a token that goes out with the message and comes back
// with the answer. The thread of one event loop only.
#pragma once

#include <kj/async.h>

#include <cstdint>
#include <map>
#include <utility>

#include "service/actor/messages.h"

namespace headrace::service {

template <typename Answer>
class Waiting {
 public:
  kj::Promise<Answer> Add(RequestToken token) {
    auto pair = kj::newPromiseAndFulfiller<Answer>();
    waiting_.emplace(token, Waiter{kj::mv(pair.fulfiller)});
    return kj::mv(pair.promise);
  }
  // Whether someone still waits for it.
  bool Expects(RequestToken token) {
    const auto found = waiting_.find(token);
    return found != waiting_.end() && found->second.fulfiller->isWaiting();
  }
  void Give(RequestToken token, Answer answer) {
    const auto found = waiting_.find(token);
    if (found == waiting_.end()) return;
    found->second.fulfiller->fulfill(kj::mv(answer));
    waiting_.erase(found);
  }
  void Drop(RequestToken token) { waiting_.erase(token); }

  // How far the work for the answer is, as far as it was said; 0 without it.
  void Advance(RequestToken token, std::uint64_t progress) {
    const auto found = waiting_.find(token);
    if (found != waiting_.end()) found->second.progress = progress;
  }
  std::uint64_t ProgressOf(RequestToken token) const {
    const auto found = waiting_.find(token);
    return found == waiting_.end() ? 0 : found->second.progress;
  }

 private:
  struct Waiter {
    kj::Own<kj::PromiseFulfiller<Answer>> fulfiller;
    std::uint64_t progress = 0;
  };
  std::map<RequestToken, Waiter> waiting_;
};

}  // namespace headrace::service
