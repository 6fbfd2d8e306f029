// The node whose service leads a job is lost: where the others meet, who decides, and how those
// find the job who come later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "service/cluster/leader_names.h"
#include "tests/unit/service/cluster/services.h"

namespace headrace::support {
namespace {

using service::JobPlace;
using service::LeaderNames;
using service::MemberRole;
using service::QuorumAnswered;
using testing::ElementsAre;
using testing::HasSubstr;

// One rank on each of three nodes; node a leads.
class MovingLeaderTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kGraceMs = 500;

  MovingLeaderTest() {
    for (std::uint32_t rank = 0; rank < 3; ++rank) Attach(rank, rank, 3, 0, "a:7733");
    services_.Run();
  }

  void Attach(std::uint32_t member, std::uint32_t rank, std::uint32_t world_size,
              std::uint32_t after_epoch, const std::string& rendezvous) {
    service::SessionIdentity& identity = ranks_[member];
    identity.id = SessionId{++numbers_};
    identity.job = JobId{++jobs_};
    identity.job_name = "train";
    identity.rank = rank;
    identity.world_size = world_size;
    identity.member = member;
    identity.uid = 1000;
    identity.pid = static_cast<std::int32_t>(100 + member);
    identity.timeout_ms = 60'000;
    identity.rendezvous = rendezvous;
    identity.can_reconnect = true;
    identity.after_epoch = after_epoch;
    identity.epoch = after_epoch + 1;
    services_.at(member % 3).follower.OnRankAttached(identity);
  }

  void EndLease(std::uint32_t member, bool exited = false) {
    const service::SessionIdentity& identity = ranks_.at(member);
    auto& follower = services_.at(member % 3).follower;
    const std::string cause = exited ? "exited or was killed" : "closed its connection";
    follower.OnLeaseEnded(identity, false, cause, exited);
    follower.OnRankLost(identity.job, identity.rank, cause, exited);
    follower.Handle(service::JobEnded{.job = identity.job});
  }

  void Ask(std::uint32_t member, std::uint32_t min_world = 1) {
    EndLease(member);
    AskAt(member % 3, {.token = member,
                       .member = member,
                       .membership = {.members = {0, 1, 2}},
                       .epoch = 1,
                       .rules = {.min_world = min_world, .grace_ms = kGraceMs}});
  }
  void AskAt(std::size_t node, service::AskQuorum ask, const std::string& leader = "a:7733") {
    ask.client = 100 + ask.token;
    ask.job = "train";
    ask.uid = 1000;
    ask.leader = leader;
    ask.until_ns = services_.now() + 60 * kSecond;
    services_.at(node).follower.Handle(ask, services_.now());
    services_.Run();
  }
  void Join(std::size_t node, const std::string& leader) {
    AskAt(node, {.token = 7, .role = MemberRole::kJoins, .membership = {}}, leader);
  }

  void Pass(TimeNs time_ns) {
    services_.Pass(time_ns);
    services_.Run();
  }
  std::optional<QuorumAnswered> AnswerTo(std::size_t node, std::uint64_t token) {
    for (const QuorumAnswered& each : services_.at(node).answers) {
      if (each.token == token) return each;
    }
    return std::nullopt;
  }
  // Nodes b and c go on at b; node a comes back with nothing in mind.
  void MoveToB() {
    services_.Kill(0);
    services_.Run();
    Ask(1);
    Ask(2);
    Pass(1);
    Pass(kGraceMs * kMillisecond);
    for (const std::uint32_t member : {1U, 2U}) {
      const auto answer = AnswerTo(member, member);
      ASSERT_TRUE(answer && answer->quorum);
      Attach(member, member - 1, 2, answer->quorum->epoch, answer->quorum->rendezvous);
    }
    services_.Run();
    ASSERT_EQ(services_.at(1).running.count(ranks_.at(1).job), 1U);
    ASSERT_EQ(services_.at(2).running.count(ranks_.at(2).job), 1U);
  }

