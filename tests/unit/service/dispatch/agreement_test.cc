// Ranks that do not ask for the same thing, and records that cannot be carried out.
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

struct TrioOfRanks {
  explicit TrioOfRanks(const MakeTransport& make = Loopback({})) : node(make) {}

  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 3}, 0);
  ClientEnd& b = node.Attach({.world_size = 3}, 1);
  ClientEnd& c = node.Attach({.world_size = 3}, 2);

  // Operation `sequence` of all three ranks ends well.
  void ExpectGoesOn() {
    for (ClientEnd* rank : {&a, &b, &c}) rank->PostApart(kSum);
    node.Settle();
    for (const ClientEnd* rank : {&a, &b, &c}) ExpectOk(*rank, rank->posted());
  }
};

struct Difference {
  std::string what;
  ipc::Record first;
  ipc::Record second;
  std::string first_says;
  std::string second_says;
};

ipc::Record With(ipc::Record record, Reduction reduction) {
  record.reduction = static_cast<std::uint8_t>(reduction);
  return record;
}

ipc::Record Rooted(std::uint32_t root) {
  ipc::Record record = OnSegment(Collective::kBroadcast, DType::kFloat32, 16);
  record.root = root;
  return record;
}

class Mismatch : public ::testing::TestWithParam<Difference> {};

TEST_P(Mismatch, EndsTheOperationOnAllRanksAndNamesBothSides) {
  const Difference& difference = GetParam();
  TrioOfRanks trio;
  trio.a.Post(difference.first);
  trio.b.Post(difference.second);
  trio.node.Settle();
  for (const ClientEnd* rank : {&trio.a, &trio.b}) {
    ExpectFailed(*rank, 1, Code::kMismatch,
                 {"rank 0 (pid 1000) posted " + difference.first_says,
                  "rank 1 (pid 1001) posted " + difference.second_says, "operation 1"});
  }
  // The latecomer learns the same, whatever it posts.
  trio.c.Post(difference.second);
  trio.node.Settle();
  EXPECT_EQ(trio.c.Read(1).text, trio.a.Read(1).text);
  ExpectFailed(trio.c, 1, Code::kMismatch, {});
  trio.ExpectGoesOn();
}

INSTANTIATE_TEST_SUITE_P(
    Differences, Mismatch,
    ::testing::Values(
        Difference{"Kind", kSum, OnSegment(Collective::kBroadcast, DType::kFloat32, 16),
                   "all_reduce of 16 float32 (sum)", "broadcast of 16 float32 from rank 0"},
        Difference{"Count", kSum, OnSegment(Collective::kAllReduce, DType::kFloat32, 17),
                   "all_reduce of 16 float32", "all_reduce of 17 float32"},
        Difference{"DType", kSum, OnSegment(Collective::kAllReduce, DType::kInt32, 16),
                   "all_reduce of 16 float32", "all_reduce of 16 int32"},
        Difference{"Reduction", kSum, With(kSum, Reduction::kMax), "all_reduce of 16 float32 (sum)",
                   "all_reduce of 16 float32 (max)"},
        Difference{"Root", Rooted(0), Rooted(2), "broadcast of 16 float32 from rank 0",
                   "broadcast of 16 float32 from rank 2"},
        Difference{"Barrier", kSum, Barrier(), "all_reduce of 16 float32", "barrier"}),
    [](const auto& test) { return test.param.what; });

TEST(Dispatch, IgnoresReductionAndRootWhereTheyMeanNothing) {
  TrioOfRanks trio;
  ipc::Record gather = OnSegment(Collective::kAllGather, DType::kFloat32, 3);
  trio.a.Post(gather);
  gather.root = 2;
  trio.b.Post(gather);
  trio.c.Post(With(gather, Reduction::kMin));
  trio.node.Settle();
  for (const ClientEnd* rank : {&trio.a, &trio.b, &trio.c}) ExpectOk(*rank, 1);
}

TEST(Dispatch, LetsRanksUseDifferentPlacesInTheirMemory) {
  TrioOfRanks trio;
  trio.a.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 4, 0));
  trio.b.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 4, 64));
  trio.c.Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 4, 128));
  trio.b.Elements<float>()[17] = 5;
  trio.node.Settle();
  ExpectOk(trio.a, 1);
  EXPECT_EQ(trio.a.Elements<float>()[1], 5);
  EXPECT_EQ(trio.c.Elements<float>()[33], 5);
}

