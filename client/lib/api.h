// What the files that implement the C header share.
#pragma once

#include <memory>

#include "client/include/headrace/headrace.h"
#include "client/lib/report.h"
#include "client/lib/session.h"

struct hr_session {
  std::unique_ptr<headrace::client::Session> session;
};

namespace headrace::client {

// Runs `body()` if this process may use the session, and no reconnect is under way.
template <typename Body>
Status InsideOf(Session& session, Body&& body) {
  if (Status status = session.CheckProcess(); !status) return status;
  const CallScope inside(session.call_gate());
  if (!inside) return session.Reconnecting();
  return body();
}

// Runs `body(session)` for a session that may be used here and now.
template <typename Body>
hr_status WithSession(const hr_session* handle, hr_error* error, Body&& body) {
  return Guarded(error, [handle, &body]() -> Status {
    if (handle == nullptr) return Error(Code::kInvalidArgument, "the session is NULL");
    Session& session = *handle->session;
    return InsideOf(session, [&body, &session] { return body(session); });
  });
}

}  // namespace headrace::client
