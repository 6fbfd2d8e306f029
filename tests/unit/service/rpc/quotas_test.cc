// What one uid may have: booked on its sessions, given back with them, whatever way they end.
#include "service/accounts/quotas.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ipc/sealed_memory.h"
#include "service/rpc/user_rows.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::QuotaLimits;
using service::QuotaRefused;
using service::Quotas;

constexpr std::uint64_t kQuotaSegmentSize = 4 * ipc::kPageSize;

void ExpectExhausted(const Status& status, const std::string& part) {
  ASSERT_EQ(status.code(), Code::kExhausted) << part;
  EXPECT_NE(status.error().text().find(part), std::string::npos) << status.error().text();
}

TEST(Quotas, CountSessionsOfEachUidApart) {
  Quotas quotas({.sessions = 2});
  quotas.Open(SessionId{1}, 1000);
  EXPECT_TRUE(quotas.CheckSession(1000).ok());
  quotas.Open(SessionId{2}, 1000);
  ExpectExhausted(quotas.CheckSession(1000),
                  "uid 1000 has 2 sessions on this node and may have 2 (sessions_per_uid)");
  EXPECT_TRUE(quotas.CheckSession(1001).ok());
  quotas.Close(SessionId{1});
  EXPECT_TRUE(quotas.CheckSession(1000).ok());
}

TEST(Quotas, RootIsNotExempt) {
  Quotas quotas({.sessions = 1, .memory = 100});
  quotas.Open(SessionId{1}, 0);
  ExpectExhausted(quotas.CheckSession(0), "uid 0 has 1 sessions");
  ExpectExhausted(quotas.ReserveMemory(SessionId{1}, 101, "a segment"), "(memory_per_uid)");
}

TEST(Quotas, DefaultsHoldForOthersThanRootAndTheServicesUser) {
  Quotas quotas({.memory_of_others = 100, .service_uid = 998});
  quotas.Open(SessionId{1}, 0);
  quotas.Open(SessionId{2}, 998);
  quotas.Open(SessionId{3}, 65534);
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{1}, 1 << 30, "a segment").ok());
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{2}, 1 << 30, "a segment").ok());
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{3}, 100, "a segment").ok());
  ExpectExhausted(quotas.ReserveMemory(SessionId{3}, 1, "a segment"),
                  "it may have 100 (memory_per_uid)");
  // One that the operator has set replaces them.
  Quotas set({.memory = 50, .memory_of_others = 100, .service_uid = 998});
  set.Open(SessionId{1}, 0);
  ExpectExhausted(set.ReserveMemory(SessionId{1}, 51, "a segment"), "it may have 50");
}

TEST(Quotas, MemoryIsTheSumOfAllSessionsOfAUid) {
  Quotas quotas({.memory = 100});
  quotas.Open(SessionId{1}, 1000);
  quotas.Open(SessionId{2}, 1000);
  quotas.Open(SessionId{3}, 1001);
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{1}, 60, "a segment").ok());
  ExpectExhausted(quotas.ReserveMemory(SessionId{2}, 41, "a segment"),
                  "a segment of 41 bytes beside the 60 that uid 1000 has on this node; it may have "
                  "100 (memory_per_uid)");
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{2}, 40, "a segment").ok())
      << "what was refused was not booked";
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{3}, 100, "a segment").ok());
  quotas.ReleaseMemory(SessionId{1}, 10);
  ExpectExhausted(quotas.ReserveMemory(SessionId{2}, 11, "a segment"), "beside the 90");
  quotas.Close(SessionId{1});
  ExpectExhausted(quotas.ReserveMemory(SessionId{2}, 60, "a segment"), "beside the 90");
  EXPECT_EQ(quotas.usages().at(1000).sessions, 1U);
  quotas.Discard(SessionId{1});
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{2}, 60, "a segment").ok());
}

TEST(Quotas, SumsThatWouldOverflowAreRefused) {
  Quotas quotas({.memory = UINT64_MAX - 1});
  quotas.Open(SessionId{1}, 1);
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{1}, UINT64_MAX - 1, "a segment").ok());
  EXPECT_FALSE(quotas.ReserveMemory(SessionId{1}, 1, "a segment").ok());
  EXPECT_FALSE(quotas.ReserveMemory(SessionId{1}, UINT64_MAX, "a segment").ok());
}

