// A job of four ranks on two nodes that was lost, whose members ask who is left.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/service/cluster/meeting.h"

namespace headrace::support {

using service::AskQuorum;
using service::Membership;
using service::QuorumAnswered;
using service::QuorumClientLost;

inline constexpr std::uint32_t kQuorumGraceMs = 500;

// Four ranks, two on each of two nodes, which have been in epoch 1.
class QuorumTest : public testing::Test {
 protected:
  QuorumTest() : a_(meeting_.AddNode("a")), b_(meeting_.AddNode("b")) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      meeting_.Attach(NodeOf(rank), Identity(rank));
    }
    meeting_.Run();
  }

  MeetingNode& NodeOf(std::uint32_t member) { return member < 2 ? a_ : b_; }

  static service::SessionIdentity Identity(std::uint32_t member) {
    auto identity = Meeting::Rank(member < 2 ? 1 : 7, member, 4);
    identity.member = member;
    identity.id = SessionId{member + 1};
    identity.can_reconnect = true;
    return identity;
  }

  void EndLease(std::uint32_t member, bool exited, const std::string& cause) {
    NodeOf(member).follower.OnLeaseEnded(Identity(member), false, cause, exited);
    NodeOf(member).follower.OnRankLost(JobId{member < 2 ? 1U : 7U}, member, cause, exited);
    meeting_.Run();
  }
  void Kill(std::uint32_t member) { EndLease(member, true, "exited or was killed"); }

  static Membership Everybody(std::vector<std::uint32_t> members, std::uint32_t generation = 0) {
    return {.generation = generation, .members = std::move(members)};
  }

  // The rank has noticed the loss; `again` over the connection that it has.
  void Ask(std::uint32_t member, std::uint32_t min_world = 2, bool again = false,
           Membership membership = Everybody({0, 1, 2, 3})) {
    Post(member, min_world, again, std::move(membership));
    meeting_.Run();
  }
  void Post(std::uint32_t member, std::uint32_t min_world, bool again, Membership membership) {
    if (!again) {
      NodeOf(member).follower.OnLeaseEnded(Identity(member), false, "closed its connection", false);
    }
    NodeOf(member).follower.Handle(
        AskQuorum{.token = member + 1,
                  .client = 100 + member,
                  .job = "train",
                  .uid = 1000,
                  .pid = static_cast<std::int32_t>(100 + member),
                  .leader = kMeetingPlace,
                  .member = member,
                  .membership = std::move(membership),
                  .epoch = 1,
                  .rules = {.min_world = min_world, .grace_ms = kQuorumGraceMs},
                  .until_ns = meeting_.now() + 2 * kSecond},
        meeting_.now());
    meeting_.Collect();
  }
  // The last to ask, on node b: the leader decides, and the link breaks before b has heard of it.
  void LoseDecisionFor(std::uint32_t member, std::uint32_t min_world) {
    Post(member, min_world, false, Everybody({0, 1, 2, 3}));
    if (b_.id == 0) {
      ASSERT_TRUE(meeting_.Connect(b_).ok());
    }
    while (meeting_.DeliverToLeader(b_)) {
    }
    EXPECT_EQ(meeting_.leader().quorums_count(), 0U);
    meeting_.Cut(b_, "broke");
  }

  void Pass(TimeNs time_ns) {
    meeting_.Pass(time_ns);
    meeting_.leader().Expire(meeting_.now());
    meeting_.Run();
    for (MeetingNode* node : {&a_, &b_}) node->follower.Expire(meeting_.now());
    meeting_.Run();
  }

  // A process that is no member asks to be one; its token and connection are 1000 + `number`.
  void Apply(MeetingNode& node, std::uint32_t number, service::MemberRole role,
             std::string job = "train") {
    node.follower.Handle(AskQuorum{.token = 1000 + number,
                                   .client = 1000 + number,
                                   .job = std::move(job),
                                   .uid = 1000,
                                   .pid = static_cast<std::int32_t>(1000 + number),
                                   .leader = kMeetingPlace,
                                   .role = role,
                                   .membership = {},
                                   .rules = {},
                                   .until_ns = meeting_.now() + 2 * kSecond},
                         meeting_.now());
    meeting_.Run();
  }
  static std::optional<QuorumAnswered> AnswerTo(MeetingNode& node, std::uint32_t number) {
    std::optional<QuorumAnswered> answer;
    std::erase_if(node.quorums, [&](const QuorumAnswered& each) {
      if (each.token != 1000 + number) return false;
      answer = each;
      return true;
    });
    return answer;
  }

  // The only answer to the member since the last call; nothing where there was none.
  std::optional<QuorumAnswered> AnswerTo(std::uint32_t member) {
    std::optional<QuorumAnswered> answer;
    std::erase_if(NodeOf(member).quorums, [&](const QuorumAnswered& each) {
      if (each.token != member + 1) return false;
      EXPECT_FALSE(answer.has_value()) << member;
      answer = each;
      return true;
    });
    return answer;
  }

  Meeting meeting_;
  MeetingNode& a_;
  MeetingNode& b_;
};

}  // namespace headrace::support
