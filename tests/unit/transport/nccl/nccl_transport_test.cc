// What the lane over NCCL does beyond the contract of all transports.
#include "transport/nccl/nccl_transport.h"

#include <numeric>

#include "tests/support/expect_text.h"
#include "tests/unit/transport/nccl/nccl_test.h"

namespace headrace::transport {
namespace {

template <typename Element>
std::vector<Element> Counting(std::size_t count, Element first) {
  std::vector<Element> elements(count);
  std::iota(elements.begin(), elements.end(), first);
  return elements;
}

class NcclTransportTest : public NcclTest {
 protected:
  void Open(int devices_count, NcclOptions options = {}) {
    ASSERT_NO_FATAL_FAILURE(Start(devices_count));
    options.library = nccl_double::LibraryPath();
    auto opened = NcclTransport::Open(*gpus_, options);
    ASSERT_TRUE(opened.ok()) << opened.error().text();
    transport_ = std::move(*opened);
  }
  void TearDown() override {
    transport_.reset();
    NcclTest::TearDown();
  }

  template <typename Element>
  void Describe(Transfer& transfer, const std::vector<GpuArray<Element>>& members) {
    transfer.members_count = static_cast<std::uint32_t>(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      transfer.members[i] = members[i].bytes();
      transfer.devices[i] = members[i].device();
    }
  }

  std::vector<GpuArray<float>> FloatMembers(std::size_t count, std::vector<std::int8_t> devices) {
    std::vector<GpuArray<float>> members;
    for (const std::int8_t device : devices) {
      members.emplace_back(*gpus_, device, Counting<float>(count, static_cast<float>(device + 1)));
    }
    return members;
  }

  static Transfer AllReduce(std::uint64_t token, std::uint64_t count) {
    return {
        .token = token, .kind = Collective::kAllReduce, .dtype = DType::kFloat32, .count = count};
  }

  // Legacy memory, which these tests have, is reached context by context.
  void ReachEachOther() {
    for (const PrimaryContext& user : gpus_->contexts()) {
      const CurrentContext current(gpus_->driver(), user.get().context);
      for (const PrimaryContext& peer : gpus_->contexts()) {
        if (peer.get().device == user.get().device) continue;
        (void)gpus_->driver().call().ctx_enable_peer_access(peer.get().context, 0);
      }
    }
  }

  // Steps until a collective hangs on a GPU.
  void AwaitHang() {
    std::vector<Completion> completions;
    while (nccl_.Counts().hanging == 0) {
      transport_->DoWork(MonotonicNow(), completions);
      std::this_thread::yield();
    }
    ASSERT_TRUE(completions.empty());
  }

