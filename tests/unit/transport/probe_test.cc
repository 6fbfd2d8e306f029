#include "transport/probe/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "tests/support/expect_text.h"

namespace headrace::transport {
namespace {

// Transfers that take what `seconds_of` says; the agreement gives what `agree` makes of this node's
// value.
class MadeUpNetwork final : public NetworkTransport {
 public:
  const Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] PostResult Post(const Transfer& transfer, TimeNs now) override {
    if (busy_count > 0) {
      --busy_count;
      return PostResult::kBusy;
    }
    posted.push_back(transfer);
    std::byte* memory = transfer.members[self];
    EXPECT_NE(memory, nullptr);
    Completion completion{.token = transfer.token, .begin_ns = now, .end_ns = now};
    if (transfer.dtype == DType::kFloat64) {
      double value = 0;
      std::memcpy(&value, memory, sizeof(value));
      value = agree(value);
      std::memcpy(memory, &value, sizeof(value));
    } else {
      std::memset(memory, 0, transfer.Bytes());  // all of it must be there
      completion.end_ns += std::llround(seconds_of(transfer) * kSecond);
    }
    ended_.push_back(completion);
    return PostResult::kAccepted;
  }
  void Cancel(std::uint64_t) override {}
  bool DoWork(TimeNs, std::vector<Completion>& completions) override {
    completions.insert(completions.end(), ended_.begin(), ended_.end());
    ended_.clear();
    return false;
  }
  const std::string& address() const override { return address_; }
  std::string WireNames() const override { return "made/up"; }
  Status OpenGroup(const GroupOptions&) override { return {}; }
  void SetCost(std::uint32_t, const CostLine&) override {}
  void SetShare(std::uint32_t, const Share&) override {}
  void CloseGroup(std::uint32_t, const std::string&) override {}
  void SendNotice(std::uint32_t, std::uint32_t, std::vector<std::byte>) override {}
  void DrainNotices(std::vector<Notice>&) override {}
  NetworkCounters counters() const override { return counters_; }

  std::uint32_t self = 0;
  std::function<double(const Transfer&)> seconds_of;
  std::function<double(double)> agree = [](double value) { return value; };
  int busy_count = 0;
  std::vector<Transfer> posted;

 private:
  Capabilities capabilities_;
  NetworkCounters counters_;
  std::string address_;
  std::vector<Completion> ended_;
};

constexpr ProbeGroup kTwoNodes{
    .group = 3, .members_count = 2, .self = 0, .position_first = 100, .token = 77};

// Runs the probe as a lane does, to its end.
Result<CostLine> RunToEnd(CostProbe& probe, MadeUpNetwork& network, TimeNs* taken = nullptr) {
  TimeNs now = 0;
  std::vector<Completion> completions;
  for (int i = 0; i < 1000 && !probe.result(); ++i) {
    probe.Step(network, now);
    network.DoWork(now, completions);
    for (const Completion& completion : completions) {
      EXPECT_TRUE(probe.OnCompletion(completion));
      now = std::max(now, completion.end_ns);
    }
    completions.clear();
  }
  if (taken != nullptr) *taken = now;
  if (!probe.result()) return Error(Code::kInternal, "the probe does not end");
  return *probe.result();
}

std::function<double(const Transfer&)> Line(double startup_s, double s_per_byte) {
  return [=](const Transfer& transfer) {
    const double sent = BytesSent(transfer.members_count, 0, static_cast<double>(transfer.Bytes()));
    return startup_s + s_per_byte * sent;
  };
}

TEST(CostProbe, FindsTheLineOfAGigabitWithinATimeThatNobodyMinds) {
  MadeUpNetwork network;
  network.seconds_of = Line(150e-6, 8.5e-9);
  CostProbe probe(kTwoNodes);
  TimeNs taken = 0;
  const Result<CostLine> line = RunToEnd(probe, network, &taken);
  ASSERT_TRUE(line) << line.error().text();
  EXPECT_NEAR(line->startup_s, 150e-6, 1e-7);
  EXPECT_NEAR(line->s_per_byte, 8.5e-9, 1e-12);
  EXPECT_LT(taken, 300 * kMillisecond);
  EXPECT_GT(taken, 100 * kMillisecond);
}

TEST(CostProbe, GoesToLargeSizesOnAQuickNetworkAndStopsEarlyOnASlowOne) {
  const auto largest = [](double s_per_byte) {
    MadeUpNetwork network;
    network.seconds_of = Line(20e-6, s_per_byte);
    CostProbe probe(kTwoNodes);
    EXPECT_TRUE(RunToEnd(probe, network));
    std::size_t size = 0;
    for (const Transfer& transfer : network.posted) size = std::max(size, transfer.Bytes());
    return size;
  };
  EXPECT_EQ(largest(1e-10), kProbeSteps.back().size);  // 10 GB/s
  EXPECT_EQ(largest(8.5e-9), 4U << 20);                // 1 Gbit/s
  EXPECT_EQ(largest(8e-7), 32U << 10);                 // 10 Mbit/s
}

TEST(CostProbe, ForgivesNoiseAndSingleStalls) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> noise(0.95, 1.15);
  MadeUpNetwork network;
  int count = 0;
  network.seconds_of = [&](const Transfer& transfer) {
    const double stall = ++count % 5 == 0 ? 0.040 : 0;
    return Line(100e-6, 8.5e-9)(transfer) * noise(random) + stall;
  };
  CostProbe probe(kTwoNodes);
  const Result<CostLine> line = RunToEnd(probe, network);
  ASSERT_TRUE(line);
  EXPECT_NEAR(line->startup_s, 105e-6, 20e-6);
  EXPECT_NEAR(line->s_per_byte, 8.9e-9, 0.9e-9);
}

