#include "service/accounts/leases.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/support/recording.h"

namespace headrace::service {
namespace {

class LeasesTest : public testing::Test {
 protected:
  Result<SessionIdentity> Open(std::uint32_t rank) {
    SessionIdentity request;
    request.job_name = "train";
    request.rank = rank;
    request.world_size = 2;
    request.pid = static_cast<std::int32_t>(100 + rank);
    ipc::Channel::Created channel = ipc::Channel::Create().value();
    return leases_.Open(request, std::move(channel.channel), UniqueFd());
  }

  support::RecordingInbox<DispatchMessage> dispatch_;
  support::RecordingInbox<WatchMessage> watch_;
  Leases leases_{dispatch_, watch_};
};

TEST_F(LeasesTest, OpensTheSessionInDispatch) {
  const Result<SessionIdentity> identity = Open(0);
  ASSERT_TRUE(identity.ok());
  const auto opened = dispatch_.Of<OpenSession>();
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_EQ(opened[0]->session->identity().id, identity->id);
  EXPECT_EQ(opened[0]->session->identity().job, identity->job);
  EXPECT_TRUE(leases_.Check(identity->id).ok());
  ASSERT_EQ(watch_.Of<Event>().size(), 1U);
  EXPECT_TEXT(watch_.Of<Event>()[0]->text, "rank 0", "pid 100", "uid 0", "job train");
}

TEST_F(LeasesTest, EndsALeaseOnceWithTheFirstCause) {
  const SessionId id = Open(0)->id;
  leases_.End(id, false, Code::kPeerLost, "exited or was killed");
  leases_.End(id, true, Code::kUnavailable, "left the job");
  const auto closed = dispatch_.Of<CloseSession>();
  ASSERT_EQ(closed.size(), 1U);
  EXPECT_FALSE(closed[0]->orderly);
  EXPECT_TEXT(closed[0]->cause);
  const Status status = leases_.Check(id);
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_TEXT(status.error().text());
}

TEST_F(LeasesTest, LeavesNothingWhenDispatchHasNoRoomForASession) {
  dispatch_.full = true;
  EXPECT_EQ(Open(0).error().code(), Code::kBusy);
  EXPECT_EQ(leases_.open_count(), 0U);
  dispatch_.full = false;
  EXPECT_TRUE(Open(0).ok());
}

TEST_F(LeasesTest, KeepsARankUntilDispatchKnowsThatItIsGone) {
  int notices = 0;
  leases_.OnUnsent([&notices] { ++notices; });
  const SessionId id = Open(0)->id;
  dispatch_.full = true;
  leases_.End(id, true, Code::kUnavailable, "left the job");
  EXPECT_EQ(notices, 1);
  EXPECT_FALSE(leases_.Flush());
  dispatch_.full = false;
  EXPECT_EQ(Open(0).error().code(), Code::kAlreadyExists);
  EXPECT_TRUE(leases_.Flush());
  ASSERT_EQ(dispatch_.Of<CloseSession>().size(), 1U);
  EXPECT_TRUE(Open(0).ok());
}

TEST_F(LeasesTest, TellsDispatchOfEndsInTheirOrder) {
  const SessionId first = Open(0)->id;
  const SessionId second = Open(1)->id;
  dispatch_.full = true;
  leases_.End(second, false, Code::kPeerLost, "exited or was killed");
  dispatch_.full = false;
  leases_.End(first, false, Code::kPeerLost, "closed its connection");
  const auto closed = dispatch_.Of<CloseSession>();
  ASSERT_EQ(closed.size(), 2U);
  EXPECT_EQ(closed[0]->session, second);
  EXPECT_EQ(closed[1]->session, first);
}

TEST_F(LeasesTest, FindsWhatElseAProcessIsInAsFarAsTheKernelKnowsIt) {
  const auto open = [this](const char* job, std::uint32_t rank, std::int32_t pid, bool is_known,
                           std::uint32_t uid = 0) {
    SessionIdentity request;
    request.job_name = job;
    request.rank = rank;
    request.world_size = 4;
    request.pid = pid;
    request.pid_is_known = is_known;
    request.uid = uid;
    ipc::Channel::Created channel = ipc::Channel::Create().value();
    return leases_.Open(request, std::move(channel.channel), UniqueFd()).value();
  };
  const SessionIdentity own = open("train", 0, 7, true);
  open("train", 1, 7, true);
  const SessionIdentity group = open("group", 0, 7, true);
  const SessionIdentity said = open("group", 1, 7, false);
  open("group", 2, 8, true);
  open("others", 0, 7, true, 1000);
  const SessionIdentity left = open("past", 0, 7, true);
  leases_.End(left.id, true, Code::kUnavailable, "left the job");
  EXPECT_EQ(leases_.OtherJobsOf(own), (std::vector<SessionId>{group.id}));
  EXPECT_TRUE(leases_.OtherJobsOf(said).empty());
}

TEST_F(LeasesTest, EndsAllThatAreOpen) {
  const SessionId first = Open(0)->id;
  const SessionId second = Open(1)->id;
  leases_.End(first, false, Code::kPeerLost, "exited or was killed");
  leases_.EndAll(Code::kUnavailable, "ended: the service is stopping");
  EXPECT_EQ(dispatch_.Of<CloseSession>().size(), 2U);
  EXPECT_EQ(leases_.Check(first).code(), Code::kPeerLost);
  EXPECT_EQ(leases_.Check(second).code(), Code::kUnavailable);
  EXPECT_EQ(leases_.open_count(), 0U);
}

TEST_F(LeasesTest, GoesOnWhenNobodyReadsItsEvents) {
  watch_.full = true;
  EXPECT_TRUE(Open(0).ok());
}

TEST_F(LeasesTest, GivesNoticeOfSeatsAndOfEndsBeforeDispatchHearsOfThem) {
  std::vector<std::string> notices;
  leases_.OnOpened([&notices](const SessionIdentity& identity) {
    notices.push_back("opened " + std::to_string(identity.rank));
  });
  leases_.OnEnded([&](const SessionIdentity& identity, const CloseSession& close) {
    EXPECT_EQ(dispatch_.Of<CloseSession>().size(), identity.rank);
    notices.push_back((close.orderly ? "left " : "lost ") + std::to_string(identity.rank) + ": " +
                      close.cause);
  });
  const SessionId leaves = Open(0)->id;
  const SessionId dies = Open(1)->id;
  leases_.End(leaves, true, Code::kUnavailable, "left the job");
  leases_.End(dies, false, Code::kPeerLost, "was killed");
  leases_.End(dies, false, Code::kPeerLost, "again");
  EXPECT_EQ(notices, (std::vector<std::string>{"opened 0", "opened 1", "left 0: left the job",
                                               "lost 1: was killed"}));
}

TEST_F(LeasesTest, SaysOnceThatAJobHasFailedElsewhere) {
  const JobId job = Open(0)->job;
  leases_.FailJob(job, Code::kPeerLost, "node b does not answer for 3.0 s");
  leases_.FailJob(job, Code::kPeerLost, "later");
  ASSERT_EQ(watch_.Of<Event>().size(), 2U);
  EXPECT_TEXT(watch_.Of<Event>()[1]->text, "job train", "node b");
  EXPECT_EQ(watch_.Of<Event>()[1]->uid, watch_.Of<Event>()[0]->uid)
      << "it counts among its owner's";
  EXPECT_TRUE(watch_.Of<Event>()[1]->uid.has_value());
  EXPECT_FALSE(Open(1).ok());
}

}  // namespace
}  // namespace headrace::service
