// What a session knows of the memory and tensors a rank handed over.
#include "service/session/session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include "ipc/ring_writer.h"
#include "ipc/sealed_memory.h"

namespace headrace::service {
namespace {

Mapping Memory(std::size_t size) {
  return ipc::CreateSealedMemory("headrace-test", size).value().mapping;
}

Tensor In(SegmentId segment, std::string name) {
  return {.name = std::move(name), .segment = segment, .count = 4, .dtype = DType::kFloat32};
}

class SessionTest : public ::testing::Test {
 protected:
  static SessionIdentity Identity() {
    SessionIdentity identity;
    identity.rank = 3;
    return identity;
  }
  ipc::Channel::Created created_ = ipc::Channel::Create().value();
  Session session_{Identity(), ipc::Channel::Open(created_.fd.get()).value(), UniqueFd()};
};

TEST_F(SessionTest, FindsTheSegmentsThatWereAddedAndCountsTheirBytes) {
  session_.AddSegment(SegmentId{0}, Memory(4096));
  session_.AddSegment(SegmentId{7}, Memory(8192));
  EXPECT_EQ(session_.FindSegment(SegmentId{7}).size(), 8192U);
  EXPECT_NE(session_.FindSegment(SegmentId{0}).data(), session_.FindSegment(SegmentId{7}).data());
  EXPECT_TRUE(session_.FindSegment(SegmentId{1}).empty());
  EXPECT_EQ(session_.segment_bytes(), 12288U);
  EXPECT_EQ(session_.RemoveSegment(SegmentId{7}).size(), 8192U);
  EXPECT_TRUE(session_.FindSegment(SegmentId{7}).empty());
  EXPECT_EQ(session_.segment_bytes(), 4096U);
  EXPECT_FALSE(session_.RemoveSegment(SegmentId{7}));
}

TEST_F(SessionTest, FindsTensorsByTheirNumbers) {
  session_.AddTensors(TensorId{2}, {In(SegmentId{0}, "a"), In(SegmentId{1}, "b")});
  EXPECT_EQ(session_.FindTensor(TensorId{1}), nullptr);
  ASSERT_NE(session_.FindTensor(TensorId{2}), nullptr);
  EXPECT_EQ(session_.FindTensor(TensorId{2})->name, "a");
  EXPECT_EQ(session_.FindTensor(TensorId{3})->name, "b");
  EXPECT_EQ(session_.FindTensor(TensorId{3})->Bytes(), 16U);
  EXPECT_EQ(session_.FindTensor(TensorId{4}), nullptr);
  EXPECT_EQ(session_.FindTensor(TensorId{UINT32_MAX}), nullptr);
  EXPECT_EQ(session_.tensors_count(), 2U);
}

TEST_F(SessionTest, KnowsWhichSegmentsHoldTensors) {
  session_.AddTensors(TensorId{0}, {In(SegmentId{0}, "a"), In(SegmentId{1}, "b")});
  EXPECT_TRUE(session_.HasTensorsIn(SegmentId{1}));
  EXPECT_FALSE(session_.HasTensorsIn(SegmentId{2}));
  session_.RemoveTensors(TensorId{1}, 1);
  EXPECT_FALSE(session_.HasTensorsIn(SegmentId{1}));
  EXPECT_TRUE(session_.HasTensorsIn(SegmentId{0}));
  EXPECT_EQ(session_.FindTensor(TensorId{1}), nullptr);
  EXPECT_EQ(session_.tensors_count(), 1U);
}

TEST_F(SessionTest, RemovesOnlyTensorsThatAreThere) {
  session_.AddTensors(TensorId{0}, {In(SegmentId{0}, "a")});
  session_.RemoveTensors(TensorId{0}, 1000);
  session_.RemoveTensors(TensorId{UINT32_MAX}, 10);
  EXPECT_EQ(session_.tensors_count(), 0U);
}

TEST_F(SessionTest, ClosesItsDoorbellWithItself) {
  const int bell = ::eventfd(0, EFD_CLOEXEC);
  {
    const Session session(Identity(), ipc::Channel::Open(created_.fd.get()).value(),
                          UniqueFd(bell));
    EXPECT_EQ(session.doorbell(), bell);
    EXPECT_NE(::fcntl(bell, F_GETFD), -1);
  }
  EXPECT_EQ(::fcntl(bell, F_GETFD), -1);
}

TEST_F(SessionTest, ReadsTheRingOfItsChannel) {
  EXPECT_FALSE(session_.reader().HasRecord());
  ipc::RingWriter writer(created_.channel.layout());
  ASSERT_FALSE(writer.Write({}));
  EXPECT_TRUE(session_.reader().HasRecord());
  session_.completions().End(1, Code::kOk, "");
  EXPECT_TRUE(ipc::CompletionReader(created_.channel.layout()).HasEnded(1));
}

}  // namespace
}  // namespace headrace::service