TEST(Quotas, SegmentsAreSharedAmongUsersAndNotCountedForRoot) {
  Quotas quotas({.segments_of_others = 2, .segments_of_all_others = 3, .service_uid = 5});
  for (std::uint64_t session = 1; session <= 4; ++session) {
    quotas.Open(SessionId{session}, session == 4 ? 0 : 1000 + static_cast<std::uint32_t>(session));
  }
  EXPECT_TRUE(quotas.ReserveSegment(SessionId{1}, 10).ok());
  EXPECT_TRUE(quotas.ReserveSegment(SessionId{1}, 10).ok());
  ExpectExhausted(quotas.ReserveSegment(SessionId{1}, 10), "uid 1001 has 2 segments");
  EXPECT_TRUE(quotas.ReserveSegment(SessionId{2}, 10).ok());
  ExpectExhausted(quotas.ReserveSegment(SessionId{3}, 10), "all users together have 3 segments");
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(quotas.ReserveSegment(SessionId{4}, 10).ok());
  quotas.ReleaseSegment(SessionId{1}, 10);
  EXPECT_EQ(quotas.usages().at(1001).memory, 10U);
  EXPECT_TRUE(quotas.ReserveSegment(SessionId{3}, 10).ok());
  ExpectExhausted(quotas.ReserveSegment(SessionId{1}, 10), "all users together");
  quotas.Close(SessionId{3});
  ExpectExhausted(quotas.ReserveSegment(SessionId{1}, 10), "all users together");
  quotas.Discard(SessionId{3});
  EXPECT_TRUE(quotas.ReserveSegment(SessionId{1}, 10).ok());
}

// Dispatch lets go first where it finds the end itself.
TEST(Quotas, WhatIsBookedGoesWithTheLaterOfEndAndDiscard) {
  Quotas quotas({.memory = 100});
  quotas.Open(SessionId{1}, 1000);
  EXPECT_TRUE(quotas.ReserveMemory(SessionId{1}, 60, "a segment").ok());
  quotas.Discard(SessionId{1});
  EXPECT_EQ(quotas.usages().at(1000).memory, 60U);
  quotas.Discard(SessionId{1});
  quotas.Close(SessionId{1});
  EXPECT_EQ(quotas.uids_count(), 0U);
  quotas.Close(SessionId{1});
  quotas.Discard(SessionId{1});
}

TEST(Quotas, KeepNothingOfWhoIsGone) {
  Quotas quotas({.sessions = 1, .memory = 10});
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    ASSERT_TRUE(quotas.CheckSession(7).ok());
    quotas.Open(SessionId{i}, 7);
    ASSERT_TRUE(quotas.ReserveMemory(SessionId{i}, 10, "a segment").ok());
    quotas.Close(SessionId{i});
    quotas.Close(SessionId{i});
    quotas.Discard(SessionId{i});
    quotas.ReleaseMemory(SessionId{i}, 10);
  }
  EXPECT_EQ(quotas.uids_count(), 0U);
}

class QuotaCalls : public testing::Test {
 protected:
  // The event loop's destructors may throw, a test's may not.
  ~QuotaCalls() noexcept override {}

  void Begin(StandOptions options) { stand_ = std::make_unique<ControlStand>(std::move(options)); }
  AttachedRank Attach(std::uint32_t rank) {
    return AttachTo(loop_, *stand_, {.rank = rank, .world_size = 8});
  }
  Numbered Register(AttachedRank& rank, std::uint64_t size = kQuotaSegmentSize) {
    return rank.caller->RegisterSegment(rank.attached.session, memory_.fd.get(), size);
  }

  CallerLoop loop_;
  ipc::SealedMemory memory_ = ipc::CreateSealedMemory("segment", kQuotaSegmentSize).value();
  std::unique_ptr<ControlStand> stand_;
};