  Services services_{{"a", "b", "c"}};
  std::map<std::uint32_t, service::SessionIdentity> ranks_;
  std::uint64_t numbers_ = 0;
  std::uint32_t jobs_ = 0;
};

TEST_F(MovingLeaderTest, RanksGoOnAtTheNextNodeThatLives) {
  services_.Kill(0);
  services_.Run();
  Ask(1);
  Ask(2);
  Pass(1);
  Pass(kGraceMs * kMillisecond / 2);
  EXPECT_FALSE(AnswerTo(1, 1)) << "the service may be started again within the grace time";
  Pass(kGraceMs * kMillisecond);
  for (const std::uint32_t member : {1U, 2U}) {
    const auto answer = AnswerTo(member, member);
    ASSERT_TRUE(answer && answer->quorum);
    EXPECT_THAT(answer->quorum->membership.members, ElementsAre(1, 2));
    EXPECT_EQ(answer->quorum->rendezvous, "b:7733");
  }
}

// The services of the others begin again, too, and know nothing but what ranks have kept.
TEST_F(MovingLeaderTest, RanksGoOnThoughNoServiceRemembersTheOthers) {
  std::map<std::uint32_t, std::string> kept;
  for (const std::uint32_t member : {1U, 2U}) {
    kept[member] = services_.at(member).placed.at(ranks_.at(member).job);
    EXPECT_EQ(kept[member], "a a:7733\nb b:7733\nc c:7733\n");
  }
  for (std::size_t place = 0; place < 3; ++place) services_.Kill(place);
  services_.Restart(1);
  services_.Restart(2);
  services_.Run();
  for (const std::uint32_t member : {1U, 2U}) {
    AskAt(member, {.token = member,
                   .member = member,
                   .membership = {.members = {0, 1, 2}},
                   .epoch = 1,
                   .places = service::ParsePlaces(kept[member]).value(),
                   .rules = {.min_world = 2, .grace_ms = kGraceMs}});
  }
  Pass(1);
  Pass(2 * kGraceMs * kMillisecond);
  for (const std::uint32_t member : {1U, 2U}) {
    const auto answer = AnswerTo(member, member);
    ASSERT_TRUE(answer && answer->quorum) << member;
    EXPECT_THAT(answer->quorum->membership.members, ElementsAre(1, 2));
    EXPECT_EQ(answer->quorum->rendezvous, "b:7733");
  }
}

TEST_F(MovingLeaderTest, PlacesThatARankHasKeptYieldToLaterOnes) {
  MoveToB();
  const std::uint32_t epoch = services_.at(2).directory.Find({"train", 1000})->epoch;
  AskAt(2, {.token = 9,
            .member = 0,
            .membership = {.members = {0, 1, 2}},
            .epoch = 1,
            .places = {{.node = "a", .address = "a:7733"}},
            .rules = {.min_world = 1, .grace_ms = kGraceMs}});
  const auto* const known = services_.at(2).directory.Find({"train", 1000});
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(known->epoch, epoch);
  EXPECT_EQ(known->places.front().node, "b");
}

TEST_F(MovingLeaderTest, ALeaderThatIsBackInTimeCostsNobody) {
  services_.Kill(0);
  services_.Run();
  Ask(1);
  Ask(2);
  Pass(1);
  services_.Restart(0);
  Ask(0);
  for (const std::uint32_t member : {0U, 1U, 2U}) {
    const auto answer = AnswerTo(member, member);
    ASSERT_TRUE(answer && answer->quorum) << member;
    EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 1, 2));
    EXPECT_EQ(answer->quorum->rendezvous, "a:7733");
  }
}

TEST_F(MovingLeaderTest, ANodeThatLacksTheWayToTheFirstDecidesNothingByItself) {
  services_.SetReach(1, 0, false);
  services_.Run();
  for (const std::uint32_t member : {0U, 1U, 2U}) Ask(member);
  Pass(1);
  Pass(kGraceMs * kMillisecond);
  for (const std::uint32_t member : {0U, 2U}) {
    const auto answer = AnswerTo(member, member);
    ASSERT_TRUE(answer && answer->quorum) << member;
    EXPECT_THAT(answer->quorum->membership.members, ElementsAre(0, 2));
  }
  const auto answer = AnswerTo(1, 1);
  ASSERT_TRUE(answer);
  ASSERT_FALSE(answer->quorum);
  EXPECT_EQ(answer->quorum.error().code(), Code::kMismatch) << "it was left out, and is told so";
  EXPECT_THAT(answer->quorum.error().text(), HasSubstr("without member 1"));
}

