// Memory and streams of GPUs when a session's service goes and another comes.
#include "tests/support/device_memory.h"
#include "tests/unit/client/gpu_session.h"

namespace headrace::client {
namespace {

class GpuReconnectTest : public GpuSessionTest {
 protected:
  void LoseAndReconnect() {
    handle_.session->OnLost(Error(Code::kUnavailable, "it is gone"));
    ASSERT_EQ(hr_session_reconnect(&handle_, 60 * kSecond, &error_), HR_OK) << error_.text;
    gathering_.join();
  }
};

TEST_F(GpuReconnectTest, HandsGpuMemoryInAgainWhereItIs) {
  hr_segment* own = Segment(2 * kMiB, 1);
  const auto memory = transport::AllocateDeviceMemory(contexts_[0], 8 * kMiB);
  ASSERT_TRUE(memory.ok());
  auto* const foreign = reinterpret_cast<std::byte*>(memory->get().thing + 4096);
  hr_segment* shared = nullptr;
  ASSERT_EQ(hr_segment_share_device(&handle_, foreign, kMiB, &shared, &error_), HR_OK)
      << error_.text;
  auto* const address = static_cast<std::byte*>(hr_segment_address(own));
  address[0] = std::byte{9};
  const DeviceHandle before = control_->claims.at(8).handle;
  LoseAndReconnect();
  ASSERT_EQ(control_->claims.size(), 2U);
  EXPECT_EQ(control_->claims.at(7).handle.kind, DeviceHandleKind::kPosixFds);
  EXPECT_EQ(control_->claims.at(7).pieces.size(), 1U);
  EXPECT_EQ(control_->claims.at(8).handle.offset, before.offset);
  EXPECT_EQ(control_->claims.at(8).handle.legacy, before.legacy);
  EXPECT_EQ(hr_segment_address(own), address);
  EXPECT_EQ(address[0], std::byte{9});
  EXPECT_EQ(hr_segment_address(shared), foreign);
  control_->claims.clear();
}

TEST_F(GpuReconnectTest, LetsStreamsGoOnAndTakesThemAgain) {
  hr_tensor* tensor = Tensor(100);
  const hr_operation lost = Post(tensor);
  ASSERT_EQ(hr_stream_wait(&handle_, lost, stream(), &error_), HR_OK);
  EXPECT_FALSE(IsIdle());
  LoseAndReconnect();
  Synchronize();
  EXPECT_EQ(hr_wait(&handle_, lost, -1, &error_), HR_UNAVAILABLE);
  const hr_operation later = Post(tensor);
  EXPECT_EQ(later, lost + 2) << "behind the barrier";
  ASSERT_EQ(hr_stream_wait(&handle_, later, stream(), &error_), HR_OK) << error_.text;
  EXPECT_FALSE(IsIdle());
  EXPECT_EQ(service_->Serve().flags, ipc::kRecordAwaitsWord);
  Synchronize();
  EXPECT_EQ(hr_wait(&handle_, later, -1, &error_), HR_OK) << error_.text;
  EXPECT_EQ(Ready(2), 2U) << "its number in the new channel";
}

TEST_F(GpuReconnectTest, LeavesNothingPinnedBehind) {
  hr_tensor* tensor = Tensor(100);
  for (int round = 0; round < 5; ++round) {
    const hr_operation operation = Post(tensor);
    ASSERT_EQ(hr_stream_wait(&handle_, operation, stream(), &error_), HR_OK) << error_.text;
    LoseAndReconnect();
    Synchronize();
    EXPECT_EQ(counts().host_registrations, 0U) << "words are pinned again by the next post";
    EXPECT_EQ(counts().events, 0U);
  }
}

}  // namespace
}  // namespace headrace::client
