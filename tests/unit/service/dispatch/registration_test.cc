// Segments and tensors: what a record relies on is there in time, and is not taken away under it.
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/service/dispatch/expect.h"

namespace headrace::support {
namespace {

const JobSpec kSingle{.world_size = 1};
const ipc::Record kOnTensor = OnTensor(Collective::kAllReduce, DType::kFloat32, 8, TensorId{0});
const service::Tensor kTensor{
    .name = "conv1.weight", .segment = {}, .offset = 0, .count = 8, .dtype = DType::kFloat32};

const service::SegmentRemoved& Answer(HandDrivenNode& node, std::size_t index) {
  return *node.rpc().Of<service::SegmentRemoved>().at(index);
}

TEST(Dispatch, TakesARegistrationThatWasSentBeforeTheRecordThatReliesOnIt) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kSingle, 0, 0);
  node.Settle();
  a.Post(Barrier());
  // Both wait in the inbox while dispatch is about to read the ring.
  node.AddSegment(a, 4096);
  node.AddTensor(a, TensorId{0}, kTensor);
  a.Post(kOnTensor);
  node.Settle();
  ExpectOk(a, 2);
}

TEST(Dispatch, RefusesATensorThatIsNotThereAndTakesItOnceItIs) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kSingle, 0);
  a.Post(kOnTensor);
  node.Settle();
  ExpectFailed(a, 1, Code::kNotFound, {"rank 0 (pid 1000)", "tensor 0"});
  node.AddTensor(a, TensorId{0}, kTensor);
  a.Post(kOnTensor);
  node.Settle();
  ExpectOk(a, 2);
  node.Send(service::RemoveTensors{a.id(), TensorId{0}, 1});
  a.Post(kOnTensor);
  node.Settle();
  ExpectFailed(a, 3, Code::kNotFound, {"tensor 0"});
}

TEST(Dispatch, NamesTheTensorInErrors) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 2, .timeout_ms = 10}, 0);
  node.AddTensor(a, TensorId{0}, kTensor);
  a.Post(kOnTensor);
  node.Settle();
  node.Advance(10 * kMillisecond);
  ExpectFailed(a, 1, Code::kTimeout, {"operation 1", "float32", "conv1.weight"});
}

TEST(Dispatch, RemovesASegmentThatNothingUses) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kSingle, 0);
  node.Send(service::RemoveSegment{a.id(), SegmentId{0}, 5});
  node.Settle();
  EXPECT_EQ(Answer(node, 0).token, 5U);
  EXPECT_TRUE(Answer(node, 0).status.ok());
  EXPECT_EQ(node.watch_tap().mappings_discarded, 1U);
  a.Post(OnSegment(Collective::kAllReduce, DType::kUInt8, 1));
  node.Settle();
  ExpectFailed(a, 1, Code::kNotFound, {"segment 0"});
  node.Send(service::RemoveSegment{a.id(), SegmentId{0}, 6});
  node.Settle();
  EXPECT_EQ(Answer(node, 1).status.code(), Code::kNotFound);
}

TEST(Dispatch, RefusesToRemoveASegmentThatHoldsTensors) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kSingle, 0);
  node.AddTensor(a, TensorId{0}, kTensor);
  node.Send(service::RemoveSegment{a.id(), SegmentId{0}, 5});
  node.Settle();
  EXPECT_EQ(Answer(node, 0).status.code(), Code::kInvalidArgument);
  node.Send(service::RemoveTensors{a.id(), TensorId{0}, 1});
  node.Send(service::RemoveSegment{a.id(), SegmentId{0}, 6});
  node.Settle();
  EXPECT_TRUE(Answer(node, 1).status.ok());
}

TEST(Dispatch, RefusesToRemoveASegmentThatAnOpenOperationUses) {
  for (const std::uint64_t element : {std::uint64_t{0}, std::uint64_t{4095}}) {
    HandDrivenNode node;
    const JobSpec pair{.world_size = 2, .timeout_ms = 100};
    ClientEnd& a = node.Attach(pair, 0, 4096);
    node.Attach(pair, 1, 4096);
    a.Post(OnSegment(Collective::kAllReduce, DType::kUInt8, 1, element));
    node.Send(service::RemoveSegment{a.id(), SegmentId{0}, 1});
    node.Settle();
    // The message came before the record was read: then it is the record that fails.
    EXPECT_TRUE(Answer(node, 0).status.ok());
    ExpectFailed(a, 1, Code::kNotFound, {"segment 0"});

    node.AddSegment(a, 4096);
    ipc::Record record = OnSegment(Collective::kAllReduce, DType::kUInt8, 1, element);
    record.segment = 1;
    a.Post(record);
    node.Settle();
    node.Send(service::RemoveSegment{a.id(), SegmentId{1}, 2});
    node.Settle();
    EXPECT_EQ(Answer(node, 1).status.code(), Code::kBusy);
    EXPECT_NE(Answer(node, 1).status.error().text().find("operation 2"), std::string::npos);
    node.Advance(100 * kMillisecond);
    node.Send(service::RemoveSegment{a.id(), SegmentId{1}, 3});
    node.Settle();
    EXPECT_TRUE(Answer(node, 2).status.ok());
    EXPECT_EQ(node.discarded_in_use(), 0U);
  }
}

TEST(Dispatch, RefusesARecordOnATensorWhoseSegmentIsGone) {
  // A client may release a segment and register tensors in it at the same time.
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kSingle, 0);
  node.Send(service::RemoveSegment{a.id(), SegmentId{0}, 1});
  node.AddTensor(a, TensorId{0}, kTensor);
  a.Post(kOnTensor);
  node.Settle();
  ExpectFailed(a, 1, Code::kNotFound, {"tensor 0", "conv1.weight", "segment 0"});
}

TEST(Dispatch, DiscardsASegmentThatComesAfterTheLeaseHasEnded) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach(kSingle, 0);
  node.Close(a, true, "left the job");
  node.AddSegment(a, 4096);
  node.AddTensor(a, TensorId{0}, kTensor);
  node.Send(service::RemoveTensors{a.id(), TensorId{0}, 1});
  node.Send(service::RemoveSegment{a.id(), SegmentId{0}, 1});
  node.Settle();
  EXPECT_EQ(node.watch_tap().mappings_discarded, 1U);
  EXPECT_TRUE(node.rpc().Of<service::SegmentRemoved>().empty());
}

TEST(Dispatch, AnswersAPing) {
  HandDrivenNode node;
  node.Send(service::Ping{42});
  node.Settle();
  ASSERT_EQ(node.rpc().Of<service::Pong>().size(), 1U);
  EXPECT_EQ(node.rpc().Of<service::Pong>()[0]->token, 42U);
}

}  // namespace
}  // namespace headrace::support
