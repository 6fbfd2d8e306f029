// Numbers of requests that rpc sends, each used once, and how one is refused that cannot be sent.
// The rpc thread only.
#pragma once

#include "ipc/base/error.h"
#include "service/actor/request.h"

namespace headrace::service {

class RequestTokens {
 public:
  RequestToken Next() { return ++last_; }
  // Answers carry none but those.
  bool WasUsed(RequestToken token) const { return token != 0 && token <= last_; }

 private:
  RequestToken last_ = 0;
};

inline Error Behind() {
  return Error(Code::kBusy, "the service is behind with its messages: try again");
}

}  // namespace headrace::service