TEST_F(QuotaCalls, ASessionTooManyIsRefusedUntilAnotherEnds) {
  Begin({.quotas = {.sessions = 2}});
  std::vector<AttachedRank> ranks;
  ranks.push_back(Attach(0));
  ranks.push_back(Attach(1));
  const AttachedRank refused = Attach(2);
  EXPECT_EQ(refused.attached.code, Code::kExhausted);
  EXPECT_VARYING_TEXT(refused.attached.text, "(sessions_per_uid)");
  ASSERT_TRUE(stand_->dispatch().WaitFor<QuotaRefused>(1));
  EXPECT_EQ(Last<QuotaRefused>(stand_->dispatch()).times, 1U);
  // One leaves, one dies.
  ASSERT_EQ(ranks[0].caller->Leave(ranks[0].attached.session).code, Code::kOk);
  ranks.pop_back();
  ASSERT_TRUE(stand_->dispatch().WaitFor<service::CloseSession>(2));
  EXPECT_EQ(AttachTo(loop_, *stand_, {.job = "next", .rank = 0}).attached.code, Code::kOk);
}

TEST_F(QuotaCalls, MemoryComesBackWithASegmentAndWithItsSession) {
  Begin({.quotas = {.memory = kQuotaSegmentSize}});
  AttachedRank first = Attach(0);
  AttachedRank second = Attach(1);
  ASSERT_EQ(Register(first).code, Code::kOk);
  const Numbered refused = Register(second);
  EXPECT_EQ(refused.code, Code::kExhausted);
  EXPECT_VARYING_TEXT(refused.text, "(memory_per_uid)");
  ASSERT_EQ(first.caller->ReleaseSegment(first.attached.session, 0).code, Code::kOk);
  ASSERT_EQ(Register(second).code, Code::kOk);
  EXPECT_EQ(Register(first).code, Code::kExhausted);
  ASSERT_EQ(second.caller->Leave(second.attached.session).code, Code::kOk);
  EXPECT_EQ(Register(first).code, Code::kOk);
  EXPECT_EQ(stand_->dispatch().Count<QuotaRefused>(), 2U);
}

TEST_F(QuotaCalls, MemoryOfARankThatLeftStaysBookedWhileOperationsKeepIt) {
  Begin({.discards = false, .quotas = {.memory = kQuotaSegmentSize}});
  AttachedRank first = Attach(0);
  AttachedRank second = Attach(1);
  ASSERT_EQ(Register(first).code, Code::kOk);
  SessionId session{};
  stand_->dispatch().Visit<service::OpenSession>(0, [&session](const service::OpenSession& opened) {
    session = opened.session->identity().id;
  });
  ASSERT_EQ(first.caller->Leave(first.attached.session).code, Code::kOk);
  EXPECT_EQ(Register(second).code, Code::kExhausted);
  ASSERT_TRUE(stand_->rpc().Send(service::SessionDiscarded{session}));
  EXPECT_EQ(Register(second).code, Code::kOk);
}

TEST_F(QuotaCalls, WhatCouldNotBeMappedIsNotBooked) {
  Begin({.quotas = {.memory = kQuotaSegmentSize}});
  AttachedRank rank = Attach(0);
  const ipc::SealedMemory small = ipc::CreateSealedMemory("small", ipc::kPageSize).value();
  const auto wrong =
      rank.caller->RegisterSegment(rank.attached.session, small.fd.get(), kQuotaSegmentSize);
  EXPECT_NE(wrong.code, Code::kOk);
  EXPECT_NE(wrong.code, Code::kExhausted);
  stand_->mapping().SetFull(true);
  EXPECT_EQ(Register(rank).code, Code::kBusy);
  stand_->mapping().SetFull(false);
  stand_->dispatch().SetFull(true);
  EXPECT_EQ(Register(rank).code, Code::kBusy);
  stand_->dispatch().SetFull(false);
  EXPECT_EQ(Register(rank).code, Code::kOk);
}

