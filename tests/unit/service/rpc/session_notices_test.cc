// What sessions are told while their clients wait for it.
#include <gtest/gtest.h>
#include <kj/async.h>

#include <string>

#include "service/rpc/session_notices.h"

namespace headrace::service {
namespace {

using Kind = SessionNotice::Kind;

struct NoticesStand {
  kj::EventLoop loop;
  kj::WaitScope scope{loop};
  SessionNotices notices;
};

TEST(SessionNotices, AreTheAnswerToTheQuestionThatIsOpen) {
  NoticesStand stand;
  kj::Promise<SessionNotice> asked = stand.notices.Next(SessionId{1});
  kj::Promise<SessionNotice> other = stand.notices.Next(SessionId{2});
  EXPECT_FALSE(asked.poll(stand.scope));
  stand.notices.Send(SessionId{1}, {.kind = Kind::kEnded, .text = "evicted"});
  ASSERT_TRUE(asked.poll(stand.scope));
  const SessionNotice notice = asked.wait(stand.scope);
  EXPECT_EQ(notice.kind, Kind::kEnded);
  EXPECT_EQ(notice.text, "evicted");
  EXPECT_FALSE(other.poll(stand.scope));
}

TEST(SessionNotices, WaitForTheNextQuestionOneOfEachKind) {
  NoticesStand stand;
  stand.notices.Next(SessionId{1}).then([](SessionNotice) {}).detach([](kj::Exception&&) {});
  stand.notices.Send(SessionId{1}, {.kind = Kind::kMembersWait, .text = "first"});
  stand.notices.Send(SessionId{1}, {.kind = Kind::kMembersWait, .text = "second"});
  stand.notices.Send(SessionId{1}, {.kind = Kind::kMembersWait, .text = "third"});
  stand.notices.Send(SessionId{1}, {.kind = Kind::kEnded, .text = "over"});
  EXPECT_EQ(stand.notices.Next(SessionId{1}).wait(stand.scope).text, "over");
  EXPECT_EQ(stand.notices.Next(SessionId{1}).wait(stand.scope).text, "third");
  EXPECT_FALSE(stand.notices.Next(SessionId{1}).poll(stand.scope));
}

TEST(SessionNotices, AreKeptForAClientThatIsAboutToAsk) {
  NoticesStand stand;
  stand.notices.Expect(SessionId{1});
  stand.notices.Send(SessionId{1}, {.kind = Kind::kPlaces, .text = "a a:1\n"});
  EXPECT_EQ(stand.notices.Next(SessionId{1}).wait(stand.scope).text, "a a:1\n");
}

TEST(SessionNotices, AreKeptForNobodyWhoIsNotThere) {
  NoticesStand stand;
  stand.notices.Send(SessionId{1}, {.kind = Kind::kEnded, .text = "over"});
  EXPECT_FALSE(stand.notices.Next(SessionId{1}).poll(stand.scope));
  stand.notices.Forget(SessionId{1});
  EXPECT_FALSE(stand.notices.Next(SessionId{1}).poll(stand.scope));
}

}  // namespace
}  // namespace headrace::service
