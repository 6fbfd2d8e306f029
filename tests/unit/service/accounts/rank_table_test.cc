#include "service/accounts/rank_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ipc/board_layout.h"
#include "tests/support/expect_text.h"

namespace headrace::service {
namespace {

JoinRequest Rank(std::uint32_t rank, std::uint64_t session) {
  return {.job = "train",
          .rank = rank,
          .world_size = 3,
          .uid = 1000,
          .pid = static_cast<std::int32_t>(500 + session),
          .session = SessionId{session}};
}

void ExpectRefused(const Result<RankSlot>& answer, Code code,
                   std::initializer_list<std::string> parts) {
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), code);
  for (const std::string& part : parts) {
    EXPECT_NE(answer.error().text().find(part), std::string::npos) << answer.error().text();
  }
}

TEST(RankTable, SeatsTheRanksOfAJobTogether) {
  RankTable table;
  const Result<RankSlot> first = table.Join(Rank(0, 1));
  const Result<RankSlot> second = table.Join(Rank(1, 2));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->job, second->job);
  EXPECT_EQ(table.jobs_count(), 1U);
  EXPECT_EQ(table.ranks_count(), 2U);
}

TEST(RankTable, RefusesToGoOnAfterARanksProcessDied) {
  RankTable table;
  ASSERT_TRUE(table.Join(Rank(0, 1)).ok() && table.Join(Rank(1, 2)).ok());
  table.Depart(SessionId{2}, false, "exited or was killed", /*exited=*/true);
  JoinRequest again = Rank(0, 3);
  again.after_epoch = 1;
  ExpectRefused(table.Join(again), Code::kMismatch,
                {"rank 1 (pid 502) exited or was killed", "start them again"});
  table.Depart(SessionId{1}, false, "closed its connection");
  ExpectRefused(table.Join(again), Code::kMismatch, {"rank 1 (pid 502)"});
  again.uid = 7;
  EXPECT_TRUE(table.Join(again).ok()) << "another user's job of that name";
  table.Withdraw(SessionId{3});
  again.uid = Rank(0, 3).uid;
  again.members_hash = 5;
  ExpectRefused(table.Join(again), Code::kPeerLost, {"rank 1 (pid 502)", "ask again"});
  ASSERT_TRUE(table.Join(Rank(0, 4)).ok()) << "a job that begins anew";
  table.Depart(SessionId{4}, false, "closed its connection");
  again = Rank(0, 5);
  again.after_epoch = 1;
  EXPECT_TRUE(table.Join(again).ok()) << "what its last epoch lost was a connection";
}

TEST(RankTable, GoesOnInAnEpochThatNoneOfTheRanksWasIn) {
  RankTable table;
  JoinRequest zero = Rank(0, 1);
  zero.after_epoch = 1;
  JoinRequest one = Rank(1, 2);
  one.after_epoch = 4;  // it also came to a service that was gone before rank 0 did
  JoinRequest two = Rank(2, 3);
  two.after_epoch = 1;
  EXPECT_EQ(table.Join(zero)->epoch, 2U);
  EXPECT_EQ(table.Join(one)->epoch, 5U);
  EXPECT_EQ(table.Join(two)->epoch, 5U);
}

// What its service then says of the job to others is an epoch for them, too.
TEST(RankTable, RefusesARankAfterTheLastEpochButOne) {
  RankTable table;
  JoinRequest last = Rank(0, 1);
  last.after_epoch = kEpochMax - 1;
  ExpectRefused(table.Join(last), Code::kInvalidArgument, {"2147483647", "2147483646"});
  last.after_epoch = kEpochMax - 2;
  const auto joined = table.Join(last);
  ASSERT_TRUE(joined.ok());
  EXPECT_LT(joined->epoch, kEpochMax);
}

TEST(RankTable, NeverMixesRanksThatGoOnWithRanksThatBegin) {
  RankTable table;
  JoinRequest again = Rank(1, 2);
  again.after_epoch = 1;
  ASSERT_TRUE(table.Join(Rank(0, 1)).ok());
  ExpectRefused(table.Join(again), Code::kMismatch,
                {"rank 1 (pid 502) goes on", "rank 0 (pid 501) begins", "begin anew"});
  table.Depart(SessionId{1}, true, "left the job");
  ASSERT_TRUE(table.Join(again).ok());
  ExpectRefused(table.Join(Rank(0, 3)), Code::kMismatch, {"rank 0 (pid 503) begins", "goes on"});
}

TEST(RankTable, RefusesEpochsThatNobodyCanHaveSeen) {
  RankTable table;
  JoinRequest request = Rank(0, 1);
  request.after_epoch = UINT32_MAX;
  ExpectRefused(table.Join(request), Code::kInvalidArgument, {"4294967295"});
}