TEST(Dispatch, EndsOnlyTheMismatchedOperationAmongManyInFlight) {
  TrioOfRanks trio(Loopback({.startup_ns = kMillisecond}));
  for (ClientEnd* rank : {&trio.a, &trio.b, &trio.c}) {
    rank->PostApart(kSum);
    rank->PostApart(rank == &trio.b ? Barrier() : kSum);
    rank->PostApart(kSum);
  }
  trio.node.Settle();
  trio.node.Advance(5 * kMillisecond);
  for (const ClientEnd* rank : {&trio.a, &trio.b, &trio.c}) {
    ExpectOk(*rank, 1);
    ExpectFailed(*rank, 2, Code::kMismatch, {"rank 0", "rank 1", "pid 1001"});
    ExpectOk(*rank, 3);
  }
}

TEST(Dispatch, EndsAnOperationWithABadRecordOnAllRanks) {
  for (const bool bad_first : {true, false}) {
    TrioOfRanks trio;
    ipc::Record bad = kSum;
    bad.tag = 77;
    trio.a.Post(bad_first ? bad : kSum);
    trio.b.Post(bad_first ? kSum : bad);
    trio.node.Settle();
    const std::string who = bad_first ? "rank 0 (pid 1000)" : "rank 1 (pid 1001)";
    for (const ClientEnd* rank : {&trio.a, &trio.b}) {
      ExpectFailed(*rank, 1, Code::kInvalidArgument, {who, "operation 1", "tag is 77"});
    }
    trio.c.PostApart(kSum);
    trio.node.Settle();
    ExpectFailed(trio.c, 1, Code::kInvalidArgument, {who});
    EXPECT_EQ(trio.node.Counters().records_refused, 1U);
    trio.ExpectGoesOn();
  }
}

TEST(Dispatch, ReadsNothingBeyondAMemoryThatARecordOversteps) {
  TrioOfRanks trio;
  ipc::Record far = kSum;
  far.offset = 65536 - 15 * 4;
  for (ClientEnd* rank : {&trio.a, &trio.b, &trio.c}) rank->Post(far);
  trio.node.Settle();
  for (const ClientEnd* rank : {&trio.a, &trio.b, &trio.c}) {
    ExpectFailed(*rank, 1, Code::kInvalidArgument, {"rank 0", "65536 bytes"});
  }
  EXPECT_TRUE(trio.node.transport().accepted.empty());
  trio.ExpectGoesOn();
}

TEST(Dispatch, EndsTheWholeJobWhenARingIsCorrupt) {
  TrioOfRanks trio;
  trio.a.PostApart(kSum);
  trio.b.PostGarbage(0xdeadbeef);
  trio.node.Settle();
  ExpectFailed(trio.a, 1, Code::kCorrupt, {"rank 1 (pid 1001)", "submission ring"});
  const auto broken = trio.node.rpc().Of<service::SessionBroken>();
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_EQ(broken[0]->session, trio.b.id());
  EXPECT_EQ(broken[0]->error.code(), Code::kCorrupt);
  trio.c.PostApart(kSum);
  trio.node.Settle();
  ExpectFailed(trio.c, 1, Code::kCorrupt, {"rank 1 (pid 1001)"});
  EXPECT_TRUE(trio.node.Discarded(trio.b));
  // Control ends the lease then; that is old news.
  trio.node.Close(trio.b, false, "exited or was killed");
  trio.node.Settle();
  EXPECT_EQ(trio.node.Counters().sessions_closed, 1U);
}

TEST(Dispatch, FindsARingCorruptThatGoesWrongAfterGoodRecords) {
  TrioOfRanks trio;
  for (ClientEnd* rank : {&trio.a, &trio.b, &trio.c}) rank->PostApart(kSum);
  trio.b.PostGarbage(3);  // 2 is due
  trio.node.Settle();
  const auto broken = trio.node.rpc().Of<service::SessionBroken>();
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_EQ(trio.node.Counters().records_read, 3U);
  trio.a.PostApart(kSum);
  trio.node.Settle();
  ExpectFailed(trio.a, 2, Code::kCorrupt, {"rank 1 (pid 1001)", "after operation 1"});
}

}  // namespace
}  // namespace headrace::support
