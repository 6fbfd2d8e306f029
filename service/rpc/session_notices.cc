#include "service/rpc/session_notices.h"

#include <utility>

namespace headrace::service {

kj::Promise<SessionNotice> SessionNotices::Next(SessionId session) {
  Session& known = sessions_[session];
  if (!known.waiting.empty()) {
    SessionNotice notice = std::move(known.waiting.begin()->second);
    known.waiting.erase(known.waiting.begin());
    return notice;
  }
  auto pair = kj::newPromiseAndFulfiller<SessionNotice>();
  known.question = kj::mv(pair.fulfiller);
  return kj::mv(pair.promise);
}

void SessionNotices::Send(SessionId session, SessionNotice notice) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  KJ_IF_MAYBE (question, found->second.question) {
    if ((*question)->isWaiting()) {
      (*question)->fulfill(kj::mv(notice));
      found->second.question = nullptr;
      return;
    }
  }
  found->second.waiting.insert_or_assign(notice.kind, std::move(notice));
}

}  // namespace headrace::service