TEST(RankTable, RefusesNamesThatWouldNotFitATable) {
  RankTable table;
  JoinRequest request = Rank(0, 1);
  request.job = "";
  ExpectRefused(table.Join(request), Code::kInvalidArgument, {"0 bytes", "1 to 63"});
  request.job = std::string(64, 'a');
  ExpectRefused(table.Join(request), Code::kInvalidArgument, {"64 bytes"});
  request.job = "my job";
  ExpectRefused(table.Join(request), Code::kInvalidArgument, {"0x20", "at 2"});
  request.job = "caf\xc3\xa9";
  ExpectRefused(table.Join(request), Code::kInvalidArgument, {"0xc3"});
  EXPECT_EQ(table.jobs_count(), 0U);
}

TEST(RankTable, RefusesRanksOutsideOfTheWorld) {
  RankTable table;
  ExpectRefused(table.Join(Rank(3, 1)), Code::kInvalidArgument, {"rank 3", "world of 3", "0 to 2"});
  JoinRequest request = Rank(0, 1);
  request.world_size = 65;
  ExpectRefused(table.Join(request), Code::kInvalidArgument, {"world size 65", "1 to 64"});
  request.world_size = 0;
  ExpectRefused(table.Join(request), Code::kInvalidArgument, {"world size 0"});
  request.world_size = 64;
  EXPECT_TRUE(table.Join(request).ok());
}

TEST(RankTable, NamesBothWorldSizes) {
  RankTable table;
  ASSERT_TRUE(table.Join(Rank(0, 1)).ok());
  JoinRequest other = Rank(1, 2);
  other.world_size = 4;
  ExpectRefused(table.Join(other), Code::kMismatch,
                {"rank 1 (pid 502)", "has 4 ranks", "rank 0 (pid 501) said 3"});
}

TEST(RankTable, NamesThePidThatHoldsARank) {
  RankTable table;
  ASSERT_TRUE(table.Join(Rank(0, 1)).ok());
  ExpectRefused(table.Join(Rank(0, 2)), Code::kAlreadyExists, {"rank 0", "pid 501", "pid 502"});
}

TEST(RankTable, JobsOfTwoUsersAreApartWhateverTheirNames) {
  RankTable table;
  const Result<RankSlot> own = table.Join(Rank(0, 1));
  JoinRequest other = Rank(0, 2);
  other.uid = 1001;
  other.world_size = 1;
  other.rendezvous = "10.0.0.1:7733";
  const Result<RankSlot> others = table.Join(other);
  ASSERT_TRUE(own.ok() && others.ok());
  EXPECT_NE(own->job, others->job);
  EXPECT_EQ(table.Join(Rank(1, 3))->job, own->job);
  EXPECT_EQ(table.ShareOf(1000).ranks, 2U);
  EXPECT_EQ(table.ShareOf(1001).jobs, 1U);
  EXPECT_EQ(table.FailJob(others->job, "it was cancelled"), RankTable::JobKey("train", 1001U));
  EXPECT_TRUE(table.Join(Rank(2, 4)).ok()) << "one's failure is not the other's";
  table.Depart(SessionId{2}, false, "exited or was killed", /*exited=*/true);
  EXPECT_EQ(table.jobs_count(), 1U);
  EXPECT_EQ(table.ranks_count(), 3U);
}

TEST(RankTable, ARankGoesOnThoughAnotherUserHoldsTheNameOfItsJob) {
  RankTable table;
  JoinRequest squatter = Rank(0, 1);
  squatter.uid = 65534;
  squatter.world_size = 1;
  ASSERT_TRUE(table.Join(squatter).ok());
  JoinRequest again = Rank(0, 2);
  again.after_epoch = 4;
  const Result<RankSlot> slot = table.Join(again);
  ASSERT_TRUE(slot.ok()) << slot.error().text();
  EXPECT_EQ(slot->epoch, 5U);
}

TEST(RankTable, AnotherUsersJobDoesNotHideThatAProcessWasLost) {
  RankTable table;
  ASSERT_TRUE(table.Join(Rank(0, 1)).ok() && table.Join(Rank(1, 2)).ok());
  table.Depart(SessionId{2}, false, "exited or was killed", /*exited=*/true);
  table.Depart(SessionId{1}, false, "closed its connection");
  // It begins a job of that name, and loses more jobs than are remembered.
  for (std::uint64_t session = 10; session < 10 + 2 * LostEpochs::kMax; ++session) {
    JoinRequest other = Rank(0, session);
    if (session > 10) other.job += std::to_string(session);
    other.uid = 65534;
    ASSERT_TRUE(table.Join(other).ok());
    table.Depart(SessionId{session}, false, "exited or was killed", /*exited=*/true);
  }
  JoinRequest again = Rank(0, 3);
  again.after_epoch = 1;
  ExpectRefused(table.Join(again), Code::kMismatch, {"rank 1 (pid 502)", "start them again"});
}

