// Operations on GPUs' memory on one node: their lane, their words, and what goes wrong.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/gpu_world.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

constexpr std::uint64_t kCount = 1000;

class GpuOperations : public GpuTest {
 protected:
  GpuOperations() {
    node_ =
        std::make_unique<HandDrivenNode>(Loopback({}), std::uint64_t{1} << 20,
                                         std::vector<transport::NetworkTransport*>{}, gpus_.get());
  }
  ~GpuOperations() override { node_.reset(); }

  void AttachOnGpus(std::uint32_t ranks_count) {
    job_.world_size = ranks_count;
    for (std::uint32_t rank = 0; rank < ranks_count; ++rank) {
      ranks_.push_back(&node_->AttachOnGpu(job_, rank, static_cast<int>(rank % 2)));
      Fill(*ranks_.back(), static_cast<float>(100 * rank));
    }
    node_->Settle();
  }
  static ipc::Record Sum(std::uint64_t offset = 0) {
    return OnSegment(Collective::kAllReduce, DType::kFloat32, kCount, offset);
  }
  void ExpectSums() const {
    const auto world = static_cast<float>(job_.world_size);
    for (const ClientEnd* rank : ranks_) {
      for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(rank->Elements<float>()[i],
                  100 * world * (world - 1) / 2 + world * static_cast<float>(i));
      }
    }
  }
  std::uint32_t Reason(std::uint64_t sequence) const {
    return node_->QueueRow(job_.id, sequence).value().reason;
  }

  JobSpec job_;
  std::unique_ptr<HandDrivenNode> node_;
  std::vector<ClientEnd*> ranks_;
};

TEST_F(GpuOperations, AreCarriedOutOnTheLaneOfGpus) {
  AttachOnGpus(3);
  for (ClientEnd* rank : ranks_) rank->Post(Sum());
  node_->Settle();
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, 1);
  ExpectSums();
  EXPECT_EQ(node_->LaneRow(0).stages_ended, 0U);
  EXPECT_EQ(node_->LaneRow(1).stages_ended, 1U);
  ASSERT_EQ(node_->gpu_transport().taken.size(), 1U);
  const transport::Transfer& transfer = node_->gpu_transport().taken[0];
  EXPECT_EQ(transfer.devices[0], 0);
  EXPECT_EQ(transfer.devices[1], 1);
  EXPECT_EQ(transfer.devices[2], 0);
}

TEST_F(GpuOperations, MoveBesideThoseOfHostMemoryOfTheSameJob) {
  AttachOnGpus(2);
  for (ClientEnd* rank : ranks_) {
    EXPECT_EQ(node_->AddSegment(*rank, 65536), SegmentId{1});
    ipc::Record on_host = Sum();
    on_host.segment = 1;
    rank->Post(on_host);
    rank->Post(Sum());
  }
  node_->gpu_transport().stopped = true;
  node_->Settle();
  for (const ClientEnd* rank : ranks_) {
    ExpectOk(*rank, 1);
    ExpectOpen(*rank, 2);
  }
  node_->gpu_transport().stopped = false;
  node_->Settle();
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, 2);
  ExpectSums();
}

TEST_F(GpuOperations, FailByNameWhenOneRankHasHostMemory) {
  job_.world_size = 2;
  ranks_ = {&node_->AttachOnGpu(job_, 0, 1), &node_->Attach(job_, 1)};
  for (ClientEnd* rank : ranks_) rank->Post(Sum());
  node_->Settle();
  for (const ClientEnd* rank : ranks_) {
    ExpectFailed(*rank, 1, Code::kMismatch, {"rank 0 (pid 1000)", "on GPU 1", "rank 1 (pid 1001)"});
  }
  // What moves nothing is in no memory.
  for (ClientEnd* rank : ranks_) {
    rank->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 0));
    rank->Post(Barrier());
  }
  node_->Settle();
  for (const ClientEnd* rank : ranks_) {
    ExpectOk(*rank, 2);
    ExpectOk(*rank, 3);
  }
}

