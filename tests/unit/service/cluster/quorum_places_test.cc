// Which services a question of who is left of a job goes to, where other services name them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "service/cluster/asked_question.h"
#include "tests/unit/service/cluster/meeting.h"

namespace headrace::support {
namespace {

using service::QuorumAnswered;
using testing::AllOf;
using testing::HasSubstr;

constexpr TimeNs kNow = 1000 * kSecond;
constexpr TimeNs kUntil = kNow + 2 * kSecond;

service::AskQuorum AskOfUser(const std::string& job, std::uint64_t client, std::uint32_t uid) {
  return {.token = 1000 + client,
          .client = client,
          .job = job,
          .uid = uid,
          .pid = 7,
          .leader = kMeetingPlace,
          .membership = {.generation = 0, .members = {0, 1}},
          .epoch = 1,
          .rules = {.min_world = 1},
          .until_ns = kUntil};
}

// What a node says to one leader, and what it wants of connections to others, by hand.
class AskingNode {
 public:
  AskingNode() { node_.follower.OnLeaderUp(kMeetingPlace); }

  // The leader's answer names `count` services at addresses that begin with `host`.
  void AskAndSend(const service::AskQuorum& ask, const std::string& host, std::uint32_t count) {
    number_ = 0;
    node_.follower.Handle(ask, kNow);
    Collect();
    if (number_ == 0) return;  // it was refused
    service::JobPlaces places{.epoch = 2};
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::string place = host + std::to_string(i);
      places.places.push_back({.node = place, .address = place + ":7733"});
    }
    node_.follower.Handle(kMeetingPlace,
                          service::AnnounceJobPlaces{.job = number_, .places = std::move(places)},
                          kNow);
    Collect();
  }
  void Collect() {
    for (const service::FollowerAction& action : node_.follower.DrainActions()) {
      if (const auto* reach = std::get_if<service::ReachLeader>(&action)) {
        reached_.insert(reach->leader);
      } else if (const auto* leave = std::get_if<service::LeaveLeader>(&action)) {
        reached_.erase(leave->leader);
      } else if (const auto* told = std::get_if<service::ToLeader>(&action)) {
        const auto* report = std::get_if<service::ReportQuorum>(&told->message);
        if (report != nullptr) number_ = report->job;
      } else if (const auto* answer = std::get_if<QuorumAnswered>(&action)) {
        answers_.push_back(*answer);
      }
    }
  }

  service::Follower& follower() { return node_.follower; }
  std::size_t CountReached(const std::string& host) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        reached_, [&host](const std::string& each) { return each.starts_with(host); }));
  }
  const std::vector<QuorumAnswered>& answers() const { return answers_; }

 private:
  MeetingNode node_{"c", 1, false};
  std::uint32_t number_ = 0;  // of the question that was reported last
  std::set<std::string> reached_;
  std::vector<QuorumAnswered> answers_;
};

TEST(QuorumPlaces, ThatALeaderNamesCountAgainstTheirUser) {
  constexpr std::uint32_t kPlaces = 64;
  AskingNode node;
  for (std::uint64_t i = 0; i < 80; ++i) {
    const std::string job = "job" + std::to_string(i);
    node.AskAndSend(AskOfUser(job, 500 + i, 1001), job + ".", kPlaces);
  }
  EXPECT_LE(node.CountReached("job"), service::kAskedServicesPerUserMax);
  EXPECT_GE(node.CountReached("job"), service::kAskedServicesPerUserMax - 2);

  // A user beyond is told at once, or by what its question waits for. Others have their own.
  service::AskQuorum late = AskOfUser("late", 700, 1001);
  late.leader = "10.0.0.9:7733";
  node.follower().Handle(late, kNow);
  node.Collect();
  ASSERT_FALSE(node.answers().empty());
  EXPECT_EQ(node.answers().back().token, late.token);
  EXPECT_EQ(node.answers().back().quorum.error().code(), Code::kBusy);
  node.AskAndSend(AskOfUser("other", 800, 1002), "other.", kPlaces);
  EXPECT_EQ(node.CountReached("other"), kPlaces);
  node.follower().Expire(kUntil);
  node.Collect();
  const auto waiting = std::ranges::find(node.answers(), 1502U, &QuorumAnswered::token);
  ASSERT_NE(waiting, node.answers().end());
  EXPECT_THAT(waiting->waits, AllOf(HasSubstr("uid 1001"), HasSubstr("128")));

  // Whoever leaves makes room.
  for (std::uint64_t i = 0; i < 80; ++i) {
    if (i == 2) continue;
    node.follower().Handle(service::QuorumClientLost{.client = 500 + i, .exited = true});
  }
  node.Collect();
  EXPECT_EQ(node.CountReached("job2."), kPlaces);
}

}  // namespace
}  // namespace headrace::support
