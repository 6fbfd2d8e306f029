// Calls that wait for another actor: each has a token that goes out with the message and comes back
// with the answer. The thread of one event loop only.
//
// Whoever waits may outlive this and the event loop: a promise that is dropped takes its token back
// from a table that both keep.
#pragma once

#include <kj/async.h>
#include <kj/refcount.h>

#include <cstdint>
#include <map>
#include <utility>

#include "ipc/base/check.h"
#include "service/actor/request.h"

namespace headrace::service {

template <typename Answer>
class Waiting {
 public:
  kj::Promise<Answer> Add(RequestToken token) {
    auto pair = kj::newPromiseAndFulfiller<Answer>();
    const bool is_new = table_->waiters.emplace(token, Waiter{kj::mv(pair.fulfiller)}).second;
    HR_CHECK(is_new, token);
    return pair.promise.attach(
        kj::defer([table = kj::addRef(*table_), token]() mutable { table->waiters.erase(token); }));
  }
  // Whether someone still waits for it.
  bool Expects(RequestToken token) const { return table_->waiters.contains(token); }
  void Fulfill(RequestToken token, Answer answer) {
    auto found = table_->waiters.extract(token);
    if (!found.empty()) found.mapped().fulfiller->fulfill(kj::mv(answer));
  }

  // How far the work for the answer is, as far as it was said; 0 without it.
  void Advance(RequestToken token, std::uint64_t progress) {
    const auto found = table_->waiters.find(token);
    if (found != table_->waiters.end()) found->second.progress = progress;
  }
  std::uint64_t ProgressOf(RequestToken token) const {
    const auto found = table_->waiters.find(token);
    return found == table_->waiters.end() ? 0 : found->second.progress;
  }

 private:
  struct Waiter {
    kj::Own<kj::PromiseFulfiller<Answer>> fulfiller;
    std::uint64_t progress = 0;
  };
  struct Table : public kj::Refcounted {
    std::map<RequestToken, Waiter> waiters;
  };
  kj::Own<Table> table_ = kj::refcounted<Table>();
};

}  // namespace headrace::service
