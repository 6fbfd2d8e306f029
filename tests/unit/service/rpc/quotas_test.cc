// What one uid may have: booked on its sessions, given back with them, whatever way they end.
#include "service/accounts/quotas.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ipc/sealed_memory.h"
#include "tests/unit/service/rpc/cluster.h"

namespace headrace::support {
namespace {

using service::QuotaLimits;
using service::QuotaRefused;
using service::Quotas;

constexpr std::uint64_t kSize = 4 * ipc::kPageSize;

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
  ExpectExhausted(quotas.TakeMemory(SessionId{1}, 101), "(memory_per_uid)");
}

TEST(Quotas, DefaultsHoldForOthersThanRootAndTheServicesUser) {
  Quotas quotas({.memory_of_others = 100, .service_uid = 998});
  quotas.Open(SessionId{1}, 0);
  quotas.Open(SessionId{2}, 998);
  quotas.Open(SessionId{3}, 65534);
  EXPECT_TRUE(quotas.TakeMemory(SessionId{1}, 1 << 30).ok());
  EXPECT_TRUE(quotas.TakeMemory(SessionId{2}, 1 << 30).ok());
  EXPECT_TRUE(quotas.TakeMemory(SessionId{3}, 100).ok());
  ExpectExhausted(quotas.TakeMemory(SessionId{3}, 1), "it may have 100 (memory_per_uid)");
  // One that the operator has set replaces them.
  Quotas set({.memory = 50, .memory_of_others = 100, .service_uid = 998});
  set.Open(SessionId{1}, 0);
  ExpectExhausted(set.TakeMemory(SessionId{1}, 51), "it may have 50");
}

TEST(Quotas, MemoryIsTheSumOfAllSessionsOfAUid) {
  Quotas quotas({.memory = 100});
  quotas.Open(SessionId{1}, 1000);
  quotas.Open(SessionId{2}, 1000);
  quotas.Open(SessionId{3}, 1001);
  EXPECT_TRUE(quotas.TakeMemory(SessionId{1}, 60).ok());
  ExpectExhausted(quotas.TakeMemory(SessionId{2}, 41),
                  "a segment of 41 bytes beside the 60 that uid 1000 has on this node; it may have "
                  "100 (memory_per_uid)");
  EXPECT_TRUE(quotas.TakeMemory(SessionId{2}, 40).ok()) << "what was refused was not booked";
  EXPECT_TRUE(quotas.TakeMemory(SessionId{3}, 100).ok());
  quotas.GiveMemory(SessionId{1}, 10);
  ExpectExhausted(quotas.TakeMemory(SessionId{2}, 11), "beside the 90");
  quotas.Close(SessionId{1});
  EXPECT_TRUE(quotas.TakeMemory(SessionId{2}, 60).ok());
}

TEST(Quotas, SumsThatWouldOverflowAreRefused) {
  Quotas quotas({.memory = UINT64_MAX - 1});
  quotas.Open(SessionId{1}, 1);
  EXPECT_TRUE(quotas.TakeMemory(SessionId{1}, UINT64_MAX - 1).ok());
  EXPECT_FALSE(quotas.TakeMemory(SessionId{1}, 1).ok());
  EXPECT_FALSE(quotas.TakeMemory(SessionId{1}, UINT64_MAX).ok());
}

TEST(Quotas, KeepNothingOfWhoIsGone) {
  Quotas quotas({.sessions = 1, .memory = 10});
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    ASSERT_TRUE(quotas.CheckSession(7).ok());
    quotas.Open(SessionId{i}, 7);
    ASSERT_TRUE(quotas.TakeMemory(SessionId{i}, 10).ok());
    quotas.Close(SessionId{i});
    quotas.Close(SessionId{i});
    quotas.GiveMemory(SessionId{i}, 10);
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
  Numbered Register(AttachedRank& rank, std::uint64_t size = kSize) {
    return rank.caller->RegisterSegment(rank.attached.session, memory_.fd.get(), size);
  }

  CallerLoop loop_;
  ipc::SealedMemory memory_ = ipc::CreateSealedMemory("segment", kSize).value();
  std::unique_ptr<ControlStand> stand_;
};

TEST_F(QuotaCalls, ASessionTooManyIsRefusedUntilAnotherEnds) {
  Begin({.quotas = {.sessions = 2}});
  std::vector<AttachedRank> ranks;
  ranks.push_back(Attach(0));
  ranks.push_back(Attach(1));
  const AttachedRank refused = Attach(2);
  EXPECT_EQ(refused.attached.code, Code::kExhausted);
  EXPECT_NE(refused.attached.text.find("(sessions_per_uid)"), std::string::npos)
      << refused.attached.text;
  ASSERT_TRUE(stand_->dispatch().WaitFor<QuotaRefused>(1));
  EXPECT_EQ(Last<QuotaRefused>(stand_->dispatch()).times, 1U);
  // One leaves, one dies.
  ASSERT_EQ(ranks[0].caller->Leave(ranks[0].attached.session).code, Code::kOk);
  ranks.pop_back();
  ASSERT_TRUE(stand_->dispatch().WaitFor<service::CloseSession>(2));
  EXPECT_EQ(AttachTo(loop_, *stand_, {.job = "next", .rank = 0}).attached.code, Code::kOk);
}

TEST_F(QuotaCalls, MemoryComesBackWithASegmentAndWithItsSession) {
  Begin({.quotas = {.memory = kSize}});
  AttachedRank first = Attach(0);
  AttachedRank second = Attach(1);
  ASSERT_EQ(Register(first).code, Code::kOk);
  const Numbered refused = Register(second);
  EXPECT_EQ(refused.code, Code::kExhausted);
  EXPECT_NE(refused.text.find("(memory_per_uid)"), std::string::npos) << refused.text;
  ASSERT_EQ(first.caller->ReleaseSegment(first.attached.session, 0).code, Code::kOk);
  ASSERT_EQ(Register(second).code, Code::kOk);
  EXPECT_EQ(Register(first).code, Code::kExhausted);
  ASSERT_EQ(second.caller->Leave(second.attached.session).code, Code::kOk);
  EXPECT_EQ(Register(first).code, Code::kOk);
  EXPECT_EQ(stand_->dispatch().Count<QuotaRefused>(), 2U);
}

TEST_F(QuotaCalls, WhatCouldNotBeMappedIsNotBooked) {
  Begin({.quotas = {.memory = kSize}});
  AttachedRank rank = Attach(0);
  const ipc::SealedMemory small = ipc::CreateSealedMemory("small", ipc::kPageSize).value();
  const auto wrong = rank.caller->RegisterSegment(rank.attached.session, small.fd.get(), kSize);
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
  Begin({.remove_answer = Error(Code::kBusy, "tensor 0 uses it"), .quotas = {.memory = kSize}});
  AttachedRank rank = Attach(0);
  ASSERT_EQ(Register(rank).code, Code::kOk);
  EXPECT_EQ(rank.caller->ReleaseSegment(rank.attached.session, 0).code, Code::kBusy);
  EXPECT_EQ(Register(rank).code, Code::kExhausted);
}

}  // namespace
}  // namespace headrace::support
