// From a record, which a stranger wrote, to an operation: every field is refused by its name.
#include "service/dispatch/intake/record_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "ipc/base/codecs.h"
#include "service/session/send_notices.h"
#include "tests/support/client_end.h"
#include "tests/support/expect_text.h"

namespace headrace::service {
namespace {

using support::OnSegment;
using support::OnTensor;

constexpr std::uint32_t kRanks = 4;
constexpr std::size_t kSegmentSize = 8192;
constexpr std::uint64_t kTensorOffset = 64;
constexpr std::uint64_t kTensorCount = 100;

SessionIdentity Identity() {
  SessionIdentity identity;
  identity.world_size = kRanks;
  identity.timeout_ms = 7000;
  return identity;
}

class CheckRecordTest : public ::testing::Test {
 protected:
  CheckRecordTest() {
    ipc::Channel::Created created = ipc::Channel::Create().value();
    session_ = std::make_unique<Session>(Identity(), ipc::Channel::Open(created.fd.get()).value(),
                                         UniqueFd());
    session_->AddSegment(SegmentId{2},
                         ipc::CreateSealedMemory("headrace-test", kSegmentSize).value().mapping);
    session_->AddTensors(TensorId{5}, {{.name = "w",
                                        .segment = SegmentId{2},
                                        .offset = kTensorOffset,
                                        .count = kTensorCount,
                                        .dtype = DType::kFloat32}});
  }

  static ipc::Record Good() {
    ipc::Record record = OnSegment(Collective::kAllReduce, DType::kFloat32, 8);
    record.segment = 2;
    record.commit = 1;
    return record;
  }
  static ipc::Record GoodTensor() {
    ipc::Record record = OnTensor(Collective::kAllReduce, DType::kFloat32, 8, TensorId{5});
    record.commit = 1;
    return record;
  }
  Result<OperationSpec> Check(const ipc::Record& record) const {
    return CheckRecord(record, *session_);
  }

  void ExpectRefused(const ipc::Record& record, Code code, const std::string& part) const {
    const Result<OperationSpec> spec = Check(record);
    ASSERT_FALSE(spec.ok()) << part;
    EXPECT_EQ(CodeName(spec.error().code()), CodeName(code)) << spec.error().text();
    EXPECT_TEXT(spec.error().text(), part);
  }
  const std::byte* segment() const { return session_->FindSegment(SegmentId{2}).data(); }

