// For how long a lane between nodes says that it was busy: while bytes moved, and not while it
// waited for a node that sends or takes nothing.
#include <gtest/gtest.h>

#include "tests/unit/transport/exchange_fleet.h"
#include "transport/exchange/flow_meter.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kCount = 1'000'000;
constexpr double kNsPerByte = 8;  // 1 Gbit/s: the transfer takes 32 ms
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
  // The transfer's bytes took that long, and the waits on the way but little.
  void ExpectTimeOfTheBytes(std::uint32_t node) {
    constexpr auto kTime = static_cast<TimeNs>(kCount * sizeof(std::int32_t) * kNsPerByte);
    EXPECT_GT(BusyAt(node), kTime * 3 / 4) << "node " << node;
    EXPECT_LT(BusyAt(node), kTime * 5 / 4 + Gate::kStuckAfter) << "node " << node;
  }

  std::unique_ptr<Fleet> fleet_;
};

TEST_P(ExchangeBusy, IsNotTheTimeInWhichAnotherNodeHasNotPosted) {
  FleetTransfer work(Collective::kAllReduce, DType::kInt32, Reduction::kSum, kCount, 2, 0);
  fleet_->Post(0, work.transfer());
  WaitLong();
  EXPECT_LT(BusyAt(0), kSecond);
  fleet_->Post(1, work.transfer());
  fleet_->RunToTheEnd();
  ASSERT_EQ(fleet_->completions(0).size(), 1U);
  ExpectTimeOfTheBytes(0);
  ExpectTimeOfTheBytes(1);
}

// A root is told that its messages have been taken, and sends no more than a window before.
TEST_P(ExchangeBusy, IsNotTheTimeInWhichARootWaitsForItsReceiver) {
  FleetTransfer work(Collective::kBroadcast, DType::kInt32, Reduction::kSum, kCount, 2, 0);
  fleet_->Post(0, work.transfer());
  WaitLong();
  EXPECT_LT(BusyAt(0), kSecond);
  fleet_->Post(1, work.transfer());
  fleet_->RunToTheEnd();
  ASSERT_EQ(fleet_->completions(0).size(), 1U);
  ExpectTimeOfTheBytes(0);
  ExpectTimeOfTheBytes(1);
}

TEST_P(ExchangeBusy, IsNotTheTimeInWhichAPeerReadsNothing) {
  FleetTransfer work(Collective::kBroadcast, DType::kInt32, Reduction::kSum, kCount, 2, 0);
  fleet_->network().Dam("a", "b");
  fleet_->PostEverywhere(work.transfer());
  WaitLong();
  EXPECT_LT(BusyAt(0), kSecond);
  EXPECT_LT(BusyAt(1), kSecond);
  fleet_->network().LetFlow("a", "b");
  fleet_->RunToTheEnd();
  ASSERT_EQ(fleet_->completions(0).size(), 1U);
  ExpectTimeOfTheBytes(0);
  ExpectTimeOfTheBytes(1);
}

INSTANTIATE_TEST_SUITE_P(With, ExchangeBusy, ::testing::Values(0, 8192), [](const auto& test) {
  return test.param == 0 ? "Announcements" : "MessagesAtOnce";
});

TEST(FlowMeter, CountsAGapInWhichTheWireCouldMoveSomethingUpToALimit) {
  FlowMeter meter;
  meter.Leave(kLong, true);
  meter.Look(kLong + 30 * kMillisecond, true);
  EXPECT_EQ(meter.flowed_ns(), 30 * kMillisecond) << "not what was before";
  meter.Look(2 * kLong, false);
  EXPECT_EQ(meter.flowed_ns(), 30 * kMillisecond);
  meter.Look(3 * kLong, true);
  EXPECT_EQ(meter.flowed_ns(), 30 * kMillisecond + Gate::kStuckAfter);
}

TEST(FlowMeter, CountsArrivalsThatFollowEachOther) {
  FlowMeter meter;
  meter.Look(kLong, true);
  EXPECT_EQ(meter.flowed_ns(), 0) << "nobody knows when it began";
  meter.Look(kLong + FlowMeter::kArrivalGap, true);
  EXPECT_EQ(meter.flowed_ns(), FlowMeter::kArrivalGap);
  meter.Look(2 * kLong, true);
  EXPECT_EQ(meter.flowed_ns(), FlowMeter::kArrivalGap);
}

}  // namespace
}  // namespace headrace::transport
