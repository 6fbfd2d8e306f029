// For how long a lane between nodes says that it was busy: while bytes moved, and not while it
// waited for a node that sends or takes nothing.
#include <gtest/gtest.h>

#include "tests/unit/transport/exchange_fleet.h"
#include "transport/exchange/flow_meter.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kOf32Ms = 1'000'000;
constexpr TimeNs kLong = 100 * kSecond;

class ExchangeBusy : public ::testing::TestWithParam<std::size_t> {
 protected:
  // Messages of 4 KiB go at once, or are taken by their receiver.
  ExchangeBusy() {
    FleetOptions options{.data_count = 2, .algorithm = Algorithm::kDirectExchange};
    options.network.eager_size = GetParam();
    options.network.ns_per_byte = kNsPerByte;
    fleet_ = std::make_unique<Fleet>(options);
  }

  void WaitLong() {
    fleet_->RunToTheEnd();
    fleet_->network().AdvanceTo(fleet_->network().now() + kLong);
    fleet_->RunToTheEnd();
  }
  TimeNs BusyAt(std::uint32_t node) { return fleet_->node(node).FlowedNs(); }
  // The transfer ends, and its bytes took that long; the waits on the way count but little.
  void ExpectTimeOfTheBytes() {
    fleet_->RunToTheEnd();
    constexpr auto kTime = static_cast<TimeNs>(kOf32Ms * sizeof(std::int32_t) * kNsPerByte);
    for (const std::uint32_t node : {0U, 1U}) {
      EXPECT_EQ(fleet_->completions(node).size(), 1U) << "node " << node;
      EXPECT_GT(BusyAt(node), kTime * 3 / 4) << "node " << node;
      EXPECT_LT(BusyAt(node), kTime * 5 / 4 + SendPacer::kStuckAfter) << "node " << node;
    }
  }
  // One node posts, and the other only after a long time.
  void ExpectNotBusyUntilTheOtherPosts(Collective kind) {
    FleetTransfer work(kind, DType::kInt32, Reduction::kSum, kOf32Ms, 2, 0);
    fleet_->Post(0, work.transfer());
    WaitLong();
    EXPECT_LT(BusyAt(0), kSecond);
    fleet_->Post(1, work.transfer());
    ExpectTimeOfTheBytes();
  }

  std::unique_ptr<Fleet> fleet_;
};

TEST_P(ExchangeBusy, IsNotTheTimeInWhichAnotherNodeHasNotPosted) {
  ExpectNotBusyUntilTheOtherPosts(Collective::kAllReduce);
}

// A root is told that its messages have been taken, and sends no more than a window before.
TEST_P(ExchangeBusy, IsNotTheTimeInWhichARootWaitsForItsReceiver) {
  ExpectNotBusyUntilTheOtherPosts(Collective::kBroadcast);
}

TEST_P(ExchangeBusy, IsNotTheTimeInWhichAPeerReadsNothing) {
  FleetTransfer work(Collective::kBroadcast, DType::kInt32, Reduction::kSum, kOf32Ms, 2, 0);
  fleet_->network().Dam("a", "b");
  fleet_->PostEverywhere(work.transfer());
  WaitLong();
  EXPECT_LT(BusyAt(0), kSecond);
  EXPECT_LT(BusyAt(1), kSecond);
  fleet_->network().LetFlow("a", "b");
  ExpectTimeOfTheBytes();
}

INSTANTIATE_TEST_SUITE_P(With, ExchangeBusy, ::testing::Values(0, 8192), [](const auto& test) {
  return test.param == 0 ? "Announcements" : "MessagesAtOnce";
});

TEST(FlowMeter, CountsAGapInWhichTheWireCouldMoveSomethingUpToALimit) {
  FlowMeter meter;
  meter.OnWorkEnds(kLong, true);
  meter.OnWorkBegins(kLong + 30 * kMillisecond, true);
  EXPECT_EQ(meter.flowed_ns(), 30 * kMillisecond) << "not what was before";
  meter.OnWorkBegins(2 * kLong, false);
  EXPECT_EQ(meter.flowed_ns(), 30 * kMillisecond);
  meter.OnWorkBegins(3 * kLong, true);
  EXPECT_EQ(meter.flowed_ns(), 30 * kMillisecond + SendPacer::kStuckAfter);
}

TEST(FlowMeter, CountsArrivalsThatFollowEachOther) {
  FlowMeter meter;
  meter.OnWorkBegins(kLong, true);
  EXPECT_EQ(meter.flowed_ns(), 0) << "nobody knows when it began";
  meter.OnWorkBegins(kLong + FlowMeter::kArrivalGap, true);
  EXPECT_EQ(meter.flowed_ns(), FlowMeter::kArrivalGap);
  meter.OnWorkBegins(2 * kLong, true);
  EXPECT_EQ(meter.flowed_ns(), FlowMeter::kArrivalGap);
}

}  // namespace
}  // namespace headrace::transport