  std::unique_ptr<Session> session_;
};

TEST_F(CheckRecordTest, TakesAGoodRecordWithEverythingItSays) {
  ipc::Record record = Good();
  record.offset = 16;
  record.commit = 9;
  record.timeout_ms = 5;
  record.reduction = static_cast<std::uint8_t>(Reduction::kMax);
  const Result<OperationSpec> spec = Check(record);
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(spec->sequence, 9U);
  EXPECT_EQ(spec->kind, Collective::kAllReduce);
  EXPECT_EQ(spec->dtype, DType::kFloat32);
  EXPECT_EQ(spec->reduction, Reduction::kMax);
  EXPECT_EQ(spec->count, 8U);
  EXPECT_EQ(spec->data, segment() + 16);
  EXPECT_EQ(spec->segment, SegmentId{2});
  EXPECT_EQ(spec->timeout_ms, 5U);
  EXPECT_EQ(spec->Bytes(), 32U);
}

TEST_F(CheckRecordTest, TakesARangeOfATensor) {
  ipc::Record record = GoodTensor();
  record.offset = 40;
  const Result<OperationSpec> spec = Check(record);
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(spec->data, segment() + kTensorOffset + 40);
  EXPECT_EQ(spec->tensor, TensorId{5});
}

TEST_F(CheckRecordTest, TakesTheSessionsTimeoutWhenTheRecordHasNone) {
  EXPECT_EQ(Check(Good())->timeout_ms, 7000U);
}

TEST_F(CheckRecordTest, RefusesEachFieldByItsName) {
  const auto refuse = [this](auto change, const std::string& part) {
    ipc::Record record = Good();
    change(record);
    ExpectRefused(record, Code::kInvalidArgument, part);
  };
  for (const int bad : {0, 12, 255}) {
    const auto value = static_cast<std::uint8_t>(bad);
    const std::string is = " is " + std::to_string(value);
    refuse([value](ipc::Record& r) { r.kind = value; }, "field kind" + is);
    refuse([value](ipc::Record& r) { r.reduction = value; }, "field reduction" + is);
  }
  for (const int bad : {0, 8, 255}) {
    const auto value = static_cast<std::uint8_t>(bad);
    refuse([value](ipc::Record& r) { r.dtype = value; }, "field dtype is " + std::to_string(value));
  }
  refuse([](ipc::Record& r) { r.flags = 1; }, "field flags is 1");
  refuse([](ipc::Record& r) { r.flags = 4; }, "field flags is 4");
  refuse([](ipc::Record& r) { r.flags = 8; }, "field flags is 8");
  refuse([](ipc::Record& r) { r.parts = 2; }, "field parts is 2");
  refuse([](ipc::Record& r) { r.tag = 3; }, "field tag is 3");
  refuse([](ipc::Record& r) { r.root = kRanks; }, "field root is 4: the job has 4 ranks");
  refuse([](ipc::Record& r) { r.root = UINT32_MAX; }, "field root is 4294967295");
  refuse([](ipc::Record& r) { r.timeout_ms = kTimeoutMsMax + 1; }, "field timeout_ms is 86400001");
}

TEST_F(CheckRecordTest, TakesACodecThatNeedsNoResidualOfASumOfFloats) {
  ipc::Record record = Good();
  EXPECT_EQ(Check(record)->codec, Codec());
  for (const Codec codec : {Codec::kBFloat16, Codec::kFloat16, Codec::kInt8Stochastic,
                            Codec::kInt4Stochastic, Codec::kLossless}) {
    record.tag = SteeringValue(codec);
    const Result<OperationSpec> spec = Check(record);
    ASSERT_TRUE(spec.ok()) << spec.error().text();
    EXPECT_EQ(spec->codec, codec);
  }
  for (const Codec codec : {Codec::kInt8, Codec::kInt4, Codec::kFloat8E4M3, Codec::kFloat8E5M2,
                            Codec::kSign, Codec::kTopK, Codec::kRandomK}) {
    record.tag = SteeringValue(codec);
    ExpectRefused(record, Code::kInvalidArgument, "field tag");
  }
  for (const std::uint64_t tag :
       {std::uint64_t{13}, std::uint64_t{0x101}, std::uint64_t{0x10001}, UINT64_MAX}) {
    record.tag = tag;
    ExpectRefused(record, Code::kInvalidArgument, "field tag");
  }
  record.tag = SteeringValue(Codec::kBFloat16);
  record.reduction = static_cast<std::uint8_t>(Reduction::kMax);
  ExpectRefused(record, Code::kInvalidArgument, "field tag");
  record.reduction = static_cast<std::uint8_t>(Reduction::kAverage);
  EXPECT_TRUE(Check(record).ok());
  record.dtype = static_cast<std::uint8_t>(DType::kInt32);
  ExpectRefused(record, Code::kInvalidArgument, "field tag");
  record.dtype = static_cast<std::uint8_t>(DType::kFloat32);
  record.kind = static_cast<std::uint8_t>(Collective::kBroadcast);
  ExpectRefused(record, Code::kInvalidArgument, "field tag");
}

// The node of its other side would take the notice of it for none, and end the connection.
TEST_F(CheckRecordTest, RefusesMessagesThatNoNodeTakesNoticeOf) {
  ipc::Record record = Good();
  record.kind = static_cast<std::uint8_t>(ipc::kSend);
  record.root = 1;
  record.count = kSendBytesMax / sizeof(float) + 1;
  const Result<OperationSpec> spec = Check(record);
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(spec.error().text(), testing::HasSubstr("count"));
  EXPECT_THAT(spec.error().text(), testing::HasSubstr(std::to_string(kSendBytesMax)));
}

TEST_F(CheckRecordTest, TakesSendsAndReceivesWithTheirSides) {
  ipc::Record record = Good();
  const std::uint32_t own = session_->identity().rank;
  const std::uint32_t other = (own + 1) % kRanks;
  record.kind = static_cast<std::uint8_t>(ipc::kSend);
  record.root = other;
  record.tag = UINT64_MAX;
  Result<OperationSpec> spec = Check(record);
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(spec->source, own);
  EXPECT_EQ(spec->target, other);
  EXPECT_EQ(spec->tag, UINT64_MAX);
  EXPECT_EQ(spec->root, 0U);
  record.kind = static_cast<std::uint8_t>(ipc::kReceive);
  spec = Check(record);
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(spec->source, other);
  EXPECT_EQ(spec->target, own);
  record.root = ipc::kAnyRank;
  EXPECT_EQ(Check(record)->source, ipc::kAnyRank);
  record.root = own;
  ExpectRefused(record, Code::kInvalidArgument, "");
  record.root = kRanks;
  ExpectRefused(record, Code::kInvalidArgument, "");
}

TEST_F(CheckRecordTest, TakesTheLargestTimeout) {
  ipc::Record record = Good();
  record.timeout_ms = kTimeoutMsMax;
  EXPECT_TRUE(Check(record).ok());
}

TEST_F(CheckRecordTest, RefusesMemoryThatIsNotThere) {
  ipc::Record record = Good();
  record.segment = 3;
  ExpectRefused(record, Code::kNotFound, "segment 3");
  record.segment = UINT32_MAX;
  ExpectRefused(record, Code::kNotFound, "segment 4294967295");
  for (const std::uint32_t tensor : {0U, 4U, 6U, UINT32_MAX - 1}) {
    ipc::Record on_tensor = GoodTensor();
    on_tensor.tensor = tensor;
    ExpectRefused(on_tensor, Code::kNotFound, "tensor " + std::to_string(tensor));
  }
}

TEST_F(CheckRecordTest, RefusesATensorWhoseSegmentIsGone) {
  (void)session_->RemoveSegment(SegmentId{2});
  ExpectRefused(GoodTensor(), Code::kNotFound, "segment 2");
}

TEST_F(CheckRecordTest, RefusesATensorOfAnotherType) {
  ipc::Record record = GoodTensor();
  record.dtype = static_cast<std::uint8_t>(DType::kInt32);
  ExpectRefused(record, Code::kInvalidArgument, "int32");
}

TEST_F(CheckRecordTest, RefusesAnOffsetBetweenElements) {
  for (const std::uint64_t offset : {1U, 2U, 3U, 7U}) {
    ipc::Record record = Good();
    record.offset = offset;
    ExpectRefused(record, Code::kInvalidArgument, "field offset is " + std::to_string(offset));
  }
  ipc::Record bytes = OnSegment(Collective::kAllReduce, DType::kUInt8, 1, 3);
  bytes.segment = 2;
  EXPECT_TRUE(Check(bytes).ok()) << "bytes may lie anywhere";
}

TEST_F(CheckRecordTest, TakesARangeUpToTheExactEndAndNotBeyond) {
  ipc::Record record = Good();
  record.count = kSegmentSize / 4;
  EXPECT_TRUE(Check(record).ok());
  record.offset = 4;
  ExpectRefused(record, Code::kInvalidArgument, "8192");
  record.count -= 1;
  EXPECT_TRUE(Check(record).ok());
  record.offset = kSegmentSize;
  record.count = 0;
  EXPECT_TRUE(Check(record).ok());
  record.offset = kSegmentSize + 4;
  ExpectRefused(record, Code::kInvalidArgument, "");

  ipc::Record on_tensor = GoodTensor();
  on_tensor.count = kTensorCount;
  EXPECT_TRUE(Check(on_tensor).ok());
  on_tensor.count = kTensorCount + 1;  // the segment would have room
  ExpectRefused(on_tensor, Code::kInvalidArgument, "400");
  on_tensor.count = 1;
  on_tensor.offset = 400;
  ExpectRefused(on_tensor, Code::kInvalidArgument, "400");
}

TEST_F(CheckRecordTest, RefusesNumbersWhoseSumOrProductOverflows) {
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t count :
       {kHuge, kHuge / 4, kHuge / 4 + 1, kHuge / 4 + 2, kHuge / 2 + 1}) {
    ipc::Record record = Good();
    record.count = count;
    ExpectRefused(record, Code::kInvalidArgument, "");
    record.offset = kHuge - 3;
    ExpectRefused(record, Code::kInvalidArgument, "");
  }
  ipc::Record record = GoodTensor();
  record.offset = kHuge - 3;  // the tensor's offset plus this wraps to a place before the tensor
  record.count = 1;
  ExpectRefused(record, Code::kInvalidArgument, "");
}

TEST_F(CheckRecordTest, RefusesACountThatDoesNotDivideAmongTheRanks) {
  for (const Collective kind : {Collective::kReduceScatter, Collective::kAllGather}) {
    ipc::Record record = Good();
    record.kind = static_cast<std::uint8_t>(kind);
    EXPECT_TRUE(Check(record).ok());
    record.count = 10;
    ExpectRefused(record, Code::kInvalidArgument, "");
    ExpectRefused(record, Code::kInvalidArgument, "");
  }
}

TEST_F(CheckRecordTest, TakesABarrierWithoutMemoryAndNothingElse) {
  ipc::Record record = support::Barrier();
  record.segment = 77;
  const Result<OperationSpec> spec = Check(record);
  ASSERT_TRUE(spec.ok()) << spec.error().text();
  EXPECT_EQ(spec->data, nullptr);
  record.count = 1;
  ExpectRefused(record, Code::kInvalidArgument, "");
}

}  // namespace
}  // namespace headrace::service
