// Messages that outlive their job on the sender's node.
#include "service/dispatch/intake/left_messages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "ipc/records.h"
#include "service/dispatch/job/job.h"
#include "tests/support/recording.h"

namespace headrace::support {
namespace {

using service::Away;
using service::Event;
using service::Job;
using service::LeftMessages;
using service::SendNotice;
using service::SendNoticeKind;
using service::SendNotices;

constexpr TimeNs kDeadline = 60 * kSecond;

struct Left {
  // The job is over; rank 0 has sent a message to rank 1 on node 1. What the message is called.
  std::uint64_t End(std::uint32_t job_id, std::uint32_t uid) {
    const auto job = std::make_unique<Job>(
        service::SessionIdentity{
            .id = {}, .job = JobId{job_id}, .job_name = "job", .world_size = 2, .uid = uid},
        0);
    service::Pair& pair = job->pairs().Open(ipc::kSend, {0, 1, 7}, 0);
    pair.away = Away::kGoes;
    pair.node = 1;
    pair.operation.posts.deadline_ns = kDeadline;
    job->pairs().HoldData(pair, 16);
    job->pairs().KeepSent(pair);
    messages.Add(*job);
    return pair.operation.spec.sequence;
  }
  void Report(std::uint32_t job_id, SendNoticeKind kind, std::uint64_t send,
              std::uint32_t node = 1) {
    const SendNotice notice{.kind = kind,
                            .send = send,
                            .source = 0,
                            .target = 1,
                            .code = Code::kPeerLost,
                            .cause = "it has left"};
    messages.Handle(SendNotices{.job = JobId{job_id}, .node = node, .notices = {notice}});
  }

  RecordingInbox<service::WatchMessage> inbox;
  service::Outgoing<service::WatchMessage> watch{inbox};
  LeftMessages messages{watch};
};

TEST(LeftMessages, AreLeftUntilTheirNodeReportsThem) {
  for (const SendNoticeKind kind : {SendNoticeKind::kReceived, SendNoticeKind::kRefused}) {
    Left left;
    EXPECT_FALSE(left.messages.Any(0));
    const std::uint64_t send = left.End(1, 1000);
    EXPECT_TRUE(left.messages.Any(0));
    EXPECT_EQ(left.messages.NextDeadline(), kDeadline);
    left.Report(2, kind, send);
    left.Report(1, kind, send + 1);
    left.Report(1, kind, send, 0);
    left.Report(1, SendNoticeKind::kMayGo, send);
    EXPECT_TRUE(left.messages.Any(0)) << "another job, send, node, or news";
    EXPECT_TRUE(left.inbox.messages.empty());
    left.Report(1, kind, send);
    EXPECT_FALSE(left.messages.Any(0));
    left.Report(1, kind, send);
    EXPECT_EQ(left.inbox.Of<Event>().size(), kind == SendNoticeKind::kRefused ? 1U : 0U);
    EXPECT_EQ(left.messages.NextDeadline(), kNever);
  }
}

TEST(LeftMessages, AreNotWaitedForAfterTheirTimeout) {
  Left left;
  left.End(1, 1000);
  EXPECT_TRUE(left.messages.Any(kDeadline - 1));
  EXPECT_FALSE(left.messages.Any(kDeadline));
}

// A user begins one job after the other, each sends what nobody receives, and ends.
TEST(LeftMessages, AreBoundedForEachUserAndInAll) {
  Left left;
  const std::uint64_t other = left.End(1, 1000);
  std::uint64_t send = 0;
  for (std::uint32_t job = 2; job < 40; ++job) send = left.End(job, 1001);
  for (std::uint32_t job = 2; job < 40; ++job) {
    if (job >= 40 - LeftMessages::kJobsOfUserMax) left.Report(job, SendNoticeKind::kReceived, send);
  }
  EXPECT_TRUE(left.messages.Any(0)) << "that of the other user";
  left.Report(1, SendNoticeKind::kReceived, other);
  EXPECT_FALSE(left.messages.Any(0)) << "the first 30 were forgotten";
  for (std::uint32_t uid = 0; uid <= LeftMessages::kJobsMax; ++uid) send = left.End(uid + 1, uid);
  for (std::uint32_t uid = 1; uid <= LeftMessages::kJobsMax; ++uid) {
    EXPECT_TRUE(left.messages.Any(0));
    left.Report(uid + 1, SendNoticeKind::kReceived, send);
  }
  EXPECT_FALSE(left.messages.Any(0)) << "the first one was forgotten";
}

}  // namespace
}  // namespace headrace::support