TEST_F(GpuOperations, WaitForTheReadyWordOfEveryRank) {
  AttachOnGpus(2);
  ranks_[0]->Post(Awaiting(Sum()));
  node_->Settle();
  EXPECT_EQ(Reason(1), static_cast<std::uint32_t>(ipc::WaitReason::kRankNotReady));
  ranks_[1]->Post(Awaiting(Sum()));
  node_->Settle();
  EXPECT_EQ(Reason(1), static_cast<std::uint32_t>(ipc::WaitReason::kGpuNotReady));
  EXPECT_EQ(node_->QueueRow(job_.id, 1)->ranks_missing, 0b11U);
  node_->Advance(5 * kMillisecond);
  WriteReadyWord(*ranks_[0], 1);
  node_->Advance(kMillisecond);
  EXPECT_EQ(node_->QueueRow(job_.id, 1)->ranks_missing, 0b10U);
  EXPECT_EQ(node_->QueueRow(job_.id, 1)->wait_argument, 1U);
  // What others wait for is waited for since the first was ready, not since it was announced.
  EXPECT_EQ(node_->QueueRow(job_.id, 1)->posted_ns, node_->now);
  EXPECT_TRUE(node_->gpu_transport().taken.empty());
  node_->Advance(kMillisecond);
  WriteReadyWord(*ranks_[1], 1);
  node_->Settle();
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, 1);
  ExpectSums();
  EXPECT_EQ(node_->RankRow(job_.id, 1)->last_posts, 1U);
  EXPECT_EQ(node_->RankRow(job_.id, 1)->late_ns, kMillisecond);
}

TEST_F(GpuOperations, TakeWordsThatComeInAnotherOrderThanTheRecords) {
  AttachOnGpus(2);
  for (ClientEnd* rank : ranks_) {
    rank->Post(Awaiting(Sum()));
    rank->Post(Barrier());
    rank->Post(Awaiting(Sum(4 * kCount)));
  }
  for (ClientEnd* rank : ranks_) WriteReadyWord(*rank, 3);
  node_->Settle();
  for (const ClientEnd* rank : ranks_) {
    ExpectOpen(*rank, 1);
    ExpectOk(*rank, 2);
    ExpectOk(*rank, 3);
  }
  for (ClientEnd* rank : ranks_) WriteReadyWord(*rank, 1);
  node_->Settle();
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, 1);
}

TEST_F(GpuOperations, AreLookedAtAtAPaceAndOnlyWhileOneIsAwaited) {
  AttachOnGpus(2);
  EXPECT_EQ(node_->dispatch().NextDeadline(), kNever);
  for (ClientEnd* rank : ranks_) rank->Post(Awaiting(Sum()));
  node_->Settle();
  EXPECT_GT(node_->dispatch().NextDeadline(), node_->now);
  EXPECT_LE(node_->dispatch().NextDeadline(), node_->now + 100 * kMicrosecond);
  for (ClientEnd* rank : ranks_) WriteReadyWord(*rank, 1);
  node_->Advance(100 * kMicrosecond);
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, 1);
  EXPECT_FALSE(node_->TurnDispatch());
  // An operation that has ended may have left a deadline to look at, nothing sooner.
  EXPECT_GT(node_->dispatch().NextDeadline(), node_->now + kSecond);
}

TEST_F(GpuOperations, TimeOutWhileAGpuDoesNotCome) {
  AttachOnGpus(2);
  ipc::Record record = Awaiting(Sum());
  record.timeout_ms = 50;
  for (ClientEnd* rank : ranks_) rank->Post(record);
  WriteReadyWord(*ranks_[0], 1);
  node_->Settle();
  node_->Advance(100 * kMillisecond);
  for (const ClientEnd* rank : ranks_) {
    ExpectFailed(*rank, 1, Code::kTimeout, {"rank 1", "pid 1001"});
  }
  // The word comes after all: it is of nothing any more, and the slot's next record does not mind.
  WriteReadyWord(*ranks_[1], 1);
  node_->Advance(kMillisecond);
  for (ClientEnd* rank : ranks_) rank->Post(Sum());
  node_->Settle();
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, 2);
  ExpectSums();
}

TEST_F(GpuOperations, EndAndGiveTheirMemoryBackWhenTheRankIsLostWhileItsGpuIsAwaited) {
  AttachOnGpus(2);
  for (ClientEnd* rank : ranks_) rank->Post(Awaiting(Sum()));
  WriteReadyWord(*ranks_[0], 1);
  node_->Settle();
  EXPECT_EQ(node_->JobRow(job_.id)->device_bytes[1], ranks_[1]->Memory().size());
  node_->Close(*ranks_[1], false, "exited or was killed");
  node_->Advance(kMillisecond);
  ExpectFailed(*ranks_[0], 1, Code::kPeerLost, {"rank 1", "pid 1001"});
  EXPECT_TRUE(node_->Discarded(*ranks_[1]));
  EXPECT_EQ(node_->discarded_in_use(), 0U);
  EXPECT_EQ(node_->JobRow(job_.id)->device_bytes[0], ranks_[0]->Memory().size());
  EXPECT_EQ(node_->JobRow(job_.id)->device_bytes[1], 0U);
}

