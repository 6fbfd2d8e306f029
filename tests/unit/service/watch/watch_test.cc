// Watch: maps, populates, discards, and keeps the ring of events.
#include "service/watch/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ipc/sealed_memory.h"
#include "tests/support/recording.h"

namespace headrace::service {
namespace {

constexpr std::size_t kSize = 64 * ipc::kPageSize;

class WatchTest : public ::testing::Test {
 protected:
  template <typename Message>
  void Send(Message message) {
    ASSERT_TRUE(watch_.door().Send(std::move(message)));
  }
  void Map(UniqueFd fd, std::size_t size, RequestToken token) {
    Send(MapSegment{.memory = std::move(fd), .size = size, .token = token});
  }
  // Whether the pages at `memory` are mapped in this process.
  static bool IsMapped(const std::byte* memory, std::size_t size) {
    std::vector<unsigned char> pages(size / ipc::kPageSize);
    return ::mincore(const_cast<std::byte*>(memory), size, pages.data()) == 0;
  }

  std::unique_ptr<ipc::BoardLayout> board_ = std::make_unique<ipc::BoardLayout>();
  support::CountingWakeable wakeable_;
  support::RecordingDoor<ControlMessage> control_;
  std::vector<std::string> log_;
  Watch watch_{wakeable_, control_, *board_,
               [this](const Event& event) { log_.push_back(event.text); }};
};

TEST_F(WatchTest, MapsASegmentWithAllItsPages) {
  ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", kSize).value();
  memory.mapping.data()[5] = std::byte{42};
  Map(std::move(memory.fd), kSize, 17);
  EXPECT_TRUE(control_.messages.empty()) << "not before it works";
  EXPECT_TRUE(watch_.DoWork(0));
  const SegmentMapped& mapped = *control_.Of<SegmentMapped>().at(0);
  EXPECT_EQ(mapped.token, 17U);
  ASSERT_TRUE(mapped.memory.ok());
  EXPECT_EQ(mapped.memory->data()[5], std::byte{42});
  std::vector<unsigned char> pages(kSize / ipc::kPageSize);
  ASSERT_EQ(::mincore(mapped.memory->data(), kSize, pages.data()), 0);
  for (const unsigned char page : pages) EXPECT_EQ(page & 1, 1);
  EXPECT_FALSE(watch_.DoWork(0));
}

TEST_F(WatchTest, KeepsSegmentsApartInTheAddressBitsThatCachesCompare) {
  constexpr std::size_t kLarge = std::size_t{16} << 20;
  constexpr std::uintptr_t kCompared = (std::uintptr_t{1} << 28) - ipc::kPageSize;
  std::vector<std::uintptr_t> places;
  for (RequestToken token = 0; token < 20; ++token) {
    Map(ipc::CreateSealedMemory("headrace-test", kLarge).value().fd, kLarge, token);
    watch_.DoWork(0);
    const SegmentMapped& mapped = *control_.Of<SegmentMapped>().at(token);
    ASSERT_TRUE(mapped.memory.ok());
    places.push_back(reinterpret_cast<std::uintptr_t>(mapped.memory->data()) & kCompared);
  }
  std::sort(places.begin(), places.end());
  EXPECT_EQ(std::adjacent_find(places.begin(), places.end()), places.end());
}

TEST_F(WatchTest, AnswersWithTheCauseWhenASegmentCannotBeMapped) {
  ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", kSize).value();
  Map(std::move(memory.fd), 2 * kSize, 1);
  UniqueFd unsealed(::memfd_create("headrace-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Map(std::move(unsealed), kSize, 2);
  watch_.DoWork(0);
  const auto answers = control_.Of<SegmentMapped>();
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0]->token, 1U);
  EXPECT_NE(answers[0]->memory.error().text().find("announced"), std::string::npos);
  EXPECT_EQ(answers[1]->token, 2U);
  EXPECT_NE(answers[1]->memory.error().text().find("seals"), std::string::npos);
}

TEST_F(WatchTest, ClosesTheDescriptorOfASegment) {
  ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", kSize).value();
  const int fd = memory.fd.get();
  Map(std::move(memory.fd), kSize, 1);
  EXPECT_NE(::fcntl(fd, F_GETFD), -1);
  watch_.DoWork(0);
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

TEST_F(WatchTest, UnmapsWhatItIsToldToDiscard) {
  Mapping mapping = ipc::CreateSealedMemory("headrace-test", kSize).value().mapping;
  const std::byte* memory = mapping.data();
  Send(DiscardMemory{std::move(mapping)});
  EXPECT_TRUE(IsMapped(memory, kSize));
  watch_.DoWork(0);
  EXPECT_FALSE(IsMapped(memory, kSize));
}

TEST_F(WatchTest, DiscardsASessionWithItsChannelAndSegments) {
  ipc::Channel::Created created = ipc::Channel::Create().value();
  auto session = std::make_unique<Session>(
      SessionIdentity{}, ipc::Channel::Open(created.fd.get()).value(), UniqueFd());
  session->AddSegment(SegmentId{0},
                      ipc::CreateSealedMemory("headrace-test", kSize).value().mapping);
  const std::byte* memory = session->FindSegment(SegmentId{0}).data();
  Send(DiscardSession{std::move(session)});
  EXPECT_TRUE(IsMapped(memory, kSize));
  watch_.DoWork(0);
  EXPECT_FALSE(IsMapped(memory, kSize));
}

TEST_F(WatchTest, LogsEventsAndPutsThemOnTheBoard) {
  Send(Event{Code::kTimeout, JobId{4}, "job a: operation 1 timed out"});
  watch_.DoWork(0);
  EXPECT_EQ(log_, std::vector<std::string>{"job a: operation 1 timed out"});
  const ipc::EventRow row = *ipc::ReadRow(board_->events[0]);
  EXPECT_EQ(row.number, 1U);
  EXPECT_EQ(row.code, static_cast<std::uint32_t>(Code::kTimeout));
  EXPECT_EQ(row.job_id, 4U);
  EXPECT_EQ(ipc::GetText(row.text), "job a: operation 1 timed out");
  EXPECT_GT(row.at_unix_ns, 1'700'000'000 * kSecond);
}

TEST_F(WatchTest, KeepsTheLastEventsInARing) {
  constexpr std::size_t kEvents = ipc::kEventRowsMax + 5;
  for (std::size_t i = 1; i <= kEvents; ++i) Send(Event{Code::kOk, {}, std::to_string(i)});
  watch_.DoWork(0);
  for (std::size_t number = kEvents - ipc::kEventRowsMax + 1; number <= kEvents; ++number) {
    const ipc::EventRow row = *ipc::ReadRow(board_->events[(number - 1) % ipc::kEventRowsMax]);
    EXPECT_EQ(row.number, number);
    EXPECT_EQ(ipc::GetText(row.text), std::to_string(number));
  }
}

TEST_F(WatchTest, CutsATextThatIsTooLongForTheBoardAndLogsItWhole) {
  const std::string text(1000, 'x');
  Send(Event{Code::kOk, {}, text});
  watch_.DoWork(0);
  EXPECT_EQ(log_.at(0), text);
  EXPECT_EQ(ipc::GetText(ipc::ReadRow(board_->events[0])->text), std::string(255, 'x'));
}

TEST_F(WatchTest, SleepsOnlyWhenItsInboxIsEmpty) {
  EXPECT_TRUE(watch_.PrepareToSleep());
  Send(Event{});
  EXPECT_EQ(wakeable_.wakes, 1);
  EXPECT_FALSE(watch_.PrepareToSleep());
  watch_.DoWork(0);
  EXPECT_TRUE(watch_.PrepareToSleep());
  EXPECT_EQ(watch_.NextDeadline(), kNever);
}

// Two tensors on a lane with that startup.
MakePlan WishFor(plan::Policy policy, double startup_s) {
  MakePlan wish;
  wish.token = 9;
  wish.policy = policy;
  wish.version = 3;
  for (const char* name : {"first", "second"}) {
    wish.profile.tensors.push_back(
        {.name = name, .elements = 1'000'000, .backward_s = 1e-3, .forward_s = 1e-3});
  }
  wish.route = plan::AllReduceRoute(plan::Affine(startup_s, 1e-9));
  return wish;
}

TEST_F(WatchTest, MakesPlans) {
  Send(WishFor(plan::Policy::kWfbp, 1e-3));
  EXPECT_TRUE(watch_.DoWork(0));
  const PlanMade& made = *control_.Of<PlanMade>().at(0);
  EXPECT_EQ(made.token, 9U);
  ASSERT_TRUE(made.plan.ok()) << made.plan.error().text();
  EXPECT_EQ((*made.plan)->version, 3U);
  EXPECT_EQ((*made.plan)->blocks.size(), 2U);
}

TEST_F(WatchTest, KeepsThePlanInForceUnlessAnotherIsFasterByTheMargin) {
  Send(WishFor(plan::Policy::kExact, 1e-3));
  watch_.DoWork(0);
  const auto present = *control_.Of<PlanMade>().at(0)->plan;
  for (const double startup_s : {1e-3, 1e-3 + 1e-6, 1e-1}) {
    MakePlan wish = WishFor(plan::Policy::kExact, startup_s);
    // In several blocks; with a high startup one is far better.
    plan::Plan several = *present;
    several.blocks = plan::MakePlan(plan::Policy::kWfbp, wish.profile, wish.route)->blocks;
    wish.present = startup_s < 1e-2 ? present : std::make_shared<const plan::Plan>(several);
    wish.margin = 0.02;
    Send(std::move(wish));
  }
  watch_.DoWork(0);
  const auto made = control_.Of<PlanMade>();
  ASSERT_EQ(made.size(), 4U);
  EXPECT_EQ(*made[1]->plan, nullptr);
  EXPECT_EQ(*made[2]->plan, nullptr) << "faster, but by less than the margin";
  ASSERT_NE(*made[3]->plan, nullptr);
  EXPECT_EQ((*made[3]->plan)->blocks.size(), 1U);
}

TEST_F(WatchTest, SaysWhyAPlanCannotBeMade) {
  MakePlan wish = WishFor(plan::Policy::kExact, 1e-3);
  wish.profile.tensors[1].backward_s = -1;
  Send(std::move(wish));
  watch_.DoWork(0);
  const PlanMade& made = *control_.Of<PlanMade>().at(0);
  ASSERT_FALSE(made.plan.ok());
  EXPECT_NE(made.plan.error().text().find("second"), std::string::npos);
}

}  // namespace
}  // namespace headrace::service
