// Nodes over NCCL: each a lane of its own in this process, on a GPU of its own, in front of a
// simulated lane of host memory.
#include "transport/nccl/nccl_network.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "tests/support/expect_text.h"
#include "tests/unit/transport/exchange_fleet.h"
#include "tests/unit/transport/nccl/nccl_test.h"
#include "transport/memory/device_arena.h"

namespace headrace::transport {
namespace {

constexpr std::uint64_t kOtherOrder = std::uint64_t{1} << 63;

class NcclNetworkTest : public NcclTest {
 protected:
  void Open(std::uint32_t nodes_count, NcclNetworkOptions options = {}) {
    ASSERT_NO_FATAL_FAILURE(Start(static_cast<int>(nodes_count)));
    fleet_ = std::make_unique<Fleet>(FleetOptions{.data_count = nodes_count, .opens_group = false});
    options.nccl.library = nccl_double::LibraryPath();
    for (std::uint32_t node = 0; node < nodes_count; ++node) {
      options.device = static_cast<CuDevice>(node);
      auto opened = NcclNetwork::Open(fleet_->node(node), *gpus_, options);
      ASSERT_TRUE(opened.ok()) << opened.error().text();
      nodes_.push_back(std::move(*opened));
    }
    completions_.resize(nodes_count);
    OpenGroup(1);
  }

  void OpenGroup(std::uint32_t group) {
    GroupOptions options;
    options.group = group;
    options.key = KeyOf(group);
    for (const auto& node : nodes_) {
      options.members.push_back({.name = "n", .address = node->address()});
    }
    for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
      options.self = node;
      const Status opened = nodes_[node]->OpenGroup(options);
      ASSERT_TRUE(opened.ok()) << opened.error().text();
    }
  }

  void TearDown() override {
    nodes_.clear();
    fleet_.reset();
    NcclTest::TearDown();
  }

