// Declarations that the files that implement the C header share. Any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "client/include/headrace/headrace.h"
#include "client/lib/report.h"
#include "client/lib/session.h"
#include "ipc/base/collective.h"

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

// Gives the number of what was posted to the caller, if it asked for it.
inline Status Deliver(const Result<std::uint64_t>& posted, hr_operation* operation) {
  if (!posted) return posted.error();
  if (operation != nullptr) *operation = *posted;
  return {};
}

// What the caller says may be any number; Session checks it.
inline Reduction ReductionOf(hr_reduction reduction) {
  return static_cast<Reduction>(static_cast<std::uint8_t>(reduction));
}

}  // namespace headrace::client