TEST_F(QuotaCalls, ASegmentThatIsInUseStaysBooked) {
  Begin({.remove_answer = Error(Code::kBusy, "tensor 0 uses it"),
         .quotas = {.memory = kQuotaSegmentSize}});
  AttachedRank rank = Attach(0);
  ASSERT_EQ(Register(rank).code, Code::kOk);
  EXPECT_EQ(rank.caller->ReleaseSegment(rank.attached.session, 0).code, Code::kBusy);
  EXPECT_EQ(Register(rank).code, Code::kExhausted);
}

TEST_F(QuotaCalls, ManyTensorsWithLongNamesAreBookedUntilTheyAreReleased) {
  Begin({.quotas = {.memory = kQuotaSegmentSize + (1 << 20)}});
  AttachedRank rank = Attach(0);
  ASSERT_EQ(Register(rank).code, Code::kOk);
  service::Tensor named;
  named.count = 1;
  named.name = std::string(255, 'n');
  const auto register_some = [&] {
    return rank.caller->RegisterTensors(rank.attached.session, std::vector(1000, named));
  };
  Numbered last = register_some();
  std::size_t registered = 0;
  for (; last.code == Code::kOk && registered < 10; ++registered) last = register_some();
  EXPECT_EQ(last.code, Code::kExhausted);
  EXPECT_VARYING_TEXT(last.text, "tensors of", "(memory_per_uid)");
  ASSERT_EQ(registered, 2U);
  ASSERT_EQ(rank.caller->ReleaseTensors(rank.attached.session, 1000, 1000).code, Code::kOk);
  EXPECT_EQ(register_some().code, Code::kOk);
}

TEST_F(QuotaCalls, ResidualsThatTheServiceKeepsCountLikeASegment) {
  Begin({.quotas = {.memory = 2 * kQuotaSegmentSize}});
  AttachedRank rank = Attach(0);
  SessionId session{};
  ASSERT_TRUE(stand_->dispatch().WaitFor<service::OpenSession>(1));
  stand_->dispatch().Visit<service::OpenSession>(0, [&session](const service::OpenSession& opened) {
    session = opened.session->identity().id;
  });
  const service::ResidualsAllocated residuals{session, kQuotaSegmentSize};
  ASSERT_TRUE(stand_->rpc().Send(service::ResidualsAllocated{residuals}));
  ASSERT_EQ(Register(rank).code, Code::kOk);
  EXPECT_EQ(Register(rank).code, Code::kExhausted);
  EXPECT_EQ(stand_->dispatch().Count<service::ResidualsRefused>(), 0U);
  ASSERT_TRUE(stand_->rpc().Send(service::ResidualsAllocated{residuals}));
  ASSERT_TRUE(stand_->dispatch().WaitFor<service::ResidualsRefused>(1));
  stand_->dispatch().Visit<service::ResidualsRefused>(
      0, [session](const service::ResidualsRefused& refused) {
        EXPECT_EQ(refused.session, session);
        EXPECT_EQ(refused.code, Code::kExhausted);
        EXPECT_VARYING_TEXT(refused.cause, "residuals of", "(memory_per_uid)");
      });
  ASSERT_TRUE(stand_->rpc().Send(service::ResidualsFreed{session, kQuotaSegmentSize}));
  EXPECT_EQ(Register(rank).code, Code::kOk);
}