TEST(CostProbe, TakesWhatTheNodesAgreeOnNotWhatItSaw) {
  MadeUpNetwork network;
  network.seconds_of = Line(100e-6, 4e-9);
  network.agree = [](double value) { return 2 * value; };  // the other node saw twice as much
  CostProbe probe(kTwoNodes);
  const Result<CostLine> line = RunToEnd(probe, network);
  ASSERT_TRUE(line);
  EXPECT_NEAR(line->startup_s, 200e-6, 1e-6);
  EXPECT_NEAR(line->s_per_byte, 8e-9, 1e-11);
}

TEST(CostProbe, PostsTransfersOfItsOwnPositionsTokenAndGroup) {
  MadeUpNetwork network;
  network.self = 1;
  network.busy_count = 3;
  network.seconds_of = Line(10e-6, 1e-10);
  ProbeGroup group = kTwoNodes;
  group.self = 1;
  CostProbe probe(group);
  ASSERT_TRUE(RunToEnd(probe, network));
  ASSERT_LE(network.posted.size(), kProbePositions);
  for (std::size_t i = 0; i < network.posted.size(); ++i) {
    EXPECT_EQ(network.posted[i].position, 100 + i);
    EXPECT_EQ(network.posted[i].token, 77U);
    EXPECT_EQ(network.posted[i].group, 3U);
    EXPECT_EQ(network.posted[i].members[0], nullptr);
    EXPECT_EQ(network.posted[i].members_count, 2U);
  }
  EXPECT_FALSE(probe.OnCompletion({.token = 77}));
}

TEST(CostProbe, LeavesOthersCompletionsAlone) {
  MadeUpNetwork network;
  network.seconds_of = Line(10e-6, 1e-10);
  CostProbe probe(kTwoNodes);
  EXPECT_TRUE(probe.Step(network, 0));
  EXPECT_FALSE(probe.Step(network, 0)) << "one at a time";
  EXPECT_FALSE(probe.OnCompletion({.token = 78}));
  EXPECT_TRUE(probe.OnCompletion({.token = 77}));
}

TEST(CostProbe, EndsWithTheCauseOfAFailedTransfer) {
  MadeUpNetwork network;
  network.seconds_of = Line(10e-6, 1e-10);
  CostProbe probe(kTwoNodes);
  EXPECT_TRUE(probe.Step(network, 0));
  EXPECT_TRUE(probe.OnCompletion({.token = 77, .code = Code::kPeerLost, .cause = "node b ended"}));
  ASSERT_TRUE(probe.result());
  ASSERT_FALSE(*probe.result());
  EXPECT_EQ(probe.result()->error().code(), Code::kPeerLost);
  EXPECT_VARYING_TEXT(probe.result()->error().text(), "node b");
  EXPECT_FALSE(probe.Step(network, 0));
}

TEST(CostProbe, RefusesAnAgreementThatCannotBe) {
  for (const double nonsense : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    MadeUpNetwork network;
    network.seconds_of = Line(10e-6, 1e-10);
    network.agree = [nonsense](double) { return nonsense; };
    CostProbe probe(kTwoNodes);
    const Result<CostLine> line = RunToEnd(probe, network);
    ASSERT_FALSE(line);
    EXPECT_EQ(line.error().code(), Code::kMismatch);
  }
}

TEST(CostProbe, HasNothingToMeasureAlone) {
  CostProbe probe({.group = 1, .members_count = 1, .token = 1});
  ASSERT_TRUE(probe.result());
  EXPECT_TRUE(*probe.result());
}

TEST(CostProbe, CountsTheBytesThatANodeSends) {
  EXPECT_EQ(BytesSent(1, 0, 1000), 0);
  EXPECT_EQ(BytesSent(2, 0, 1000), 1000);
  EXPECT_EQ(BytesSent(4, 0, 1000), 1500);
  EXPECT_EQ(BytesSent(1, 2, 1000), 1000);
}

}  // namespace
}  // namespace headrace::transport