TEST(RankTable, RefusesAFailedJobUntilAllItsRanksAreGone) {
  RankTable table;
  ASSERT_TRUE(table.Join(Rank(0, 1)).ok());
  ASSERT_TRUE(table.Join(Rank(1, 2)).ok());
  table.Depart(SessionId{1}, false, "exited or was killed");
  table.Depart(SessionId{77}, false, "was never here");
  ExpectRefused(table.Join(Rank(0, 3)), Code::kPeerLost,
                {"rank 0 (pid 501) exited or was killed", "rank 1 (pid 502)"});
  table.Depart(SessionId{2}, false, "closed its connection");
  EXPECT_EQ(table.jobs_count(), 0U);
  EXPECT_TRUE(table.Join(Rank(0, 4)).ok());
}

TEST(RankTable, KeepsTheFirstCauseOfAFailure) {
  RankTable table;
  for (std::uint32_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(table.Join(Rank(rank, rank + 1)).ok());
  table.Depart(SessionId{2}, false, "exited or was killed");
  table.Depart(SessionId{1}, false, "closed its connection");
  ExpectRefused(table.Join(Rank(0, 9)), Code::kPeerLost, {"rank 1 (pid 502) exited"});
}

TEST(RankTable, DoesNotTakeARankBackWhileOthersRemain) {
  RankTable table;
  ASSERT_TRUE(table.Join(Rank(0, 1)).ok());
  ASSERT_TRUE(table.Join(Rank(1, 2)).ok());
  table.Depart(SessionId{1}, true, "left the job");
  ExpectRefused(table.Join(Rank(0, 3)), Code::kAlreadyExists,
                {"rank 0", "has left", "pid 501", "rank 1 (pid 502)", "pid 503"});
  EXPECT_TRUE(table.Join(Rank(2, 4)).ok());
}

TEST(RankTable, GivesAJobThatBeginsAgainANewId) {
  RankTable table;
  const Result<RankSlot> first = table.Join(Rank(0, 1));
  table.Depart(SessionId{1}, true, "left the job");
  const Result<RankSlot> second = table.Join(Rank(0, 2));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->job, second->job);
}

TEST(RankTable, ForgetsARankThatWasWithdrawn) {
  RankTable table;
  ASSERT_TRUE(table.Join(Rank(0, 1)).ok());
  ASSERT_TRUE(table.Join(Rank(1, 2)).ok());
  table.Withdraw(SessionId{2});
  EXPECT_TRUE(table.Join(Rank(1, 3)).ok());
  table.Withdraw(SessionId{1});
  table.Withdraw(SessionId{3});
  EXPECT_EQ(table.jobs_count(), 0U);
  EXPECT_EQ(table.ranks_count(), 0U);
}

TEST(RankTable, HasNoMoreJobsThanTheBoardHasRows) {
  RankTable table;
  for (std::uint64_t i = 0; i < ipc::kJobRowsMax; ++i) {
    JoinRequest request = Rank(0, i + 1);
    request.job = "job" + std::to_string(i);
    ASSERT_TRUE(table.Join(request).ok());
  }
  ExpectRefused(table.Join(Rank(0, 1000)), Code::kExhausted, {"64 jobs"});
  EXPECT_EQ(table.jobs_count(), ipc::kJobRowsMax);
}

TEST(RankTable, HasNoMoreRanksThanTheBoardHasRows) {
  RankTable table;
  std::uint64_t session = 0;
  for (int job = 0; job < 8; ++job) {
    for (std::uint32_t rank = 0; rank < 64; ++rank) {
      JoinRequest request = Rank(rank, ++session);
      request.job = "job" + std::to_string(job);
      request.world_size = 64;
      ASSERT_TRUE(table.Join(request).ok());
    }
  }
  ExpectRefused(table.Join(Rank(0, 1000)), Code::kExhausted, {"512 ranks"});
}

// A job of one rank, of that uid.
JoinRequest JobOf(std::uint32_t uid, std::uint64_t session) {
  JoinRequest request = Rank(0, session);
  request.job = "job" + std::to_string(session);
  request.world_size = 1;
  request.uid = uid;
  return request;
}