TEST_F(GpuOperations, KeepTheMemoryOfALostRankUntilTheLaneHasLetGo) {
  AttachOnGpus(2);
  node_->gpu_transport().stopped = true;
  for (ClientEnd* rank : ranks_) rank->Post(Sum());
  node_->TurnDispatch();
  node_->TurnGpuLane();
  ASSERT_EQ(node_->gpu_transport().taken.size(), 1U);
  node_->Close(*ranks_[0], false, "exited or was killed");
  node_->TurnDispatch();
  EXPECT_FALSE(node_->Discarded(*ranks_[0])) << "its memory is on the lane";
  node_->Settle();
  EXPECT_TRUE(node_->Discarded(*ranks_[0]));
  ExpectFailed(*ranks_[1], 1, Code::kPeerLost, {"rank 0 (pid 1000)"});
}

TEST_F(GpuOperations, AreReportedLateByTheGpuThatDoesNotCome) {
  AttachOnGpus(2);
  node_->dispatch().ReportLate(kSecond);
  for (ClientEnd* rank : ranks_) rank->Post(Awaiting(Sum()));
  WriteReadyWord(*ranks_[0], 1);
  node_->Advance(kMillisecond);
  node_->Advance(2 * kSecond);
  ASSERT_FALSE(node_->watch_tap().events.empty());
  EXPECT_TEXT(node_->watch_tap().events.back(), "rank 1", "pid 1001");
}

TEST_F(GpuOperations, OfARudeClientDoNotOverflowWhatIsAwaited) {
  AttachOnGpus(2);
  for (std::uint64_t i = 0; i < 3 * ipc::kOperationsMax; ++i) {
    ranks_[0]->Post(Awaiting(OnSegment(Collective::kAllReduce, DType::kFloat32, 1)), true);
    if (i % 16 == 0) node_->TurnDispatch();
  }
  node_->Settle();
  node_->Close(*ranks_[0], false, "exited or was killed");
  node_->Advance(kMillisecond);
  EXPECT_TRUE(node_->Discarded(*ranks_[0]));
}

// A stream waits for one operation before it says that the memory is ready for the next; the host
// has posted both long before.
TEST_F(GpuOperations, MayBePostedOnTheSameMemoryOneBehindTheOther) {
  AttachOnGpus(2);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    for (ClientEnd* rank : ranks_) rank->Post(Awaiting(Sum()));
  }
  node_->Settle();
  for (std::uint64_t number = 1; number <= 3; ++number) {
    for (ClientEnd* rank : ranks_) WriteReadyWord(*rank, number);
    node_->Settle();
    for (const ClientEnd* rank : ranks_) ExpectOk(*rank, number);
  }
}

TEST_F(GpuOperations, AreRefusedWhenTheirWordComesWhileTheMemoryIsInUse) {
  AttachOnGpus(2);
  node_->gpu_transport().stopped = true;
  for (ClientEnd* rank : ranks_) {
    rank->Post(Awaiting(Sum()));
    rank->Post(Awaiting(Sum(400)));
    for (const std::uint64_t number : {1U, 2U}) WriteReadyWord(*rank, number);
  }
  node_->Settle();
  for (const ClientEnd* rank : ranks_) {
    ExpectOpen(*rank, 1);
    ExpectFailed(*rank, 2, Code::kInvalidArgument,
                 {"operation 1", "3600 bytes overlap", "400", "3999", "segment 0"});
  }
  node_->gpu_transport().stopped = false;
  node_->Settle();
  for (const ClientEnd* rank : ranks_) ExpectOk(*rank, 1);
}

// Twice as many as its channel has completion words: no honest client does that.
TEST_F(GpuOperations, AwaitMoreWordsThanAnHonestClientHasRoomFor) {
  AttachOnGpus(2);
  ipc::Record sum = Sum();
  sum.flags |= ipc::kRecordAwaitsWord;
  for (std::uint64_t i = 0; i < ipc::kOperationsMax; ++i) {
    ranks_[0]->Post(sum, true);
    ipc::Record send = SendTo(1, 1, i);
    send.flags |= ipc::kRecordAwaitsWord;
    ranks_[0]->Post(send, true);
    node_->Settle();
  }
  EXPECT_EQ(node_->JobRow(job_.id)->operations_open, 2 * ipc::kOperationsMax);
  const std::uint64_t received = ranks_[1]->Post(ReceiveFrom(0, 1, ipc::kOperationsMax - 1));
  WriteReadyWord(*ranks_[0], 2 * ipc::kOperationsMax);
  node_->Settle();
  ExpectOk(*ranks_[1], received);
}