TEST_F(QuotaCalls, ScratchMemoryForGpusCountsLikeASegmentAndIsRefusedBeforeItIsMade) {
  Begin({.quotas = {.memory = 2 * kQuotaSegmentSize}});
  AttachedRank rank = Attach(0);
  SessionId session{};
  ASSERT_TRUE(stand_->dispatch().WaitFor<service::OpenSession>(1));
  stand_->dispatch().Visit<service::OpenSession>(0, [&session](const service::OpenSession& opened) {
    session = opened.session->identity().id;
  });
  const service::BookScratch wanted{session, kQuotaSegmentSize,
                                    service::MakeScratch{.job = JobId{7}, .gpu = 1}};
  ASSERT_TRUE(stand_->rpc().Send(service::BookScratch{wanted}));
  ASSERT_TRUE(stand_->dispatch().WaitFor<service::ScratchBooked>(1));
  stand_->dispatch().Visit<service::ScratchBooked>(0, [](const service::ScratchBooked& booked) {
    EXPECT_TRUE(booked.status.ok());
    const auto& request = std::get<service::MakeScratch>(booked.request);
    EXPECT_EQ(request.job, JobId{7});
    EXPECT_EQ(request.gpu, 1);
  });
  ASSERT_EQ(Register(rank).code, Code::kOk);
  EXPECT_EQ(Register(rank).code, Code::kExhausted);
  ASSERT_TRUE(stand_->rpc().Send(service::BookScratch{wanted}));
  ASSERT_TRUE(stand_->dispatch().WaitFor<service::ScratchBooked>(2));
  stand_->dispatch().Visit<service::ScratchBooked>(1, [](const service::ScratchBooked& refused) {
    ASSERT_FALSE(refused.status.ok());
    EXPECT_EQ(refused.status.error().code(), Code::kExhausted);
    EXPECT_VARYING_TEXT(refused.status.error().text(), "scratch memory for GPUs of",
                        "(memory_per_uid)");
  });
}

TEST_F(QuotaCalls, TheBoardShowsWhatAUserHasAndMayHave) {
  Begin({.connections_max = 8, .quotas = {.sessions = 3, .memory = 2 * kQuotaSegmentSize}});
  const auto shows = [this](const std::function<bool(const ipc::UserRow&)>& wanted) {
    for (int look = 0; look < 1000; ++look) {
      if (wanted(stand_->UserRow(::getuid()))) return true;
      loop_.Wait(loop_.io.provider->getTimer().afterDelay(10 * kj::MILLISECONDS));
    }
    return false;
  };
  EXPECT_EQ(stand_->UserRow(::getuid()).in_use, 0U);
  {
    AttachedRank first = Attach(0);
    const AttachedRank second = Attach(1);
    ASSERT_EQ(Register(first).code, Code::kOk);
    EXPECT_TRUE(shows([](const ipc::UserRow& row) {
      return row.connections == 2 && row.sessions == 2 && row.jobs == 1 &&
             row.memory_bytes == kQuotaSegmentSize;
    }));
    const ipc::UserRow row = stand_->UserRow(::getuid());
    EXPECT_EQ(row.connections_max, 6U);
    EXPECT_EQ(row.sessions_max, 3U);
    EXPECT_EQ(row.memory_max, 2 * kQuotaSegmentSize);
    EXPECT_EQ(row.connections_cut, 0U);
    ASSERT_EQ(first.caller->ReleaseSegment(first.attached.session, 0).code, Code::kOk);
    EXPECT_TRUE(shows([](const ipc::UserRow& now) { return now.memory_bytes == 0; }));
  }
  EXPECT_TRUE(shows([](const ipc::UserRow& row) { return row.in_use == 0; }))
      << "nothing is left of who is gone";
}

TEST(UserRows, LeaveOutWhoFindsNoRowUntilThereIsOne) {
  std::array<ipc::BoardSlot<ipc::UserRow>, 2> slots{};
  service::UserRows rows(slots);
  const auto show = [&rows](std::vector<std::uint32_t> uids) {
    rows.Show(std::move(uids), [](ipc::UserRow& row) { row.sessions = row.uid + 1; });
  };
  const auto shown = [&slots] {
    std::map<std::uint32_t, std::uint64_t> sessions;
    for (const auto& slot : slots) {
      const ipc::UserRow row = ipc::ReadRow(slot).value();
      if (row.in_use != 0) sessions[row.uid] = row.sessions;
    }
    return sessions;
  };
  using Shown = std::map<std::uint32_t, std::uint64_t>;
  show({7, 0, 7});
  EXPECT_EQ(shown(), (Shown{{0, 1}, {7, 8}}));
  show({7, 0, 5});
  EXPECT_EQ(shown(), (Shown{{0, 1}, {7, 8}}));
  show({5, 7});
  EXPECT_EQ(shown(), (Shown{{5, 6}, {7, 8}}));
  show({});
  EXPECT_TRUE(shown().empty());
}

}  // namespace
}  // namespace headrace::support