  std::unique_ptr<NcclTransport> transport_;
};

TEST_F(NcclTransportTest, SumsBlocksOfAnySize) {
  Open(3, {.piece_size = 1024});
  EXPECT_TRUE(transport_->capabilities().device_memory);
  for (const std::size_t count : {1U, 2U, 255U, 257U, 10'007U}) {
    const auto members = FloatMembers(count, {2, 0, 1});
    Transfer transfer = AllReduce(1, count);
    Describe(transfer, members);
    const Completion completion = Run(*transport_, transfer);
    ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
    for (const auto& member : members) {
      EXPECT_EQ(member.elements().front(), 6.0F);
      EXPECT_EQ(member.elements().back(), 6.0F + 3.0F * static_cast<float>(count - 1));
    }
  }
  // One set of ranks for all of them.
  EXPECT_EQ(nccl_.Counts().ranks, 3U);
}

TEST_F(NcclTransportTest, FinishesItsRanksAtTheEnd) {
  Open(2);
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  const NcclDoubleCounts before = nccl_.Counts();
  ASSERT_EQ(Run(*transport_, transfer).code, Code::kOk);
  transport_.reset();
  const NcclDoubleCounts after = nccl_.Counts();
  EXPECT_EQ(after.finished - before.finished, 2U);
  EXPECT_EQ(after.aborted, before.aborted);
}

TEST_F(NcclTransportTest, ScalesInputsWhereTheDivisorIsNotTheNumberOfGpusAndThereAreNoKernels) {
  Open(2, {.kernels = false});
  for (const std::uint32_t divisor : {0U, 2U, 8U}) {
    const auto members = FloatMembers(100, {0, 1});
    Transfer transfer = AllReduce(1, 100);
    transfer.reduction = Reduction::kAverage;
    transfer.divisor = divisor;
    Describe(transfer, members);
    ASSERT_EQ(Run(*transport_, transfer).code, Code::kOk);
    const float by = divisor == 8 ? 8.0F : 2.0F;
    EXPECT_EQ(members[0].elements()[0], 3.0F / by);
    EXPECT_EQ(members[1].elements()[99], (3.0F + 2.0F * 99.0F) / by);
  }
  EXPECT_EQ(nccl_.Counts().reductions, 0U);
  EXPECT_EQ(transport_->ways().by_nccl, 3U);
  EXPECT_EQ(transport_->ways().by_kernels, 0U);
}

TEST_F(NcclTransportTest, GivesKernelsWhatNcclDoesNotTake) {
  std::vector<std::string> told;
  Open(2, {.on_kernels = [&told](const std::string& reason) { told.push_back(reason); }});
  ReachEachOther();
  const auto twice = FloatMembers(1000, {0, 1, 1});
  Transfer transfer = AllReduce(1, 1000);
  Describe(transfer, twice);
  Completion completion = Run(*transport_, transfer);
  ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
  EXPECT_EQ(twice[1].elements()[999], 5.0F + 3.0F * 999.0F);

  // A member in pinned memory of the host, as blocks have that go to other nodes.
  const auto beside = FloatMembers(1000, {0, 1});
  const PinnedPages page(*gpus_, 1000 * sizeof(float));
  const auto ones = Counting<float>(1000, 0.5F);
  std::memcpy(page.bytes(), ones.data(), 1000 * sizeof(float));
  transfer = AllReduce(2, 1000);
  Describe(transfer, beside);
  transfer.members_count = 3;
  transfer.members[2] = page.bytes();
  completion = Run(*transport_, transfer);
  ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
  EXPECT_EQ(beside[0].elements()[10], 3.5F + 3.0F * 10.0F);

  std::vector<GpuArray<std::int32_t>> whole;
  for (const std::int8_t device : {std::int8_t{0}, std::int8_t{1}}) {
    whole.emplace_back(*gpus_, device, std::vector<std::int32_t>{-7, 8, 30});
  }
  transfer = AllReduce(3, 3);
  transfer.dtype = DType::kInt32;
  transfer.reduction = Reduction::kAverage;
  transfer.divisor = 5;
  Describe(transfer, whole);
  completion = Run(*transport_, transfer);
  ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
  EXPECT_EQ(whole[1].elements(), (std::vector<std::int32_t>{-2, 3, 12}));
  EXPECT_EQ(transport_->ways().by_kernels, 3U);
  const std::string first =
      "member 2 is on GPU 1 like another, and NCCL takes one rank of each GPU";
  EXPECT_EQ(told, std::vector<std::string>{first});
  EXPECT_EQ(transport_->ways().by_nccl, 0U);
}

TEST_F(NcclTransportTest, CountsTransfersOfBothWaysAgainstItsLimit) {
  Open(2);
  ReachEachOther();
  const auto members = FloatMembers(10, {0, 1, 1});
  const auto ranks = FloatMembers(10, {0, 1});
  for (std::uint32_t i = 0; i < NcclTransport::kTransfersMax; ++i) {
    Transfer transfer = AllReduce(i, 10);
    i % 2 == 0 ? Describe(transfer, members) : Describe(transfer, ranks);
    transfer.count = 0;
    ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted) << i;
  }
  Transfer late = AllReduce(1000, 10);
  Describe(late, ranks);
  EXPECT_EQ(transport_->Post(late, MonotonicNow()), PostResult::kBusy);
  Describe(late, members);
  EXPECT_EQ(transport_->Post(late, MonotonicNow()), PostResult::kBusy);
  transport_->Cancel(0);
  std::vector<Completion> completions;
  while (completions.size() < NcclTransport::kTransfersMax) {
    transport_->DoWork(MonotonicNow(), completions);
  }
  EXPECT_EQ(transport_->NextLook(), kNever);
  EXPECT_EQ(transport_->Post(late, MonotonicNow()), PostResult::kAccepted);
  EXPECT_EQ(Await(*transport_).code, Code::kOk);
}

TEST_F(NcclTransportTest, RefusesWhatNeitherNcclNorKernelsCanDoWithBothReasons) {
  Open(2, {.kernels = false});
  const auto members = FloatMembers(10, {0, 1, 1});
  Transfer twice = AllReduce(1, 10);
  Describe(twice, members);
  Completion completion = Run(*transport_, twice);
  EXPECT_EQ(completion.code, Code::kInvalidArgument);
  EXPECT_EQ(completion.cause,
            "member 2 is on GPU 1 like another, and NCCL takes one rank of each GPU; and its own "
            "kernels cannot do it either: kernels are off");

  Transfer on_host = twice;
  on_host.devices[2] = kHost;
  completion = Run(*transport_, on_host);
  EXPECT_EQ(completion.code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(completion.cause, "member 2");

  Transfer integers = twice;
  integers.members_count = 2;
  integers.dtype = DType::kInt32;
  integers.reduction = Reduction::kAverage;
  integers.divisor = 8;
  completion = Run(*transport_, integers);
  EXPECT_EQ(completion.code, Code::kInvalidArgument);
  EXPECT_VARYING_TEXT(completion.cause);
  // Also nearly, which it would do for the divisor alone.
  Transfer both = twice;
  both.reduction = Reduction::kAverage;
  both.divisor = 8;
  EXPECT_EQ(Run(*transport_, both).code, Code::kInvalidArgument);
  EXPECT_EQ(members[0].elements(), Counting<float>(10, 1.0F));
  EXPECT_EQ(transport_->ways().by_nccl + transport_->ways().by_kernels, 0U);
}

// Between nodes: sums go to pinned memory of the host, and come back from there.
TEST_F(NcclTransportTest, ReducesToTheHostAndBroadcastsFromThere) {
  Open(3, {.piece_size = 4096});
  constexpr std::size_t kCount = 5001;
  const auto members = FloatMembers(kCount, {0, 1, 2});
  const PinnedPages scratch(*gpus_, kCount * sizeof(float));
  Transfer down = AllReduce(1, kCount);
  down.kind = Collective::kReduce;
  Describe(down, members);
  down.output = scratch.bytes();
  ASSERT_EQ(Run(*transport_, down).code, Code::kOk);
  EXPECT_EQ(members[1].elements(), Counting<float>(kCount, 2.0F));
  std::vector<float> sums(kCount);
  std::memcpy(sums.data(), scratch.bytes(), kCount * sizeof(float));
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(sums[i], 6.0F + 3.0F * static_cast<float>(i)) << i;
  }

  Transfer up = AllReduce(2, kCount);
  up.kind = Collective::kBroadcast;
  Describe(up, members);
  up.members_count = 4;
  up.root = 3;
  up.members[3] = scratch.bytes();
  ASSERT_EQ(Run(*transport_, up).code, Code::kOk);
  for (const auto& member : members) EXPECT_EQ(member.elements(), sums);
}

// On the host, memory is one piece also where the GPUs' lies in runs.
TEST_F(NcclTransportTest, KeepsHostMemoryInOnePieceWhereThereAreRuns) {
  Open(2, {.piece_size = 128});
  const auto members = FloatMembers(200, {0, 1});
  const PinnedPages scratch(*gpus_, 100 * sizeof(float));
  const transport::Run runs[] = {{.offset = 150 * sizeof(float), .count = 40},
                                 {.offset = 10 * sizeof(float), .count = 70}};
  Transfer down = AllReduce(1, 100);
  down.kind = Collective::kReduce;
  Describe(down, members);
  down.runs = runs;
  down.skip = 5;
  down.output = scratch.bytes();
  ASSERT_EQ(Run(*transport_, down).code, Code::kOk);
  std::vector<float> sums(100);
  std::memcpy(sums.data(), scratch.bytes(), 100 * sizeof(float));
  EXPECT_EQ(sums[0], 3.0F + 2.0F * 155.0F);
  EXPECT_EQ(sums[34], 3.0F + 2.0F * 189.0F);
  EXPECT_EQ(sums[35], 3.0F + 2.0F * 10.0F);
  EXPECT_EQ(sums[99], 3.0F + 2.0F * 74.0F);

  Transfer up = down;
  up.token = 2;
  up.kind = Collective::kBroadcast;
  up.root = 2;
  up.members_count = 3;
  up.members[2] = scratch.bytes();
  ASSERT_EQ(Run(*transport_, up).code, Code::kOk);
  for (const auto& member : members) {
    const auto first = static_cast<float>(member.device() + 1);
    EXPECT_EQ(member.elements()[154], first + 154.0F);
    EXPECT_EQ(member.elements()[155], sums[0]);
    EXPECT_EQ(member.elements()[189], sums[34]);
    EXPECT_EQ(member.elements()[190], first + 190.0F);
    EXPECT_EQ(member.elements()[10], sums[35]);
    EXPECT_EQ(member.elements()[74], sums[99]);
    EXPECT_EQ(member.elements()[75], first + 75.0F);
  }
}

TEST_F(NcclTransportTest, KeepsNoMoreSetsOfRanksThanItMay) {
  Open(4);
  std::uint64_t token = 0;
  for (std::int8_t a = 0; a < 4; ++a) {
    for (std::int8_t b = 0; b < 4; ++b) {
      if (a == b) continue;
      const auto members = FloatMembers(10, {a, b});
      Transfer transfer = AllReduce(++token, 10);
      Describe(transfer, members);
      const Completion completion = Run(*transport_, transfer);
      ASSERT_EQ(completion.code, Code::kOk) << completion.cause;
      ASSERT_EQ(members[0].elements()[0], static_cast<float>(a + b + 2));
    }
  }
  std::vector<Completion> completions;
  for (int i = 0; i < 10'000'000 && nccl_.Counts().ranks > 2 * NcclTransport::kGroupsMax; ++i) {
    transport_->DoWork(MonotonicNow(), completions);
  }
  EXPECT_EQ(nccl_.Counts().ranks, 2 * NcclTransport::kGroupsMax);
}

TEST_F(NcclTransportTest, NamesWhatKeptRanksFromForming) {
  Open(2);
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  nccl_.fail("ncclCommInitRankConfig", 2, 2);
  ids_abandoned_ = 1;
  Completion completion = Run(*transport_, transfer);
  EXPECT_EQ(completion.code, Code::kUnavailable);
  EXPECT_EQ(completion.cause,
            "let NCCL form ranks on GPUs 0, 1: form rank 1 of 2: NCCL says unhandled system error");
  nccl_.fail("ncclGetUniqueId", 1, 3);
  completion = Run(*transport_, transfer);
  EXPECT_EQ(completion.code, Code::kInternal);
  EXPECT_VARYING_TEXT(completion.cause);
  nccl_.fail("ncclCommGetAsyncError", 1, 1);
  ids_perhaps_abandoned_ = 1;
  EXPECT_EQ(Run(*transport_, transfer).code, Code::kInternal);
  // And the next one forms them.
  EXPECT_EQ(Run(*transport_, transfer).code, Code::kOk);
  EXPECT_EQ(members[0].elements()[0], 3.0F);
}

TEST_F(NcclTransportTest, EndsWhatIsUnderWayWithTheErrorThatNcclTells) {
  Open(2, {.piece_size = 128});
  const auto members = FloatMembers(1000, {0, 1});
  Transfer transfer = AllReduce(1, 1000);
  Describe(transfer, members);
  const std::uint64_t aborted = nccl_.Counts().aborted;
  nccl_.fail("error", 5, 6);
  const Completion completion = Run(*transport_, transfer);
  EXPECT_EQ(completion.code, Code::kPeerLost);
  // The cause is that of whichever rank noticed it first.
  EXPECT_NE(completion.cause.find("NCCL"), std::string::npos) << completion.cause;
  // The transfer ends when its kernels have seen the abort; NCCL counts it when the call returns.
  while (nccl_.Counts().aborted == aborted) std::this_thread::yield();
  const auto again = FloatMembers(1000, {0, 1});
  Describe(transfer, again);
  EXPECT_EQ(Run(*transport_, transfer).code, Code::kOk);
  EXPECT_EQ(again[1].elements()[0], 3.0F);
}

TEST_F(NcclTransportTest, EndsATransferWhoseCallsAreRefused) {
  Open(2);
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  ASSERT_EQ(Run(*transport_, transfer).code, Code::kOk);
  nccl_.fail("ncclAllReduce", 2, 4);
  Completion completion = Run(*transport_, transfer);
  EXPECT_EQ(completion.code, Code::kInvalidArgument);
  // The cause is that of whichever GPU's launch thread came second.
  for (const char* each : {"all_reduce", "10 float32", "NCCL"}) {
    EXPECT_NE(completion.cause.find(each), std::string::npos) << completion.cause;
  }
  nccl_.fail("ncclGroupEnd", 2, 1);  // the first forms ranks anew
  completion = Run(*transport_, transfer);
  EXPECT_EQ(completion.code, Code::kInternal);
  EXPECT_VARYING_TEXT(completion.cause);
  EXPECT_EQ(Run(*transport_, transfer).code, Code::kOk);
}

// A hang, as of a GPU that does not come: the others wait on their GPUs for ever.
TEST_F(NcclTransportTest, AbortsACancelledTransferThatHangs) {
  Open(2, {.cancel_patience_ns = 5 * kMillisecond});
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  nccl_.fail("hang", 1, 1);
  ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  AwaitHang();
  transport_->Cancel(1);
  const Completion completion = Await(*transport_);
  EXPECT_EQ(completion.code, Code::kCancelled);
  EXPECT_EQ(completion.cause, "cancelled; GPUs had not ended it after 5 ms, so NCCL was aborted");
  EXPECT_EQ(members[0].elements(), Counting<float>(10, 1.0F));
  EXPECT_EQ(Run(*transport_, transfer).code, Code::kOk);
}

TEST_F(NcclTransportTest, EndsOthersOfAnAbortedSetAndLetsTheRestBe) {
  Open(4, {.cancel_patience_ns = 5 * kMillisecond});
  const auto hanging = FloatMembers(10, {0, 1});
  const auto behind = FloatMembers(10, {0, 1});
  const auto beside = FloatMembers(10, {2, 3});
  Transfer first = AllReduce(1, 10);
  Describe(first, hanging);
  Transfer second = AllReduce(2, 10);
  Describe(second, behind);
  Transfer third = AllReduce(3, 10);
  Describe(third, beside);
  ASSERT_EQ(Run(*transport_, third).code, Code::kOk);
  nccl_.fail("hang", 1, 1);
  ASSERT_EQ(transport_->Post(first, MonotonicNow()), PostResult::kAccepted);
  ASSERT_EQ(transport_->Post(second, MonotonicNow()), PostResult::kAccepted);
  AwaitHang();
  ASSERT_EQ(transport_->Post(third, MonotonicNow()), PostResult::kAccepted);
  std::vector<Completion> completions;
  transport_->Cancel(1);
  while (completions.size() < 3) transport_->DoWork(MonotonicNow(), completions);
  EXPECT_EQ(completions[0].token, 1U);
  EXPECT_EQ(completions[0].code, Code::kCancelled);
  // It may have been launched by then, or not: with the set, or after it.
  EXPECT_TRUE(completions[1].code == Code::kCancelled || completions[1].code == Code::kOk);
  EXPECT_EQ(completions[2].code, Code::kOk) << completions[2].cause;
  EXPECT_EQ(beside[0].elements()[0], 14.0F);
}

TEST_F(NcclTransportTest, SaysWhenEvenTheAbortDoesNotEnd) {
  Open(2, {.cancel_patience_ns = 5 * kMillisecond, .abort_timeout_ns = 20 * kMillisecond});
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  nccl_.fail("hang", 1, 1);
  nccl_.hold_aborts(2);
  ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  transport_->Cancel(1);  // not given out yet: it just ends
  EXPECT_EQ(Await(*transport_).code, Code::kCancelled);
  ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  AwaitHang();
  transport_->Cancel(1);
  Completion completion = Await(*transport_);
  EXPECT_EQ(completion.code, Code::kInternal);
  EXPECT_VARYING_TEXT(completion.cause, "20 ms");
  completion = Run(*transport_, transfer);
  EXPECT_EQ(completion.code, Code::kInternal);
  EXPECT_VARYING_TEXT(completion.cause);
  nccl_.hold_aborts(0);
}

// Threads, network and memory of NCCL may take long to end, while GPUs have heeded it long ago.
// An abort that came before every GPU had its mark would have to return first, so the launching
// threads get a second to set them, beside whatever else the machine does.
TEST_F(NcclTransportTest, EndsWhatWasAbortedBeforeTheAbortReturns) {
  Open(2, {.cancel_patience_ns = kSecond});
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  nccl_.fail("hang", 1, 1);
  nccl_.hold_aborts(1);
  const std::uint64_t aborted = nccl_.Counts().aborted;
  ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  AwaitHang();
  transport_->Cancel(1);
  EXPECT_EQ(Await(*transport_).code, Code::kCancelled);
  EXPECT_EQ(nccl_.Counts().aborted, aborted);
  nccl_.hold_aborts(0);
}

// A nonblocking call that forms ranks does much before it returns.
TEST_F(NcclTransportTest, IsNotHeldUpByACallThatFormsRanks) {
  Open(2, {});
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  nccl_.hold_inits(1);
  ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  std::vector<Completion> completions;
  for (int i = 0; i < 100; ++i) transport_->DoWork(MonotonicNow(), completions);
  EXPECT_TRUE(completions.empty());
  nccl_.hold_inits(0);
  EXPECT_EQ(Await(*transport_).code, Code::kOk);
  EXPECT_EQ(members[0].elements()[0], 3.0F);
}

// NCCL's calls may block, whatever it was told; the abort frees the thread that makes them.
TEST_F(NcclTransportTest, AbortsACancelledTransferWhoseCallDoesNotReturn) {
  Open(2, {.cancel_patience_ns = 5 * kMillisecond});
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  ASSERT_EQ(Run(*transport_, transfer).code, Code::kOk);
  const auto before = members[0].elements();
  nccl_.fail("block", 2, 1);
  ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  AwaitHang();
  transport_->Cancel(1);
  const Completion completion = Await(*transport_);
  EXPECT_EQ(completion.code, Code::kCancelled) << completion.cause;
  EXPECT_EQ(members[0].elements(), before);
  EXPECT_EQ(Run(*transport_, transfer).code, Code::kOk);
}

TEST_F(NcclTransportTest, MayEndWhileACallDoesNotReturn) {
  Open(2, {.cancel_patience_ns = kMillisecond});
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  nccl_.fail("block", 1, 1);
  ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  AwaitHang();
  transport_.reset();
  EXPECT_EQ(members[0].elements(), Counting<float>(10, 1.0F));
}

TEST_F(NcclTransportTest, MayEndWhileGpusHang) {
  Open(2, {.cancel_patience_ns = kMillisecond});
  const auto members = FloatMembers(10, {0, 1});
  Transfer transfer = AllReduce(1, 10);
  Describe(transfer, members);
  nccl_.fail("hang", 1, 1);
  ASSERT_EQ(transport_->Post(transfer, MonotonicNow()), PostResult::kAccepted);
  AwaitHang();
  transport_.reset();
  EXPECT_EQ(members[0].elements(), Counting<float>(10, 1.0F));
}

}  // namespace
}  // namespace headrace::transport
