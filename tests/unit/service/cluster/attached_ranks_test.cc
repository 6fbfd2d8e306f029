// Ranks that go on after a reconnect and ranks that begin, seat by seat.
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "tests/support/expect_text.h"
#include "tests/unit/service/cluster/meeting.h"

namespace headrace::support {
namespace {

using service::JobFormed;
using service::OpenGroup;

// Another job keeps the link up, so that a rank's join goes out the moment it attaches.
class Beside : public testing::Test {
 protected:
  Beside() {
    meeting_.Attach(a_, Meeting::Rank(1, 0, 2, "beside"));
    meeting_.Attach(b_, Meeting::Rank(1, 1, 2, "beside"));
    meeting_.Run();
  }
  static service::SessionIdentity Again(std::uint32_t job, std::uint32_t rank) {
    auto identity = Meeting::Rank(job, rank, 2);
    identity.after_epoch = 1;
    return identity;
  }

  Meeting meeting_;
  MeetingNode& a_ = meeting_.AddNode("a");
  MeetingNode& b_ = meeting_.AddNode("b");
};

TEST_F(Beside, RanksGoOnInEitherOrder) {
  meeting_.Attach(a_, Again(5, 0));
  meeting_.Run();
  meeting_.Attach(b_, Again(9, 1));
  meeting_.Run();
  EXPECT_EQ(a_.Told<JobFormed>().size(), 2U) << a_.waits() << a_.failure();
  EXPECT_EQ(b_.Told<JobFormed>().size(), 2U) << b_.waits() << b_.failure();
  EXPECT_EQ(a_.Told<OpenGroup>().back().options.epoch, b_.Told<OpenGroup>().back().options.epoch);
}

TEST_F(Beside, AFreshRankIsRefusedAtOnceBesideOneThatGoesOn) {
  meeting_.Attach(a_, Again(5, 0));
  meeting_.Run();
  meeting_.Attach(b_, Meeting::Rank(9, 1, 2));
  meeting_.Run();
  EXPECT_TEXT(b_.failure(), "rank 1", "pid 101", "node b", "rank 0", "goes on");
  EXPECT_EQ(b_.Told<service::JobFailed>().back().code, Code::kMismatch);
  EXPECT_EQ(a_.Told<JobFormed>().size(), 1U) << "of the job beside";
  EXPECT_EQ(a_.failure(), b_.failure());
}

TEST_F(Beside, ARankThatGoesOnIsRefusedAtOnceBesideAFreshOne) {
  meeting_.Attach(b_, Meeting::Rank(9, 1, 2));
  meeting_.Run();
  meeting_.Attach(a_, Again(5, 0));
  meeting_.Run();
  EXPECT_TEXT(a_.failure(), "rank 0", "pid 100", "node a", "rank 1", "begins");
  EXPECT_EQ(b_.failure(), a_.failure());
}

TEST_F(Beside, EachSeatIsCheckedAndNotOnlyANodesFirst) {
  meeting_.Attach(a_, Meeting::Rank(5, 0, 3));
  meeting_.Attach(b_, Meeting::Rank(9, 1, 3));
  meeting_.Run();
  meeting_.leader().Handle(
      b_.id, service::ReportRankAttached{.job = 9, .rank = 2, .after_epoch = 1}, meeting_.now());
  meeting_.Run();
  EXPECT_TEXT(b_.failure(), "rank 2", "node b", "begins");
}

}  // namespace
}  // namespace headrace::support
