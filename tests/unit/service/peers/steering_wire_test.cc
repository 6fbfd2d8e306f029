// What people ask and hear comes out of the wire as it went in, and what no honest service writes
// does not.
#include "service/peers/peer_wire.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/service/peers/wire_trip.h"

namespace headrace::service {
namespace {

const Steering kLimit{
    .kind = SteeringKind::kLimit, .value = 250'000'000, .uid = 1000, .node = "node-b"};

template <typename Kind>
void ExpectSame(const Kind& got) {
  EXPECT_EQ(got.job, 7U);
  EXPECT_EQ(got.steering.kind, kLimit.kind);
  EXPECT_EQ(got.steering.value, kLimit.value);
  EXPECT_EQ(got.steering.uid, kLimit.uid);
  EXPECT_EQ(got.steering.node, kLimit.node);
}

TEST(SteeringWire, SteeringPassesBothWays) {
  ExpectSame(Passed(RequestSteering{.job = 7, .steering = kLimit}));
  ExpectSame(Passed(AnnounceSteering{.job = 7, .steering = kLimit}));
  EXPECT_EQ(Passed(AnnounceSteering{.job = 7, .steering = {}}).steering.node, "");
}

TEST(SteeringWire, HowFarANodeIsWithADrainPassesWhateverTheNumber) {
  for (const SteeringKind kind : {SteeringKind::kDrainOperations, SteeringKind::kDrainIterations}) {
    const Steering progress{.kind = kind, .value = UINT64_MAX, .uid = 1000};
    const AnnounceSteering got = Passed(AnnounceSteering{.job = 7, .steering = progress});
    EXPECT_EQ(got.steering.kind, kind);
    EXPECT_EQ(got.steering.value, UINT64_MAX);
  }
}

TEST(SteeringWire, LateWordsPassAndAreFitForALogLine) {
  EXPECT_EQ(Passed(ReportRankLate{.job = 7, .text = "rank 3"}).text, "rank 3");
  EXPECT_EQ(Passed(AnnounceRankLate{.job = 7, .text = "rank 3"}).job, 7U);
  const auto told = Pass(ReportRankLate{.job = 7, .text = "a\nb" + std::string(990, 'x')});
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(std::get<ReportRankLate>(*told).text, "a?b" + std::string(797, 'x'));
}

TEST(SteeringWire, RefusesKindsAndValuesThatThereAreNot) {
  using Builder = schema::PeerMessage::Builder;
  const RequestSteering request{.job = 7, .steering = kLimit};
  ExpectRefused(Pass(request, [](Builder root) { root.getRequestSteering().setKind(0); }),
                {"kind 0"});
  ExpectRefused(Pass(request, [](Builder root) { root.getRequestSteering().setKind(255); }),
                {"kind 255"});
  ExpectRefused(Pass(request, [](Builder root) { root.getRequestSteering().setValue(1); }),
                {"1 bytes"});
  ExpectRefused(Pass(request, [](Builder root) { root.getRequestSteering().setNode("a b"); }));
  const Steering none{.kind = SteeringKind::kOwnShare, .value = UINT64_MAX};
  ExpectRefused(Pass(RequestSteering{.job = 7, .steering = none}), {"0xffffffffffffffff"});
  const AnnounceSteering steer{.job = 7, .steering = kLimit};
  ExpectRefused(
      Pass(steer,
           [](Builder root) {
             root.getAnnounceSteering().setKind(static_cast<std::uint8_t>(SteeringKind::kWeight));
             root.getAnnounceSteering().setValue(UINT64_MAX);
           }),
      {"18446744073709551615"});
}

}  // namespace
}  // namespace headrace::service
