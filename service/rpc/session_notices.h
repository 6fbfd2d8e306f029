// Notices to sessions, for which their clients wait by a call: that the service has ended the
// session, that others wait to join the job, where the job's services are. The rpc thread only.
//
// A client has one such call open; a notice that comes while it has none waits for the next call,
// and only the last of each kind is kept.
#pragma once

#include <kj/async.h>

#include <cstdint>
#include <map>
#include <string>

#include "ipc/base/ids.h"

namespace headrace::service {

struct SessionNotice {
  enum class Kind : std::uint8_t {
    kEnded = 1,        // the session was ended; nothing follows
    kMembersWait = 2,  // others, to join its job
    kPlaces = 3,       // the job runs; where its services are, for the client to keep
  };
  Kind kind = Kind::kEnded;
  std::string text;  // for people; of places PlacesText
};

class SessionNotices {
 public:
  // The session has a client, which is about to ask.
  void Expect(SessionId session) { sessions_[session]; }
  // The session is open, or was; an earlier question of it ends with an exception.
  kj::Promise<SessionNotice> Next(SessionId session);
  // Kept for its next question, unless the session has no client.
  void Send(SessionId session, SessionNotice notice);
  // It has no client any more.
  void Forget(SessionId session) { sessions_.erase(session); }

 private:
  struct Session {
    std::map<SessionNotice::Kind, SessionNotice> waiting;
    kj::Maybe<kj::Own<kj::PromiseFulfiller<SessionNotice>>> question;
  };

  std::map<SessionId, Session> sessions_;
};

}  // namespace headrace::service