TEST_F(MovingLeaderTest, ADecisionWhoseLeaderIsLostIsMadeAnew) {
  EndLease(0, true);
  services_.Run();
  for (const std::uint32_t member : {1U, 2U}) Ask(member);
  Pass(1);
  Pass(kGraceMs * kMillisecond);
  const auto first = AnswerTo(1, 1);
  ASSERT_TRUE(first && first->quorum);
  ASSERT_EQ(first->quorum->rendezvous, "a:7733");
  // Only one of the two has come so far.
  Attach(1, 0, 2, first->quorum->epoch, "a:7733");
  services_.Run();
  services_.Kill(0);
  services_.Run();
  EXPECT_EQ(services_.at(1).failed.count(ranks_.at(1).job), 1U) << "or it would wait in vain";
  services_.at(1).answers.clear();
  services_.at(2).answers.clear();
  Ask(2);
  Pass(1);
  Pass(4 * kGraceMs * kMillisecond);
  EXPECT_FALSE(AnswerTo(2, 2)) << "member 1 lives, and is waited for";
  Ask(1);
  const auto second = AnswerTo(2, 2);
  ASSERT_TRUE(second && second->quorum);
  EXPECT_THAT(second->quorum->membership.members, ElementsAre(1, 2));
  EXPECT_EQ(second->quorum->rendezvous, "b:7733");
  EXPECT_GT(second->quorum->epoch, first->quorum->epoch);
}

TEST_F(MovingLeaderTest, OneThatWasAwayIsRefusedWhereItLed) {
  MoveToB();
  services_.Restart(0);
  services_.Run();
  Ask(0);
  const auto answer = AnswerTo(0, 0);
  ASSERT_TRUE(answer && !answer->quorum) << "it would go on alone";
  EXPECT_EQ(answer->quorum.error().code(), Code::kMismatch);
}

TEST_F(MovingLeaderTest, WhoComesToTheFormerLeaderFindsTheJob) {
  MoveToB();
  services_.Restart(0);
  Join(0, "a:7733");
  EXPECT_EQ(services_.at(1).members_wait.size(), 1U);
  EXPECT_EQ(services_.at(2).members_wait.size(), 1U);
}

TEST_F(MovingLeaderTest, WhoComesToAnyServiceOfTheJobFindsIt) {
  MoveToB();
  services_.Restart(0);
  Join(0, "c:7733");
  EXPECT_EQ(services_.at(1).members_wait.size(), 1U);
}

TEST(LeaderNames, FindAPlaceOnlyAmongThePeers) {
  const LeaderNames all{.node_name = "a", .address = "*:7733", .port = 7733};
  EXPECT_EQ(*all.At(JobPlace{"b", "10.0.0.2"}), "10.0.0.2:7733");
  EXPECT_EQ(*all.At(JobPlace{"a", "10.0.0.9:1"}), "localhost:7733") << "itself";
  EXPECT_FALSE(all.At(JobPlace{"b", ""}).ok());
  EXPECT_FALSE(all.At(JobPlace{"b", "unix:/run/socket"}).ok());
  const LeaderNames listed{
      .node_name = "a", .address = "*:7733", .port = 7733, .peers = {{"b", "10.0.0.2:7733"}}};
  EXPECT_EQ(*listed.At(JobPlace{"b", "10.6.6.6:7733"}), "b") << "at the address of the list";
  EXPECT_EQ(*listed.At(JobPlace{"a", ""}), "a");
  const auto stranger = listed.At(JobPlace{"c", "10.0.0.3:7733"});
  ASSERT_FALSE(stranger.ok());
  EXPECT_EQ(stranger.error().code(), Code::kPermissionDenied);
  EXPECT_EQ(*listed.At(JobPlace{"", "10.0.0.2:7733"}), "b");
  EXPECT_FALSE(listed.At(JobPlace{"", "10.0.0.3:7733"}).ok());
}

TEST(LeaderNames, TakeTheAddressOfAConnectionWhereAServiceKnowsNone) {
  EXPECT_EQ(service::ControlAddress("10.0.0.2:7733", "10.1.0.2:4711"), "10.0.0.2:7733");
  EXPECT_EQ(service::ControlAddress("*:7733", "10.1.0.2:4711"), "10.1.0.2:7733");
  EXPECT_EQ(service::ControlAddress("127.0.0.1:99", "127.0.0.1:4711"), "127.0.0.1:99");
  EXPECT_EQ(service::ControlAddress("*:7733", ""), "");
  EXPECT_EQ(service::ControlAddress("", "10.1.0.2:4711"), "");
}

}  // namespace
}  // namespace headrace::support
