// A session whose service comes and goes, with the test in the place of each service.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/lib/api.h"
#include "tests/unit/client/service_end.h"

namespace headrace::client {

// One service that the session came to: its end of the channel, and what it was asked.
struct Life {
  Life(ipc::Channel opened, const AttachRequest& asked)
      : channel(std::move(opened)), service(channel.layout()), request(asked) {}

  // Ends the next operation when it has been posted; the test hangs, and is ended from outside,
  // when none comes.
  ipc::Record Serve(Code code = Code::kOk, const std::string& text = "") {
    while (!service.HasRecord()) std::this_thread::yield();
    return service.Serve(code, text);
  }

  ipc::Channel channel;
  ServiceEnd service;
  AttachRequest request;
  FakeControl* control = nullptr;  // owned by the session
};

// Rank 1 of 2 of the job "test".
class ComingBack : public testing::Test {
 protected:
  explicit ComingBack(std::uint32_t reconnect_s = 0) {
    hr_options options{};
    options.size = sizeof options;
    std::strcpy(options.socket_path, "/nowhere/socket");
    std::strcpy(options.job, "test");
    options.rank = 1;
    options.world_size = 2;
    options.call_timeout_ms = 10'000;
    options.reconnect_s = reconnect_s;
    ipc::Channel::Created created = ipc::Channel::Create().value();
    Session::Endpoints endpoints{ForkGuard::Create().value(), std::move(created.channel),
                                 UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
    handle_.session =
        std::make_unique<Session>(options, std::move(endpoints),
                                  [this](const AttachRequest& request, int channel_fd, int,
                                         LossListener&) { return Attach(request, channel_fd); });
    handle_.session->Adopt(Attach({}, created.fd.get()).value());
  }

  Result<Session::Attached> Attach(const AttachRequest& request, int channel_fd) {
    std::lock_guard lock(mutex_);
    ++attempts_;
    if (!refusals_.empty()) {
      const Error refusal = refusals_.front();
      if (refusals_.size() > 1 || !refuses_for_good_) refusals_.pop_front();
      return refusal;
    }
    lives_.push_back(std::make_unique<Life>(ipc::Channel::Open(channel_fd).value(), request));
    auto control = std::make_unique<FakeControl>();
    control->next_segment = static_cast<std::uint32_t>(100 * lives_.size());
    lives_.back()->control = control.get();
    came_.notify_all();
    const auto epoch = static_cast<std::uint32_t>(lives_.size());
    return Session::Attached{std::move(control), 40 + static_cast<std::int32_t>(epoch),
                             Grant{.epoch = epoch}};
  }

  // The life of that number, from 0; waited for.
  Life& At(std::size_t number) {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [this, number] { return lives_.size() > number; });
    return *lives_[number];
  }

  void Lose(const char* cause = "the service went away") {
    handle_.session->OnLost(Error(Code::kUnavailable, cause));
  }
  hr_status Reconnect(TimeNs timeout_ns = 60 * kSecond) {
    return hr_session_reconnect(&handle_, timeout_ns, &error_);
  }
  // In a thread of its own, while the test plays the service.
  std::future<hr_status> Reconnecting(TimeNs timeout_ns = 60 * kSecond) {
    return std::async(std::launch::async, [this, timeout_ns] { return Reconnect(timeout_ns); });
  }
  // Loses the service and comes back to the life of that number.
  void ComeBackTo(std::size_t number) {
    auto reconnected = Reconnecting();
    const ipc::Record barrier = At(number).Serve();
    EXPECT_EQ(barrier.kind, static_cast<std::uint8_t>(Collective::kBarrier));
    EXPECT_EQ(reconnected.get(), HR_OK) << error_.text;
  }

  hr_segment* Segment(std::size_t size) {
    hr_segment* segment = nullptr;
    EXPECT_EQ(hr_segment_create(&handle_, size, &segment, &error_), HR_OK) << error_.text;
    return segment;
  }
  hr_tensor* Tensor(const hr_segment* segment, std::size_t offset, const char* name) {
    const hr_tensor_spec spec{segment, offset, 16, HR_FLOAT32, name, 3};
    hr_tensor* tensor = nullptr;
    EXPECT_EQ(hr_tensor_register(&handle_, &spec, &tensor, &error_), HR_OK) << error_.text;
    return tensor;
  }
  hr_operation Post(hr_tensor* tensor) {
    hr_operation operation = 0;
    EXPECT_EQ(hr_all_reduce(&handle_, tensor, nullptr, HR_SUM, &operation, &error_), HR_OK)
        << error_.text;
    return operation;
  }
  bool Says(const char* words) const { return std::strstr(error_.text, words) != nullptr; }

  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::unique_ptr<Life>> lives_;  // guarded by mutex_, as is all to attempts_
  std::deque<Error> refusals_;                // of the next attempts
  bool refuses_for_good_ = false;             // the last of them
  int attempts_ = 0;
  hr_session handle_;
  hr_error error_{};
};

}  // namespace headrace::client
