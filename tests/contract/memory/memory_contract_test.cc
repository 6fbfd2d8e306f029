// What every kind of shared memory promises: writes are seen by the other process, claims are
// checked, and nothing is left behind, whoever ends first and how.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "ipc/base/clock.h"
#include "tests/contract/memory/peer.h"
#include "tests/contract/memory/subject.h"

namespace headrace::memory_contract {
namespace {

constexpr std::uint64_t kSize = std::uint64_t{4} << 20;
constexpr int kLosses = 8;  // of a process, each of which could leave kSize behind

std::string TextOf(const Status& status) { return status.ok() ? "ok" : status.error().text(); }

class MemoryContract : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    // A machine of its own, so that what other tests hold of theirs is not counted.
    ::setenv("HEADRACE_CUDA_DOUBLE_MACHINE", ("contract" + std::to_string(::getpid())).c_str(), 1);
    auto made = MakeSubject(GetParam());
    if (!made) GTEST_SKIP() << made.error().text();
    subject_ = std::move(*made);
  }
  void TearDown() override {
    subject_ = nullptr;
    ::unsetenv("HEADRACE_CUDA_DOUBLE_MACHINE");
  }

  struct Taken {
    std::vector<std::uint64_t> held;
    std::uint64_t on_card = 0;
  };
  Taken TakenNow() { return {subject_->Held(), subject_->TakenOnCard()}; }

  // Memory of this process that `peer` has imported. Null: it could not be, and that is told as a
  // failure; the test returns.
  std::unique_ptr<Reachable> ShareWith(Peer& peer) {
    auto memory = subject_->Allocate(kSize);
    if (!memory) return Failed("allocate", memory.error());
    const auto grant = (*memory)->Grant();
    if (!grant) return Failed("grant", grant.error());
    if (const Status imported = peer.Import(*grant); !imported) {
      return Failed("import", imported.error());
    }
    return std::move(*memory);
  }

  std::unique_ptr<Subject> subject_;

  // After something was done `times` times that would leave kSize behind each time, if anything. A
  // driver may take a while to give back what a process had that was killed, so this waits.
  void ExpectNothingLeft(const Taken& before, std::uint64_t times) {
    EXPECT_EQ(subject_->Held(), before.held);
    const std::uint64_t most = before.on_card + times * kSize / 2;
    const TimeNs deadline = MonotonicNow() + 10 * kSecond;
    while (subject_->TakenOnCard() > most && MonotonicNow() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_LE(subject_->TakenOnCard(), most) << before.on_card << " bytes were taken before";
  }

 private:
  static std::unique_ptr<Reachable> Failed(const char* step, const Error& error) {
    ADD_FAILURE() << step << ": " << error.text();
    return nullptr;
  }
};

TEST_P(MemoryContract, BothSidesSeeWhatTheOtherWrote) {
  Peer peer(GetParam());
  const auto memory = ShareWith(peer);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(TextOf(FillWithPattern(*memory, 1)), "ok");
  EXPECT_EQ(TextOf(peer.Matches(1)), "ok");
  EXPECT_EQ(peer.Matches(2).code(), Code::kMismatch);
  EXPECT_EQ(TextOf(peer.Fill(3)), "ok");
  EXPECT_EQ(TextOf(MatchesPattern(*memory, 3)), "ok");
}

TEST_P(MemoryContract, MayBeImportedFromTheProcessThatIsAsked) {
  Peer peer(GetParam());
  auto grant = peer.Allocate(kSize);
  ASSERT_TRUE(grant.ok()) << grant.error().text();
  EXPECT_EQ(TextOf(peer.Fill(4)), "ok");
  auto imported = subject_->Import(std::move(*grant));
  ASSERT_TRUE(imported.ok()) << imported.error().text();
  EXPECT_EQ(TextOf(MatchesPattern(**imported, 4)), "ok");
}

TEST_P(MemoryContract, RefusesAClaimOfMoreThanThereIs) {
  Peer peer(GetParam());
  auto memory = subject_->Allocate(kSize);
  ASSERT_TRUE(memory.ok()) << memory.error().text();
  auto grant = (*memory)->Grant();
  ASSERT_TRUE(grant.ok()) << grant.error().text();
  grant->handle.size += std::uint64_t{2} << 20;
  if (grant->handle.piece_size != 0) grant->handle.piece_size = grant->handle.size;
  EXPECT_FALSE(peer.Import(*grant).ok());
  EXPECT_EQ(peer.Matches(1).code(), Code::kNotFound) << "the refused import is there";
}

TEST_P(MemoryContract, GivesEverythingBackAThousandTimes) {
  Peer peer(GetParam());
  // Once before: what is made at the first use stays.
  ASSERT_NE(ShareWith(peer), nullptr);
  ASSERT_EQ(TextOf(peer.Release()), "ok");
  const auto before = TakenNow();
  const auto peer_before = peer.Held();
  ASSERT_TRUE(peer_before.ok());
  constexpr int kTimes = 1000;
  for (int i = 0; i < kTimes; ++i) {
    const auto memory = ShareWith(peer);
    ASSERT_NE(memory, nullptr) << "time " << i;
    ASSERT_EQ(TextOf(peer.Release()), "ok") << "time " << i;
  }
  ExpectNothingLeft(before, kTimes);
  const auto peer_after = peer.Held();
  ASSERT_TRUE(peer_after.ok());
  EXPECT_EQ(*peer_after, *peer_before);
}

TEST_P(MemoryContract, StaysForTheImporterWhenTheExporterIsKilled) {
  const auto lose_an_exporter = [&] {
    Peer exporter(GetParam());
    auto grant = exporter.Allocate(kSize);
    ASSERT_TRUE(grant.ok()) << grant.error().text();
    ASSERT_TRUE(exporter.Fill(5).ok());
    auto imported = subject_->Import(std::move(*grant));
    ASSERT_TRUE(imported.ok()) << imported.error().text();
    exporter.Kill();
    EXPECT_EQ(TextOf(MatchesPattern(**imported, 5)), "ok");
    EXPECT_EQ(TextOf(FillWithPattern(**imported, 6)), "ok");
    EXPECT_EQ(TextOf(MatchesPattern(**imported, 6)), "ok");
  };
  ASSERT_NO_FATAL_FAILURE(lose_an_exporter());
  const auto before = TakenNow();
  for (int i = 0; i < kLosses; ++i) ASSERT_NO_FATAL_FAILURE(lose_an_exporter());
  ExpectNothingLeft(before, kLosses);
}

TEST_P(MemoryContract, IsGivenBackWhenTheImporterIsKilled) {
  const auto lose_an_importer = [&] {
    Peer importer(GetParam());
    const auto memory = ShareWith(importer);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(TextOf(importer.Fill(7)), "ok");
    importer.Kill();
    EXPECT_EQ(TextOf(MatchesPattern(*memory, 7)), "ok");
  };
  ASSERT_NO_FATAL_FAILURE(lose_an_importer());
  const auto before = TakenNow();
  for (int i = 0; i < kLosses; ++i) ASSERT_NO_FATAL_FAILURE(lose_an_importer());
  ExpectNothingLeft(before, kLosses);
}

INSTANTIATE_TEST_SUITE_P(Of, MemoryContract, ::testing::ValuesIn(KindNames()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace headrace::memory_contract
