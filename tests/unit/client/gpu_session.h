// A session with memory on the GPUs of a double, and this test in the service's place.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "client/lib/api.h"
#include "tests/support/cuda_double/doubled_driver.h"
#include "tests/unit/client/service_end.h"
#include "tests/unit/transport/memory/double_test.h"

namespace headrace::client {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Holds a stream up until it is opened. The stream's part of it must be over before it goes.
class StreamBlocker {
 public:
  void Close(const transport::PrimaryContext& context, transport::CuStream stream) {
    const transport::CudaDriver& driver = *context.get().driver;
    const transport::CurrentContext current(driver, context.get().context);
    EXPECT_EQ(driver.call().launch_host_call(stream, &StreamBlocker::Pass, this),
              transport::CuResult::kSuccess);
  }
  void Open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  static void Pass(void* blocker) { static_cast<StreamBlocker*>(blocker)->open_.wait(false); }

  std::atomic<bool> open_ = false;
};

// Rank 1 of 2 on a machine with two GPUs.
class GpuSessionTest : public transport::DoubleTest {
 protected:
  void SetUp() override {
    Start();
    auto stream = transport::CreateStream(contexts_[0], transport::kCuStreamNonBlocking, 0);
    ASSERT_TRUE(stream.ok());
    stream_ = std::move(*stream);
    Open();
  }
  void TearDown() override {
    if (gathering_.joinable()) gathering_.join();
    handle_.session.reset();
    stream_.reset();
    DoubleTest::TearDown();
  }

  void Open() {
    hr_options options{};
    options.size = sizeof options;
    std::strcpy(options.job, "test");
    options.rank = 1;
    options.world_size = 2;
    ipc::Channel::Created created = ipc::Channel::Create().value();
    handle_.session = std::make_unique<Session>(
        options,
        Session::Endpoints{ForkGuard::Create().value(), std::move(created.channel),
                           UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))},
        [this](const AttachRequest&, int channel_fd, int, LossListener&) {
          Session::Attached attached = Attach(channel_fd);
          gathering_ = std::thread([this] {
            while (!service_->HasRecord()) std::this_thread::yield();
            service_->Serve();  // the other ranks have come, too
          });
          return attached;
        });
    handle_.session->Adopt(Attach(created.fd.get()));
    handle_.session->UseCudaLibrary(cuda_double::LibraryPath());
  }
  Session::Attached Attach(int channel_fd) {
    // A mapping of the test's own, as the service has one.
    channel_.emplace(ipc::Channel::Open(channel_fd).value());
    service_.emplace(channel_->layout());
    auto control = std::make_unique<FakeControl>();
    control_ = control.get();
    return {.control = std::move(control), .service_pid = 5, .grant = {}};
  }

  hr_segment* Segment(std::size_t size, int device = 0) {
    hr_segment* segment = nullptr;
    EXPECT_EQ(hr_segment_create_on_device(&handle_, size, device, &segment, &error_), HR_OK)
        << error_.text;
    return segment;
  }
  hr_tensor* Tensor(std::uint64_t count, int device = 0) {
    const hr_tensor_spec spec{Segment(count * 4, device), 0, count, HR_FLOAT32, "t", 0};
    hr_tensor* tensor = nullptr;
    EXPECT_EQ(hr_tensor_register(&handle_, &spec, &tensor, &error_), HR_OK) << error_.text;
    return tensor;
  }
  hr_operation Post(hr_tensor* tensor) {
    hr_operation operation = 0;
    EXPECT_EQ(
        hr_all_reduce_on_stream(&handle_, tensor, nullptr, HR_SUM, stream(), &operation, &error_),
        HR_OK)
        << error_.text;
    return operation;
  }
  std::uint64_t Ready(hr_operation operation) const {
    return channel_->layout().ready[operation % ipc::kOperationsMax].load();
  }
  bool Says(const char* words) const { return std::strstr(error_.text, words) != nullptr; }

  transport::CuStream stream() const { return stream_.get().thing; }
  bool IsIdle() const {
    const auto current = In();
    return call().stream_query(stream()) == transport::CuResult::kSuccess;
  }
  void Synchronize() const {
    const auto current = In();
    EXPECT_EQ(call().stream_synchronize(stream()), transport::CuResult::kSuccess);
  }

  transport::CudaStream stream_;
  std::optional<ipc::Channel> channel_;
  std::optional<ServiceEnd> service_;
  hr_session handle_;
  FakeControl* control_ = nullptr;  // owned by the session
  std::thread gathering_;           // serves what a reconnect posts
  hr_error error_{};
};

}  // namespace headrace::client