TEST(RankTable, LeavesSeatsForOtherUids) {
  constexpr std::uint32_t kServiceUid = 998;
  RankTable table({.bounded = true, .service_uid = kServiceUid});
  std::uint64_t session = 0;
  std::vector<std::size_t> taken;
  for (std::uint32_t uid = 1001; uid <= 1004; ++uid) {
    std::size_t jobs = 0;
    while (table.Join(JobOf(uid, ++session)).ok()) ++jobs;
    taken.push_back(jobs);
    EXPECT_GT(jobs, 0U) << uid;
  }
  EXPECT_EQ(taken, (std::vector<std::size_t>{28, 14, 7, 4})) << "of 64, 8 of which are kept";
  ExpectRefused(table.Join(JobOf(1001, ++session)), Code::kExhausted,
                {"uid 1001 has 28 of the 64 jobs", "sessions_per_uid"});
  // Root and the service's own user find the rest.
  while (table.jobs_count() < ipc::kJobRowsMax) {
    ASSERT_TRUE(table.Join(JobOf(table.jobs_count() % 2 == 0 ? 0 : kServiceUid, ++session)).ok());
  }
  ExpectRefused(table.Join(JobOf(0, ++session)), Code::kExhausted, {"64 jobs are attached"});
}

TEST(RankTable, SaysHowManyAUidCouldComeTo) {
  RankTable table({.bounded = true});
  std::uint64_t session = 0;
  for (const std::uint32_t uid : {1001U, 1002U, 1003U, 1004U, 1005U, 0U}) {
    const RankTable::Share before = table.ShareOf(uid);
    std::size_t jobs = 0;
    while (table.Join(JobOf(uid, ++session)).ok()) ++jobs;
    EXPECT_EQ(before.jobs, 0U);
    EXPECT_EQ(before.jobs_max, jobs) << uid;
    const RankTable::Share after = table.ShareOf(uid);
    EXPECT_EQ(after.jobs, jobs);
    EXPECT_EQ(after.jobs_max, jobs);
    EXPECT_EQ(after.ranks, jobs);
    EXPECT_GE(after.ranks_max, after.ranks);
  }
  EXPECT_EQ(table.ShareOf(1001).jobs_max, 28U) << "what it has, though others have come since";
}

TEST(RankTable, GivesASeatBackToItsUid) {
  RankTable table({.bounded = true});
  std::vector<SessionId> sessions;
  for (std::uint64_t session = 1; table.Join(JobOf(1001, session)).ok(); ++session) {
    sessions.push_back(SessionId{session});
  }
  for (int round = 0; round < 100; ++round) {
    const std::uint64_t session = 1000 + static_cast<std::uint64_t>(round);
    EXPECT_FALSE(table.Join(JobOf(1001, session)).ok());
    if (round % 2 == 0) {
      table.Depart(sessions.back(), round % 4 == 0, "exited");
    } else {
      table.Withdraw(sessions.back());
    }
    ASSERT_TRUE(table.Join(JobOf(1001, session)).ok());
    sessions.back() = SessionId{session};
  }
}

TEST(RankTable, LeavesRanksForOtherUids) {
  RankTable table({.bounded = true});
  const auto fill = [&table](std::uint32_t uid) {
    std::size_t ranks = 0;
    for (std::uint32_t i = 0; i < 512; ++i) {
      JoinRequest request = Rank(i % 64, uid * 1000 + i);
      request.job = std::to_string(uid) + "/" + std::to_string(i / 64);
      request.world_size = 64;
      request.uid = uid;
      if (table.Join(request).ok()) ++ranks;
    }
    return ranks;
  };
  EXPECT_EQ(fill(1001), 224U) << "of 512, 64 of which are kept";
  EXPECT_EQ(fill(1002), 112U);
  EXPECT_EQ(fill(0), 176U) << "all that are left";
}

TEST(RankTable, RefusesARankThatMeetsElsewhere) {
  RankTable table;
  JoinRequest request = Rank(0, 1);
  request.rendezvous = "10.0.0.1:7733";
  ASSERT_TRUE(table.Join(request).ok());
  ExpectRefused(table.Join(Rank(1, 2)), Code::kMismatch,
                {"rank 1 (pid 502)", "meets at \"\"", "rank 0 (pid 501) said \"10.0.0.1:7733\""});
}

TEST(RankTable, AJobThatFailedElsewhereTakesNobodyUntilAllAreGone) {
  RankTable table;
  const Result<RankSlot> seat = table.Join(Rank(0, 1));
  ASSERT_TRUE(seat.ok());
  EXPECT_EQ(table.FailJob(seat->job, "rank 2 on node b was killed"),
            RankTable::JobKey("train", 1000U));
  EXPECT_FALSE(table.FailJob(seat->job, "later")) << "the first cause stays";
  EXPECT_FALSE(table.FailJob(JobId{99}, "unknown"));
  ExpectRefused(table.Join(Rank(1, 2)), Code::kPeerLost,
                {"rank 2 on node b was killed", "rank 0 (pid 501)"});
  table.Depart(SessionId{1}, true, "left the job");
  EXPECT_TRUE(table.Join(Rank(1, 3)).ok());
}

}  // namespace
}  // namespace headrace::service
