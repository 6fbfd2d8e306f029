// Collectives over real links: three nodes in one process, over loopback TCP.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tests/contract/scattered.h"
#include "tests/unit/transport/exchange_fleet.h"
#include "tests/unit/transport/guarded_memory.h"
#include "tests/unit/transport/sent_message.h"
#include "transport/ucx/ucx_wire.h"

namespace headrace::transport {
namespace {

constexpr TimeNs kPatience = 30 * kSecond;  // for the kernel's sockets

// In the place of an exchange that is gone.
class Deaf final : public WireEvents {
 public:
  explicit Deaf(Wire& wire) : wire_(wire) {}
  void Announced(const MessageHeader&, std::size_t, ArrivalId arrival) override {
    wire_.Drop(arrival);
  }
  void Sent(std::uint64_t, Code) override {}
  void Received(std::uint64_t, Code) override {}
  void LinkFailed(LinkId, const std::string&) override {}

 private:
  Wire& wire_;
};

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

  // Sleeps when nobody has anything to do, as lanes do; returns whether anybody had.
  bool Work(int timeout_ms = 100) {
    bool worked = false;
    std::vector<pollfd> fds;
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      if (node == stopped_) continue;
      worked = nodes_[node]->DoWork(MonotonicNow(), completions_[node]) || worked;
    }
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      if (node == stopped_) continue;
      if (worked || !nodes_[node]->PrepareToSleep()) return true;
      fds.push_back({.fd = nodes_[node]->event_fd(), .events = POLLIN, .revents = 0});
    }
    poll(fds.data(), fds.size(), timeout_ms);
    return false;
  }

  std::uint32_t data_count_ = 0;
  std::uint32_t stopped_ = kNodes;  // a node that does nothing; kNodes: none
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

// Between all nodes at once, many of them open, posted in any order.
TEST_P(ExchangeOverUcx, MovesSendsOfEverySizeBetweenAllNodes) {
  ASSERT_NO_FATAL_FAILURE(Open(0));
  std::mt19937_64 dice(1);
  std::vector<SentMessage> messages;
  std::vector<std::size_t> expected(kNodes);
  std::uint64_t position = 0;
  for (const std::size_t bytes : {0U, 1U, 4096U, 16'384U, 16'385U, 100'000U, 3'000'001U}) {
    for (std::uint32_t from = 0; from < kNodes; ++from) {
      for (std::uint32_t to = 0; to < kNodes; ++to) {
        if (from == to) continue;
        SentMessage& message = messages.emplace_back(from, to, ++position, bytes);
        message.meets = position % 2 == 0;
        ++expected[from];
        ++expected[to];
      }
    }
  }
  const auto post = [this](const SentMessage& message, bool receives, Transfer transfer) {
    const std::uint32_t node = receives ? message.target : message.source;
    ASSERT_EQ(nodes_[node]->Post(Fleet::Local(transfer, node), MonotonicNow()),
              PostResult::kAccepted);
  };
  // Those that meet have growing positions on each node; others are sent once the receive is there.
  for (SentMessage& message : messages) {
    if (message.meets) post(message, false, message.Of(false, kNodes));
    post(message, true, message.Of(true, kNodes));
  }
  std::shuffle(messages.begin(), messages.end(), dice);
  for (SentMessage& message : messages) {
    if (!message.meets) post(message, false, message.Of(false, kNodes));
  }
  const auto ended = [&] {
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      if (completions_[node].size() < expected[node]) return false;
    }
    return true;
  };
  const TimeNs deadline = MonotonicNow() + kPatience;
  while (!ended() && MonotonicNow() < deadline) Work();
  for (std::uint32_t node = 0; node < kNodes; ++node) {
    ASSERT_EQ(completions_[node].size(), expected[node]);
    for (const Completion& each : completions_[node]) ASSERT_EQ(each.code, Code::kOk) << each.cause;
    EXPECT_EQ(nodes_[node]->counters().messages_dropped, 0U);
  }
  for (const SentMessage& message : messages) {
    ASSERT_TRUE(message.HasCome()) << message.sent.size() << " bytes";
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

// Not even while its messages fill the sockets toward a node that does not read.
TEST_P(ExchangeOverUcx, IsNotBusyWhileAPeerReadsNothing) {
  constexpr TimeNs kStall = 500 * kMillisecond;
  ASSERT_NO_FATAL_FAILURE(Open(0));
  FleetTransfer first(Collective::kAllReduce, DType::kInt32, Reduction::kSum, 1000, kNodes, 1);
  ASSERT_TRUE(RunTransfer(first));
  FleetTransfer work(Collective::kBroadcast, DType::kInt32, Reduction::kSum, 8'000'000, kNodes, 2);
  const TimeNs began = MonotonicNow();
  const TimeNs busy_before = nodes_[0]->FlowedNs();
  stopped_ = kNodes - 1;
  for (std::uint32_t node = 0; node < kNodes; ++node) {
    const Transfer local = Fleet::Local(work.transfer(), node);
    ASSERT_EQ(nodes_[node]->Post(local, MonotonicNow()), PostResult::kAccepted);
  }
  for (auto& completions : completions_) completions.clear();
  TimeNs worked_ns = began;
  for (TimeNs now = began; now - worked_ns < kStall; now = MonotonicNow()) {
    if (Work()) worked_ns = now;
  }
  ASSERT_TRUE(completions_[0].empty()) << "a root is told that its messages were taken";
  stopped_ = kNodes;
  while (completions_[0].empty() && MonotonicNow() < worked_ns + kStall + kPatience) Work();
  ASSERT_EQ(completions_[0].size(), 1U);
  EXPECT_GT(nodes_[0]->FlowedNs(), busy_before);
  EXPECT_LT(nodes_[0]->FlowedNs() - busy_before, MonotonicNow() - began - kStall / 2);
}

// Neither the exchange nor the wire under it, however far the transfer has come.
TEST_P(ExchangeOverUcx, TouchesNoMemoryOfTransfersThatAreOpenAtItsEnd) {
  constexpr std::uint64_t kCount = 500'000;
  for (const int steps : {0, 1, 3, 10, 30, 60, 100}) {
    std::vector<std::unique_ptr<GuardedMemory>> memory;
    Transfer transfer{.token = 1,
                      .kind = Collective::kAllReduce,
                      .dtype = DType::kInt32,
                      .count = kCount,
                      .position = 2,
                      .members_count = kNodes};
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      memory.push_back(std::make_unique<GuardedMemory>(4 * kCount));
      transfer.members[node] = memory.back()->data();
    }
    ASSERT_NO_FATAL_FAILURE(Open(0));
    // UCX 1.13 ends the process when an engine is destroyed while it still shakes hands.
    FleetTransfer first(Collective::kAllReduce, DType::kInt32, Reduction::kSum, 1000, kNodes, 1);
    ASSERT_TRUE(RunTransfer(first));
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      const Transfer local = Fleet::Local(transfer, node);
      ASSERT_EQ(nodes_[node]->Post(local, MonotonicNow()), PostResult::kAccepted);
    }
    for (int i = 0; i < steps; ++i) Work(10);
    for (const auto& each : memory) each->Protect();
    nodes_.clear();
    // Until UCX is idle: 1.13 ends the process when an engine is destroyed in the middle.
    for (int i = 0; i < 2000; ++i) {
      for (const auto& wire : wires_) {
        Deaf deaf(*wire);
        wire->Progress(deaf);
      }
    }
    wires_.clear();
  }
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
