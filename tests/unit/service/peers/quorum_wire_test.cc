// Who is left of a job, as it goes over the network.
#include <gtest/gtest.h>

#include "service/session/job_place.h"
#include "service/session/quorum.h"
#include "service/session/session.h"
#include "tests/unit/service/peers/wire_trip.h"
#include "transport/transport.h"

namespace headrace::service {
namespace {

using QuorumBuilder = schema::PeerMessage::Builder;

ReportQuorum Asked() {
  return {.job = 7,
          .name = "train",
          .uid = 1000,
          .membership = {.generation = 3, .members = {0, 2, 5}},
          .epoch = 9,
          .rules = {.min_world = 2, .grace_ms = 5000, .stall_ms = 60'000},
          .members = {{.member = 0, .state = MemberState::kAsks},
                      {.member = 2, .state = MemberState::kAttached},
                      {.member = 5, .state = MemberState::kLost, .cause = "pid 12 on node b"},
                      {.member = kApplicantsFrom + 1, .state = MemberState::kSpare}},
          .meets_here = false,
          .places_epoch = 8};
}

TEST(QuorumWire, QuestionAndAnswersPassUnchanged) {
  const ReportQuorum asked = Passed(Asked());
  EXPECT_EQ(asked.job, 7U);
  EXPECT_EQ(asked.name, "train");
  EXPECT_EQ(asked.uid, 1000U);
  EXPECT_EQ(asked.membership, Asked().membership);
  EXPECT_EQ(asked.epoch, 9U);
  EXPECT_EQ(asked.rules.min_world, 2U);
  EXPECT_EQ(asked.rules.grace_ms, 5000U);
  EXPECT_EQ(asked.rules.stall_ms, 60'000U);
  EXPECT_EQ(asked.members, Asked().members);
  EXPECT_FALSE(asked.meets_here);
  EXPECT_EQ(asked.places_epoch, 8U);
  EXPECT_EQ(Passed(LeaveQuorum{.job = 8}).job, 8U);
  EXPECT_EQ(Passed(AnnounceQuorumWaits{.job = 9, .text = "member 2"}).text, "member 2");
  const AnnounceQuorum decided =
      Passed(AnnounceQuorum{.job = 10,
                            .quorum = {.membership = {.generation = 4, .members = {0, 2}},
                                       .epoch = 10,
                                       .lost = {{.member = 5, .cause = "exited"}},
                                       .admitted = {{.applicant = 7, .member = 256}}}});
  EXPECT_EQ(decided.quorum.membership, (Membership{.generation = 4, .members = {0, 2}}));
  EXPECT_EQ(decided.quorum.epoch, 10U);
  EXPECT_EQ(decided.quorum.lost, (std::vector<LostMember>{{.member = 5, .cause = "exited"}}));
  EXPECT_EQ(decided.quorum.admitted, (std::vector<Admission>{{.applicant = 7, .member = 256}}));
  EXPECT_EQ(Passed(AnnounceMembersWait{.job = 11}).job, 11U);
  const AnnounceQuorumRefused refused = Passed(AnnounceQuorumRefused{
      .job = 11, .code = Code::kMismatch, .cause = "left out", .members = {5}});
  EXPECT_EQ(refused.code, Code::kMismatch);
  EXPECT_EQ(refused.cause, "left out");
  EXPECT_EQ(refused.members, (std::vector<std::uint32_t>{5}));
}

TEST(QuorumWire, RefusesQuestionsThatNoServiceAsks) {
  const auto with = [](auto change) {
    return Pass(Asked(), [&](QuorumBuilder root) { change(root.getReportQuorum()); });
  };
  ExpectRefused(with([](auto report) { report.setName("two words"); }));
  ExpectRefused(with([](auto report) { report.setEpoch(kEpochMax); }));
  ExpectRefused(with([](auto report) { report.getMembers()[0].setState(6); }), {"state 6"});
  ExpectRefused(with([](auto report) { report.getMembers()[0].setMember(kApplicantsFrom); }));
  ExpectRefused(with([](auto report) { report.setGraceMs(kQuorumGraceMaxMs + 1); }));
  ExpectRefused(with([](auto report) { report.setStallMs(kQuorumStallMaxMs + 1); }));
  ExpectRefused(with([](auto report) { report.getMembership().initMembers(0); }));
  ExpectRefused(with([](auto report) { report.getMembership().getMembers().set(0, 9); }));
  ExpectRefused(with([](auto report) { report.getMembership().setGeneration(kEpochMax); }));
  ExpectRefused(
      with([](auto report) { report.getMembership().initMembers(transport::kMembersMax + 1); }),
      {"65"});
  ExpectRefused(with([](auto report) { report.getMembers()[0].setState(0); }), {"state 0"});
  ExpectRefused(with([](auto report) { report.getMembers()[0].setState(4); }), {"state 4"});
  ExpectRefused(with([](auto report) { report.initMembers(transport::kMembersMax + 1); }), {"65"});
}

ReportJobPlaces Known() {
  return {.name = "train",
          .uid = 1000,
          .places = {.membership = {.generation = 3, .members = {0, 2}},
                     .epoch = 9,
                     .places = {{"b", ""}, {"c", "10.0.0.3:7733"}},
                     .former = {{"a", "10.0.0.1:7733"}}}};
}

TEST(QuorumWire, PlacesPassUnchanged) {
  const ReportJobPlaces report = Passed(Known());
  EXPECT_EQ(report.name, "train");
  EXPECT_EQ(report.uid, 1000U);
  EXPECT_EQ(report.places, Known().places);
  const AnnounceJobPlaces announced = Passed(AnnounceJobPlaces{.job = 4, .places = Known().places});
  EXPECT_EQ(announced.job, 4U);
  EXPECT_EQ(announced.places, Known().places);
  ReportJobPlaces undecided = Known();
  undecided.places.membership = {};
  EXPECT_EQ(Passed(undecided).places, undecided.places);
}

// A message that is refused ends the connection, which carries the jobs of all users.
TEST(QuorumWire, PlacesThatAClientMayReturnPass) {
  std::size_t passed_count = 0;
  for (int letter = 1; letter < 256; ++letter) {
    const std::string word(1, static_cast<char>(letter));
    for (const std::string& text : {word + " b:1\n", "b" + word + " b:1\n", "b " + word + "\n"}) {
      const auto places = ParsePlaces(text);
      if (!places) continue;
      ReportJobPlaces report = Known();
      report.places.places = *places;
      EXPECT_EQ(Passed(report).places.places, *places) << text;
      ++passed_count;
    }
  }
  EXPECT_GT(passed_count, 3U * 90);
}

TEST(QuorumWire, RefusesPlacesThatNoJobHas) {
  const auto with = [](auto change) {
    return Pass(Known(), [&](QuorumBuilder root) { change(root.getReportJobPlaces()); });
  };
  ExpectRefused(with([](auto report) { report.setName("two words"); }));
  ExpectRefused(with([](auto report) { report.getPlaces().setEpoch(0); }));
  ExpectRefused(with([](auto report) { report.getPlaces().setEpoch(kEpochMax); }));
  ExpectRefused(with([](auto report) { report.getPlaces().getMembers().set(0, 9); }));
  ExpectRefused(with([](auto report) { report.getPlaces().initMembers(0); }));
  ExpectRefused(with([](auto report) { report.getPlaces().getPlaces()[0].setNode("b c"); }));
  ExpectRefused(with([](auto report) { report.getPlaces().initPlaces(transport::kNodesMax + 1); }));
  ExpectRefused(with([](auto report) { report.getPlaces().initFormer(kFormerLeadersMax + 1); }));
}

TEST(QuorumWire, RefusesDecisionsThatNoLeaderMakes) {
  const AnnounceQuorum honest{
      .job = 1,
      .quorum = {.membership = {.generation = 1, .members = {0, 1}}, .epoch = 2, .lost = {}}};
  const auto with = [&honest](auto change) {
    return Pass(honest, [&](QuorumBuilder root) { change(root.getAnnounceQuorum().getQuorum()); });
  };
  ExpectRefused(with([](auto quorum) { quorum.setEpoch(0); }));
  ExpectRefused(with([](auto quorum) { quorum.setEpoch(kEpochMax); }));
  ExpectRefused(with([](auto quorum) { quorum.getMembership().initMembers(0); }));
  ExpectRefused(with([](auto quorum) { quorum.initLost(transport::kMembersMax + 1); }), {"65"});
}

}  // namespace
}  // namespace headrace::service
