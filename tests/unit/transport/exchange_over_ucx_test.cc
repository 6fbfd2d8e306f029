// Collectives over real links: three nodes in one process, over loopback TCP.
#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <vector>

#include "tests/contract/scattered.h"
#include "tests/unit/transport/exchange_fleet.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {
namespace {

constexpr TimeNs kPatience = 30 * kSecond;  // for the kernel's sockets

class ExchangeOverUcx : public ::testing::TestWithParam<Algorithm> {
 protected:
  static constexpr std::uint32_t kNodes = 4;

  void Open(std::uint32_t servers_count) {
    GroupOptions options{.group = 1,
                         .key = KeyOf(1),
                         .members = {},
                         .servers_count = servers_count,
                         .algorithm = GetParam()};
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      auto wire = UcxWire::Open({.net_devices = "lo", .settings = {}});
      ASSERT_TRUE(wire.ok()) << wire.error().text();
      wires_.push_back(std::move(wire).value());
      options.members.push_back({Fleet::NameOf(node), wires_.back()->address()});
      nodes_.push_back(std::make_unique<Exchange>(*wires_.back(), ExchangeOptions{}));
    }
    for (options.self = 0; options.self < kNodes; ++options.self) {
      const Status opened = nodes_[options.self]->OpenGroup(options);
      ASSERT_TRUE(opened.ok()) << opened.error().text();
    }
    data_count_ = kNodes - servers_count;
    completions_.resize(kNodes);
  }

  // Runs the transfer on all nodes; false when it takes longer than patience.
  bool RunTransfer(FleetTransfer& work) {
    for (auto& completions : completions_) completions.clear();
    for (std::uint32_t node = 0; node < data_count_; ++node) {
      const Transfer local = Fleet::Local(work.transfer(), node);
      EXPECT_EQ(nodes_[node]->Post(local, MonotonicNow()), PostResult::kAccepted);
    }
    const TimeNs deadline = MonotonicNow() + kPatience;
    const auto ended = [this] {
      for (std::uint32_t node = 0; node < data_count_; ++node) {
        if (completions_[node].empty()) return false;
      }
      return true;
    };
    while (!ended() && MonotonicNow() < deadline) Work();
    return ended();
  }

  // Sleeps when nobody has anything to do, as lanes do.
  void Work(int timeout_ms = 100) {
    bool worked = false;
    std::vector<pollfd> fds;
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      worked = nodes_[node]->DoWork(MonotonicNow(), completions_[node]) || worked;
    }
    for (const auto& node : nodes_) {
      if (worked || !node->PrepareToSleep()) return;
      fds.push_back({.fd = node->event_fd(), .events = POLLIN, .revents = 0});
    }
    poll(fds.data(), fds.size(), timeout_ms);
  }

  std::uint32_t data_count_ = 0;
  std::vector<std::unique_ptr<UcxWire>> wires_;
  std::vector<std::unique_ptr<Exchange>> nodes_;
  std::vector<std::vector<Completion>> completions_;
};

TEST_P(ExchangeOverUcx, GivesTheReferencesForEveryKindAndSize) {
  for (const std::uint32_t servers : {0U, 1U}) {
    nodes_.clear();
    wires_.clear();
    ASSERT_NO_FATAL_FAILURE(Open(servers));
    std::uint64_t position = 1;
    for (const Collective kind : {Collective::kAllReduce, Collective::kReduce,
                                  Collective::kBroadcast, Collective::kBarrier}) {
      for (const std::uint64_t count : {1U, 1000U, 100'000U, 3'000'001U}) {
        FleetTransfer work(kind, DType::kInt32, Reduction::kSum, count, data_count_, position++);
        const auto expected = work.Expected();
        ASSERT_TRUE(RunTransfer(work)) << Name(kind) << " of " << count;
        for (std::uint32_t node = 0; node < data_count_; ++node) {
          ASSERT_EQ(completions_[node].size(), 1U);
          ASSERT_EQ(completions_[node][0].code, Code::kOk) << completions_[node][0].cause;
        }
        ASSERT_TRUE(work.members().Contents() == expected) << Name(kind) << " of " << count;
        ASSERT_TRUE(work.members().GuardsAreWhole());
      }
    }
    for (const auto& node : nodes_) EXPECT_EQ(node->counters().messages_dropped, 0U);
  }
}

// Large runs, and so many tiny ones that there are more than a window has room for.
TEST_P(ExchangeOverUcx, GivesTheReferencesOverRuns) {
  ASSERT_NO_FATAL_FAILURE(Open(0));
  std::vector<std::uint64_t> counts = RunCounts(600, 99, 1);
  counts.insert(counts.begin() + 300, {400'000, 7, 1'000'003});
  const Scattered place(DType::kInt32, counts, 2);
  std::uint64_t position = 1;
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
    FleetTransfer work(kind, DType::kInt32, Reduction::kSum, place.extent(), data_count_,
                       position++);
    Transfer& transfer = work.transfer();
    transfer.runs = place.runs();
    transfer.skip = 500;
    transfer.count = place.count() - 1000;
    const std::vector<Scattered> places(data_count_, place);
    const auto expected = ExpectedOverRuns(work.members(), transfer, places);
    ASSERT_TRUE(RunTransfer(work)) << Name(kind);
    for (std::uint32_t node = 0; node < data_count_; ++node) {
      ASSERT_EQ(completions_[node].size(), 1U);
      ASSERT_EQ(completions_[node][0].code, Code::kOk) << completions_[node][0].cause;
    }
    ASSERT_TRUE(work.members().Contents() == expected) << Name(kind);
  }
}

TEST_P(ExchangeOverUcx, EndsTransfersOfAGroupThatIsClosedOnTheWay) {
  ASSERT_NO_FATAL_FAILURE(Open(0));
  FleetTransfer work(Collective::kAllReduce, DType::kInt32, Reduction::kSum, 4'000'000, data_count_,
                     1);
  for (std::uint32_t node = 0; node < data_count_; ++node) {
    const Transfer local = Fleet::Local(work.transfer(), node);
    ASSERT_EQ(nodes_[node]->Post(local, MonotonicNow()), PostResult::kAccepted);
  }
  for (int i = 0; i < 20; ++i) Work();
  for (const auto& node : nodes_) node->CloseGroup(1, "rank 3 exited");
  const TimeNs deadline = MonotonicNow() + kPatience;
  for (std::uint32_t node = 0; node < data_count_; ++node) {
    while (completions_[node].empty() && MonotonicNow() < deadline) Work();
    ASSERT_EQ(completions_[node].size(), 1U);
    EXPECT_EQ(completions_[node][0].code, Code::kCancelled);
    EXPECT_EQ(completions_[node][0].cause, "rank 3 exited");
  }
  const auto after = work.members().Contents();
  for (int i = 0; i < 100; ++i) Work(1);
  EXPECT_TRUE(work.members().Contents() == after);
}

INSTANTIATE_TEST_SUITE_P(By, ExchangeOverUcx,
                         ::testing::Values(Algorithm::kAuto, Algorithm::kDirectExchange,
                                           Algorithm::kRecursiveDoubling, Algorithm::kDirectScatter,
                                           Algorithm::kRing),
                         [](const auto& test) {
                           return "Algorithm" + std::to_string(static_cast<int>(test.param));
                         });

}  // namespace
}  // namespace headrace::transport