  // What one node posts; its memory is its GPU's.
  void Post(std::uint32_t node, Transfer transfer, const GpuArray<float>& memory) {
    transfer.members_count = static_cast<std::uint32_t>(nodes_.size());
    transfer.members[node] = memory.bytes();
    transfer.devices[node] = memory.device();
    if (transfer.group == 0) transfer.group = 1;
    ASSERT_EQ(nodes_[node]->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  }

  // Steps all nodes until it holds; simulated time goes on whenever it may.
  void Until(const std::function<bool()>& holds) {
    while (!holds()) {
      for (std::size_t node = 0; node < nodes_.size(); ++node) {
        nodes_[node]->DoWork(MonotonicNow(), completions_[node]);
      }
      const TimeNs due = fleet_->network().NextDue();
      if (due != kNever) fleet_->network().AdvanceTo(due);
      std::this_thread::yield();
    }
  }
  void UntilEnded(std::size_t count) {
    Until([&] {
      return std::ranges::all_of(completions_,
                                 [&](const auto& ended) { return ended.size() >= count; });
    });
  }

  GpuArray<float> Memory(std::uint32_t node, std::size_t count, float value) {
    return {*gpus_, static_cast<std::int8_t>(node), std::vector<float>(count, value)};
  }

  static Transfer AllReduce(std::uint64_t token, std::uint64_t position, std::uint64_t count) {
    return {.token = token,
            .kind = Collective::kAllReduce,
            .dtype = DType::kFloat32,
            .count = count,
            .position = position};
  }

  std::unique_ptr<Fleet> fleet_;
  std::vector<std::unique_ptr<NcclNetwork>> nodes_;
  std::vector<std::vector<Completion>> completions_;
};

TEST_F(NcclNetworkTest, SumsMemoryOfGpusOfThreeNodes) {
  Open(3, {.nccl = {.piece_size = 1024}});
  EXPECT_TRUE(nodes_[0]->capabilities().device_memory);
  EXPECT_VARYING_TEXT(nodes_[1]->WireNames(), "2.28.9", "GPU 1");
  std::uint64_t position = 10;
  for (const std::size_t count : {1U, 300U, 10'001U}) {
    std::vector<GpuArray<float>> memory;
    for (std::uint32_t node = 0; node < 3; ++node) {
      memory.push_back(Memory(node, count, static_cast<float>(node + 1)));
    }
    for (auto& ended : completions_) ended.clear();
    for (std::uint32_t node = 0; node < 3; ++node) {
      Post(node, AllReduce(7, position, count), memory[node]);
    }
    ++position;
    UntilEnded(1);
    for (std::uint32_t node = 0; node < 3; ++node) {
      ASSERT_EQ(completions_[node][0].code, Code::kOk) << completions_[node][0].cause;
      ASSERT_EQ(completions_[node][0].token, 7U);
      EXPECT_EQ(memory[node].elements(), std::vector<float>(count, 6.0F));
    }
  }
}

TEST_F(NcclNetworkTest, BroadcastsAndReducesToWhereTheRootSays) {
  Open(2);
  const auto a = Memory(0, 100, 1);
  const auto b = Memory(1, 100, 5);
  const auto sum = Memory(1, 100, 0);
  Transfer reduce = AllReduce(1, 1, 100);
  reduce.kind = Collective::kReduce;
  reduce.root = 1;
  Post(0, reduce, a);
  reduce.output = sum.bytes();
  Post(1, reduce, b);
  Transfer broadcast = AllReduce(2, 2, 100);
  broadcast.kind = Collective::kBroadcast;
  broadcast.root = 1;
  Post(0, broadcast, a);
  Post(1, broadcast, b);
  UntilEnded(2);
  EXPECT_EQ(sum.elements(), std::vector<float>(100, 6));
  EXPECT_EQ(b.elements(), std::vector<float>(100, 5));
  EXPECT_EQ(a.elements(), std::vector<float>(100, 5));
}

// The probe and host memory beside memory of GPUs.
TEST_F(NcclNetworkTest, LetsMemoryOfTheHostGoOverTheHostsLane) {
  Open(2);
  std::vector<float> a(100, 1);
  std::vector<float> b(100, 2);
  Transfer transfer = AllReduce(1, 1, 100);
  transfer.members_count = 2;
  transfer.group = 1;
  transfer.members[0] = reinterpret_cast<std::byte*>(a.data());
  ASSERT_EQ(nodes_[0]->Post(transfer, 0), PostResult::kAccepted);
  transfer.members = {};
  transfer.members[1] = reinterpret_cast<std::byte*>(b.data());
  ASSERT_EQ(nodes_[1]->Post(transfer, 0), PostResult::kAccepted);
  UntilEnded(1);
  EXPECT_EQ(a, std::vector<float>(100, 3));
  EXPECT_EQ(b, a);
  EXPECT_EQ(nccl_.Counts().ranks, 0U);
}

// The host's lane takes positions in growing order, and NCCL's ranks meet by one of them.
TEST_F(NcclNetworkTest, MeetsInTheOrderOfThePostsWhereTheHostsMemoryGoesBeside) {
  Open(2);
  std::vector<GpuArray<float>> memory;
  std::vector<std::vector<float>> hosts(2, std::vector<float>(100, 2));
  for (std::uint32_t node = 0; node < 2; ++node) memory.push_back(Memory(node, 100, 1));
  for (std::uint32_t node = 0; node < 2; ++node) {
    Post(node, AllReduce(1, 5, 100), memory[node]);
    Transfer beside = AllReduce(2, 6, 100);
    beside.members_count = 2;
    beside.group = 1;
    beside.members[node] = reinterpret_cast<std::byte*>(hosts[node].data());
    ASSERT_EQ(nodes_[node]->Post(beside, MonotonicNow()), PostResult::kAccepted);
    Post(node, AllReduce(3, 7, 100), memory[node]);
  }
  UntilEnded(3);
  for (std::uint32_t node = 0; node < 2; ++node) {
    EXPECT_EQ(memory[node].elements(), std::vector<float>(100, 4));
    EXPECT_EQ(hosts[node], std::vector<float>(100, 4));
  }
}

TEST_F(NcclNetworkTest, CountsWhatTransfersMustMoveAtTheLeast) {
  Open(3);
  std::vector<GpuArray<float>> memory;
  for (std::uint32_t node = 0; node < 3; ++node) memory.push_back(Memory(node, 300, 1));
  for (std::uint32_t node = 0; node < 3; ++node) Post(node, AllReduce(1, 1, 300), memory[node]);
  UntilEnded(1);
  std::vector<NetworkCounters> met;
  for (const auto& node : nodes_) met.push_back(node->counters());
  Transfer broadcast = AllReduce(2, 2, 300);
  broadcast.kind = Collective::kBroadcast;
  broadcast.root = 2;
  for (std::uint32_t node = 0; node < 3; ++node) Post(node, broadcast, memory[node]);
  Transfer reduce = AllReduce(3, 3, 300);
  reduce.kind = Collective::kReduce;
  reduce.root = 1;
  for (std::uint32_t node = 0; node < 3; ++node) {
    reduce.output = node == 1 ? memory[1].bytes() : nullptr;
    Post(node, reduce, memory[node]);
  }
  UntilEnded(3);
  const auto sent = [&](std::uint32_t node) {
    return nodes_[node]->counters().bytes_sent - met[node].bytes_sent;
  };
  const auto received = [&](std::uint32_t node) {
    return nodes_[node]->counters().bytes_received - met[node].bytes_received;
  };
  EXPECT_EQ(sent(0), 1200U);
  EXPECT_EQ(received(0), 1200U);
  EXPECT_EQ(sent(1), 0U);
  EXPECT_EQ(received(1), 2400U);
  EXPECT_EQ(sent(2), 2400U);
  EXPECT_EQ(received(2), 0U);
  // Two thirds of it in either direction, twice, beside the meeting's on the host's lane.
  for (std::uint32_t node = 0; node < 3; ++node) {
    EXPECT_EQ(met[node].bytes_sent - fleet_->node(node).counters().bytes_sent, 1600U);
  }
}

// Either order of one node would wait for the other of the other node for ever, were they one.
TEST_F(NcclNetworkTest, LetsNodesInterleaveTheTwoOrdersAndGroupsAsTheyLike) {
  Open(2);
  OpenGroup(2);
  std::vector<GpuArray<float>> memory;
  for (int i = 0; i < 4; ++i) {
    memory.push_back(Memory(0, 50, 1));
    memory.push_back(Memory(1, 50, 2));
  }
  const auto post = [&](std::uint32_t node, std::uint32_t which) {
    Transfer transfer = AllReduce(which, which % 2 == 0 ? 1 : (kOtherOrder | 1), 50);
    transfer.group = 1 + which / 2;
    Post(node, transfer, memory[2 * which + node]);
  };
  for (const std::uint32_t which : {0U, 1U, 2U, 3U}) post(0, which);
  for (const std::uint32_t which : {3U, 2U, 1U, 0U}) post(1, which);
  UntilEnded(4);
  for (const auto& each : memory) EXPECT_EQ(each.elements(), std::vector<float>(50, 3));
  EXPECT_EQ(nccl_.Counts().ranks, 8U);
}

// Node 0 has launched one group's collective first, and node 1 the other's, when on both memory is
// to be unmapped, by a driver that lets that wait for kernels and launches wait for that. Calls
// that did not wait for their moment would never end.
TEST_F(NcclNetworkTest, LetsMemoryBeUnmappedWhereThatHoldsUpLaunches) {
  const cuda_double::Environment slow{{"WAITS", "cuMemUnmap"}};
  Open(2);
  OpenGroup(2);
  std::vector<GpuArray<float>> memory;
  std::vector<DeviceArena> arenas;
  for (std::uint32_t node = 0; node < 2; ++node) {
    memory.push_back(Memory(node, 50, 1));
    memory.push_back(Memory(node, 50, 1));
    auto arena = DeviceArena::Allocate(gpus_->driver(), static_cast<CuDevice>(node), 4096);
    ASSERT_TRUE(arena.ok()) << arena.error().text();
    arenas.push_back(std::move(*arena));
  }
  const auto post = [&](std::uint32_t node, std::uint32_t group, std::uint64_t position) {
    Transfer transfer = AllReduce(group, position, 50);
    transfer.group = group;
    Post(node, transfer, memory[2 * node + group - 1]);
  };
  // With the first ones the nodes meet.
  for (const std::uint32_t group : {1U, 2U}) {
    for (const std::uint32_t node : {0U, 1U}) post(node, group, 1);
  }
  UntilEnded(2);
  post(0, 1, 2);
  post(1, 2, 2);
  Until([&] { return nccl_.Counts().waiting == 2; });
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (DeviceArena& arena : arenas) {
    threads.emplace_back([&, unmapped = std::move(arena)]() mutable {
      MemoryGate::Caller caller(gpus_->memory_gate());
      // By this clock it never waits too long.
      for (bool first = true; !caller.TryBegin(0); first = false) {
        if (first) ++refused;
        std::this_thread::yield();
      }
      const DeviceArena gone = std::move(unmapped);
    });
  }
  while (refused < 2) std::this_thread::yield();
  post(0, 2, 2);
  post(1, 1, 2);
  UntilEnded(4);
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : memory) EXPECT_EQ(each.elements(), std::vector<float>(50, 4));
  CudaDoubleCounts counts{};
  cuda_.counts(&counts);
  EXPECT_EQ(counts.mappings, 0U);
}

TEST_F(NcclNetworkTest, EndsEverythingWithinTheAbortWhenTheGroupIsClosed) {
  Open(2);
  const auto a = Memory(0, 100, 1);
  const auto b = Memory(1, 100, 1);
  Post(0, AllReduce(1, 1, 100), a);
  Post(1, AllReduce(1, 1, 100), b);
  UntilEnded(1);
  // Node 1 never comes to the next one.
  Post(0, AllReduce(2, 2, 100), a);
  Post(0, AllReduce(3, kOtherOrder | 1, 100), a);
  ids_abandoned_ = 1;  // that order's
  Until([&] { return nccl_.Counts().waiting == 1; });
  ASSERT_EQ(completions_[0].size(), 1U);
  nodes_[0]->CloseGroup(1, "node b is gone");
  Until([&] { return completions_[0].size() == 3; });
  for (const std::size_t i : {1U, 2U}) {
    EXPECT_EQ(completions_[0][i].code, Code::kCancelled);
    EXPECT_VARYING_TEXT(completions_[0][i].cause, "node b");
  }
  EXPECT_EQ(a.elements(), std::vector<float>(100, 2));
  // A later post is refused.
  Transfer late = AllReduce(4, 3, 100);
  late.group = 1;
  late.members_count = 2;
  late.members[0] = a.bytes();
  late.devices[0] = 0;
  ASSERT_EQ(nodes_[0]->Post(late, 0), PostResult::kAccepted);
  Until([&] { return completions_[0].size() == 4; });
  EXPECT_EQ(completions_[0][3].code, Code::kUnavailable);
}

// As NCCL has it, counts that differ are noticed by nobody; the group's end is bounded all the
// same.
TEST_F(NcclNetworkTest, EndsATransferThatOthersPostedDifferently) {
  Open(2);
  const auto a = Memory(0, 100, 1);
  const auto b = Memory(1, 100, 1);
  Post(0, AllReduce(1, 1, 100), a);
  Post(1, AllReduce(1, 1, 99), b);
  Until([&] { return nccl_.Counts().waiting == 2; });
  for (int i = 0; i < 1000; ++i) nodes_[0]->DoWork(MonotonicNow(), completions_[0]);
  ASSERT_TRUE(completions_[0].empty());
  nodes_[0]->Cancel(1);
  Until([&] { return !completions_[0].empty(); });
  EXPECT_EQ(completions_[0][0].code, Code::kCancelled);
  // The other node is told by NCCL.
  Until([&] { return !completions_[1].empty(); });
  EXPECT_EQ(completions_[1][0].code, Code::kPeerLost) << completions_[1][0].cause;
  EXPECT_EQ(b.elements(), std::vector<float>(100, 1));
}

TEST_F(NcclNetworkTest, FailsTheGroupAsAWholeWithNcclsCause) {
  Open(2);
  const auto a = Memory(0, 100, 1);
  const auto b = Memory(1, 100, 1);
  nccl_.fail("error", 1, 2);
  Post(0, AllReduce(1, 1, 100), a);
  Post(0, AllReduce(2, 2, 100), a);
  Post(1, AllReduce(1, 1, 100), b);
  Post(1, AllReduce(2, 2, 100), b);
  UntilEnded(2);
  for (const auto& ended : completions_) {
    for (const Completion& completion : ended) {
      EXPECT_NE(completion.code, Code::kOk);
      // Either rank may be the one whose collective fails; the other hears of it.
      EXPECT_NE(completion.cause.find("of 2: NCCL says"), std::string::npos) << completion.cause;
    }
  }
  Post(0, AllReduce(3, 3, 100), a);
  Until([&] { return completions_[0].size() == 3; });
  EXPECT_EQ(completions_[0][2].cause, completions_[0][0].cause);
}

TEST_F(NcclNetworkTest, SaysThatTheMeetingFailed) {
  Open(2);
  const auto a = Memory(0, 100, 1);
  nccl_.fail("ncclGetUniqueId", 1, 2);
  Post(0, AllReduce(1, 1, 100), a);
  Until([&] { return !completions_[0].empty(); });
  EXPECT_EQ(completions_[0][0].code, Code::kUnavailable);
  EXPECT_VARYING_TEXT(completions_[0][0].cause);
  // Node 1 waits for node 0, until its group is closed.
  const auto b = Memory(1, 100, 1);
  Post(1, AllReduce(1, 1, 100), b);
  for (int i = 0; i < 1000; ++i) nodes_[1]->DoWork(MonotonicNow(), completions_[1]);
  EXPECT_TRUE(completions_[1].empty());
  EXPECT_EQ(nodes_[1]->Missing(1), 1U);
  nodes_[1]->CloseGroup(1, "node a failed");
  Until([&] { return !completions_[1].empty(); });
  EXPECT_VARYING_TEXT(completions_[1][0].cause, "node a");
}

TEST(NcclOrders, AreAsManyAsRunSideBySideOnTheGpu) {
  EXPECT_EQ(NcclOrdersThatFit(132, 16), 7U);  // and the lane inside the node
  EXPECT_EQ(NcclOrdersThatFit(132, 44), kNcclOrdersMin);
  EXPECT_EQ(NcclOrdersThatFit(132, 45), 1U);
  EXPECT_EQ(NcclOrdersThatFit(132, 133), 0U);
  EXPECT_EQ(NcclOrdersThatFit(132, 1), kNcclOrdersMax);
}

TEST_F(NcclNetworkTest, RefusesWhatNcclCannotDo) {
  Open(2, {.orders_max = 1, .nccl = {}});
  const auto a = Memory(0, 100, 1);
  Transfer integers = AllReduce(1, 1, 100);
  integers.dtype = DType::kInt32;
  integers.reduction = Reduction::kAverage;
  integers.divisor = 8;
  Post(0, integers, a);
  Until([&] { return completions_[0].size() == 1; });
  EXPECT_EQ(completions_[0][0].code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(completions_[0][0].cause);
  Post(0, AllReduce(2, 2, 100), Memory(1, 100, 1));
  Until([&] { return completions_[0].size() == 2; });
  EXPECT_EQ(completions_[0][1].cause, "memory of GPU 1 on the lane of GPU 0");
  Post(0, AllReduce(3, 3, 100), a);
  ids_abandoned_ = 1;
  Post(0, AllReduce(4, kOtherOrder | 1, 100), a);
  Until([&] { return completions_[0].size() == 3; });
  EXPECT_EQ(completions_[0][2].token, 4U);
  EXPECT_EQ(completions_[0][2].code, Code::kExhausted);
}

TEST_F(NcclNetworkTest, NeedsAHostIdOfItsOwnForEachNodeOnOneGpu) {
  Open(2);
  const auto a = Memory(0, 100, 1);
  const auto b = Memory(1, 100, 1);
  // Both on GPU 0.
  NcclNetworkOptions options;
  options.nccl.library = nccl_double::LibraryPath();
  options.device = 0;
  nodes_[1].reset();
  auto opened = NcclNetwork::Open(fleet_->node(1), *gpus_, options);
  ASSERT_TRUE(opened.ok());
  nodes_[1] = std::move(*opened);
  OpenGroup(2);
  const GpuArray<float> c(*gpus_, 0, std::vector<float>(100, 1));
  Transfer transfer = AllReduce(1, 1, 100);
  transfer.group = 2;
  Post(0, transfer, a);
  Post(1, transfer, c);
  UntilEnded(1);
  EXPECT_EQ(completions_[0][0].code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(completions_[0][0].cause);
}

}  // namespace
}  // namespace headrace::transport