class GpuGradients : public GpuOperations {
 protected:
  static Blocks TwoBlocks() { return {{{2, 0, 300}}, {{0, 0, 400}, {1, 0, 300}}}; }
  void HandInAll(const std::shared_ptr<const plan::Plan>& plan = PlanOf(TwoBlocks())) {
    AttachOnGpus(2);
    for (ClientEnd* rank : ranks_) HandIn(*node_, *rank, layout_);
    Adopt(*node_, job_.id, plan);
    node_->Settle();
  }
  std::uint64_t PostAwaiting(ClientEnd& rank, std::uint32_t tensor) {
    ipc::GradientRecord record = GradientOf(*layout_, tensor);
    record.flags |= ipc::kRecordAwaitsWord;
    record.backward_ns = static_cast<std::uint64_t>(kSecond);
    record.posted_ns = record.backward_ns;
    return PostGradient(rank, record);
  }

  std::shared_ptr<const service::Layout> layout_ = PackedLayout({400, 300, 300});
};

// A segment's number may be another segment's by the time that dispatch hears of the layout.
TEST_F(GpuGradients, HaveNoResidualsInMemoryThatNobodyMayTouchFromHere) {
  AttachOnGpus(2);
  HandIn(*node_, *ranks_[0], layout_, {{}, 8192});
  node_->Settle();
  const std::uint64_t posted = PostGradient(*ranks_[0], *layout_, 0);
  node_->Settle();
  ExpectFailed(*ranks_[0], posted, Code::kInvalidArgument, {"has handed in no layout"});
}

TEST_F(GpuGradients, MoveBlockByBlockAsTheirWordsCome) {
  HandInAll();
  for (ClientEnd* rank : ranks_) {
    for (const std::uint32_t tensor : {2U, 1U, 0U}) PostAwaiting(*rank, tensor);
  }
  node_->Settle();
  EXPECT_TRUE(node_->gpu_transport().taken.empty());
  for (ClientEnd* rank : ranks_) WriteReadyWord(*rank, 1);
  node_->Settle();
  for (const ClientEnd* rank : ranks_) {
    ExpectOk(*rank, 1);
    ExpectOpen(*rank, 2);
  }
  for (ClientEnd* rank : ranks_) WriteReadyWord(*rank, 3);
  node_->Settle();
  const auto head = node_->QueueRow(job_.id, 2);
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->reason, static_cast<std::uint32_t>(ipc::WaitReason::kGpuNotReady));
  for (ClientEnd* rank : ranks_) WriteReadyWord(*rank, 2);
  node_->Settle();
  for (const ClientEnd* rank : ranks_) {
    ExpectOk(*rank, 2);
    ExpectOk(*rank, 3);
  }
  ExpectSums();
}

TEST_F(GpuGradients, AreMeasuredByWhenTheirWordsWereSeen) {
  HandInAll();
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (ClientEnd* rank : ranks_) {
      for (const std::uint32_t tensor : {2U, 1U, 0U}) PostAwaiting(*rank, tensor);
    }
    node_->Settle();
    node_->now = kSecond + 40 * kMillisecond;
    for (ClientEnd* rank : ranks_) {
      for (std::uint64_t back = 0; back < 3; ++back) WriteReadyWord(*rank, rank->posted() - back);
    }
    node_->Settle();
  }
  const auto seen = node_->peers().Of<service::TimesSeen>();
  ASSERT_EQ(seen.size(), 1U);
  for (const double release_s : seen[0]->times.release_s) EXPECT_NEAR(release_s, 0.040, 1e-6);
}

TEST_F(GpuGradients, OfHostMemoryBesideThoseOfGpusAreAMismatch) {
  job_.world_size = 2;
  ranks_ = {&node_->AttachOnGpu(job_, 0, 0), &node_->Attach(job_, 1)};
  for (ClientEnd* rank : ranks_) HandIn(*node_, *rank, layout_);
  node_->Settle();
  PostGradient(*ranks_[1], *layout_, 0);
  node_->Settle();
  ExpectFailed(*ranks_[1], 1, Code::kMismatch,
               {"rank 0 (pid 1000)", "on GPU 0", "rank 1 (pid 1001)"});
}

TEST_F(GpuGradients, TimeOutByTheNameOfTheGpuThatDoesNotCome) {
  HandInAll();
  ipc::GradientRecord record = GradientOf(*layout_, 2);
  record.flags |= ipc::kRecordAwaitsWord;
  record.timeout_ms = 50;
  for (ClientEnd* rank : ranks_) PostGradient(*rank, record);
  WriteReadyWord(*ranks_[0], 1);
  node_->Settle();
  node_->Advance(100 * kMillisecond);
  for (const ClientEnd* rank : ranks_) {
    ExpectFailed(*rank, 1, Code::kTimeout, {"rank 1", "pid 1001"});
  }
}

}  // namespace
}  // namespace headrace::support
