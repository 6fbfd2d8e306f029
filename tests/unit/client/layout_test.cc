#include "client/lib/layout.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <thread>
#include <vector>

#include "client/lib/api.h"
#include "tests/support/expect_text.h"
#include "tests/unit/client/service_end.h"

namespace headrace::client {
namespace {

constexpr std::uint32_t kGradients = 3;

// Rank 1 of 4 with a layout of three gradients, and this test in the service's place.
class LayoutTest : public testing::Test {
 protected:
  LayoutTest() {
    hr_options options{};
    options.size = sizeof options;
    std::strcpy(options.job, "test");
    options.rank = 1;
    options.world_size = 4;
    ipc::Channel::Created created = ipc::Channel::Create().value();
    service_.emplace(created.channel.layout());
    handle_.session = std::make_unique<Session>(
        options, Session::Endpoints{ForkGuard::Create().value(), std::move(created.channel),
                                    UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))});
    auto control = std::make_unique<FakeControl>();
    control_ = control.get();
    control_->tensors.resize(5);  // others were registered before
    handle_.session->Adopt({.control = std::move(control), .service_pid = 5, .grant = {}});
    EXPECT_EQ(hr_segment_create(&handle_, 4096, &segment_, &error_), HR_OK) << error_.text;
    EXPECT_EQ(hr_layout_options_init(&options_, &error_), HR_OK) << error_.text;
    specs_ = {{segment_, 0, 10, HR_FLOAT32, "conv.weight", 9},
              {segment_, 40, 2, HR_FLOAT32, "conv.bias", 9},
              {segment_, 48, 100, HR_FLOAT32, nullptr, 9}};
  }

  hr_status Create() {
    return hr_layout_create(&handle_, specs_.data(), specs_.size(), &options_, &layout_, &error_);
  }
  // What a layout that must be refused is refused with.
  std::string Refused() {
    EXPECT_EQ(Create(), HR_INVALID_ARGUMENT);
    EXPECT_EQ(layout_, nullptr);
    EXPECT_EQ(control_->tensors.size(), 5U) << "tensors were registered all the same";
    return error_.text;
  }
  void BeginBackward() {
    EXPECT_EQ(hr_layout_begin_backward(layout_, &error_), HR_OK) << error_.text;
  }
  void PostAll() {
    for (std::uint32_t i = kGradients; i-- > 0;) {
      EXPECT_EQ(hr_layout_post(layout_, i, nullptr, &error_), HR_OK) << error_.text;
    }
  }
  ipc::GradientRecord Take() { return std::bit_cast<ipc::GradientRecord>(service_->Take()); }
  void Serve() {
    for (std::uint32_t i = 0; i < kGradients; ++i) service_->Serve();
  }
  void WaitFor(std::uint32_t index) {
    EXPECT_EQ(hr_layout_wait(layout_, index, -1, &error_), HR_OK) << error_.text;
  }

  hr_session handle_;
  FakeControl* control_ = nullptr;  // owned by the session
  std::optional<ServiceEnd> service_;
  hr_error error_{};
  hr_segment* segment_ = nullptr;
  hr_layout_options options_{};
  std::vector<hr_tensor_spec> specs_;
  hr_layout* layout_ = nullptr;
};

TEST_F(LayoutTest, IsHandedInAsTensorsInForwardOrder) {
  std::strcpy(options_.policy, "us-byte");
  options_.reduction = HR_SUM;
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  ASSERT_EQ(control_->tensors.size(), 8U);
  EXPECT_EQ(control_->tensors[5].name, "conv.weight");
  EXPECT_EQ(control_->tensors[6].order, 1U);
  EXPECT_EQ(control_->tensors[7].offset, 48U);
  ASSERT_EQ(control_->layouts.size(), 1U);
  EXPECT_EQ(control_->layouts[0].first, 5U);
  EXPECT_EQ(control_->layouts[0].count, 3U);
  EXPECT_EQ(control_->layouts[0].reduction, Reduction::kSum);
  EXPECT_EQ(control_->layouts[0].policy, "us-byte");
}

TEST_F(LayoutTest, PostsRecordsThatTheServiceKnowsAsGradients) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  const TimeNs before = MonotonicNow();
  BeginBackward();
  hr_operation operation = 0;
  ASSERT_EQ(hr_layout_post(layout_, 2, &operation, &error_), HR_OK) << error_.text;
  EXPECT_EQ(operation, 1U);
  const ipc::GradientRecord record = Take();
  EXPECT_EQ(record.kind, static_cast<std::uint8_t>(Collective::kAllReduce));
  EXPECT_EQ(record.dtype, static_cast<std::uint8_t>(DType::kFloat32));
  EXPECT_EQ(record.reduction, static_cast<std::uint8_t>(Reduction::kAverage));
  EXPECT_EQ(record.flags, ipc::kRecordIsGradient);
  EXPECT_EQ(record.tensor, 7U);
  EXPECT_EQ(record.count, 100U);
  EXPECT_EQ(record.forward_ns, 0U);
  EXPECT_EQ(record.waited_ns, 0U);
  EXPECT_EQ(record.timeout_ms, 0U);
  EXPECT_EQ(record.contributors, 0U);
  EXPECT_GE(record.backward_ns, static_cast<std::uint64_t>(before));
  EXPECT_GE(record.posted_ns, record.backward_ns);
  EXPECT_LE(record.posted_ns, static_cast<std::uint64_t>(MonotonicNow()));
}

// Sleeps make sure of a least time. A time in which nothing sleeps is at most what passes
// meanwhile.
TEST_F(LayoutTest, CarriesTheTimesOfTheForwardPassInThePostsAfterIt) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  BeginBackward();
  PostAll();
  Serve();
  WaitFor(0);
  sleep();
  const TimeNs begin = MonotonicNow();
  WaitFor(1);
  WaitFor(2);
  EXPECT_EQ(hr_layout_end_forward(layout_, &error_), HR_OK);
  const auto passed = static_cast<std::uint64_t>(MonotonicNow() - begin);
  sleep();
  BeginBackward();
  PostAll();
  const ipc::GradientRecord last = Take();
  const ipc::GradientRecord middle = Take();
  const ipc::GradientRecord first = Take();
  EXPECT_GE(first.forward_ns, 20U * kMillisecond);
  EXPECT_LE(middle.forward_ns + last.forward_ns, passed);
  EXPECT_EQ(first.waited_ns + middle.waited_ns + last.waited_ns, 0U);
}

TEST_F(LayoutTest, CarriesTheTimeThatTheForwardPassStoodStill) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  BeginBackward();
  PostAll();
  Serve();
  BeginBackward();
  PostAll();
  std::thread server([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Serve();
  });
  const TimeNs begin = MonotonicNow();
  WaitFor(1);
  const TimeNs waited = MonotonicNow() - begin;
  server.join();
  BeginBackward();
  ASSERT_EQ(hr_layout_post(layout_, 1, nullptr, &error_), HR_OK) << error_.text;
  const ipc::GradientRecord record = Take();
  EXPECT_GT(record.waited_ns, 0U);
  EXPECT_LE(record.waited_ns, static_cast<std::uint64_t>(waited));
}

TEST_F(LayoutTest, DoesNotTakeActivationsComputedAgainForAForwardPass) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  BeginBackward();
  PostAll();
  Serve();
  BeginBackward();
  ASSERT_EQ(hr_layout_post(layout_, 2, nullptr, &error_), HR_OK);
  service_->Serve();
  WaitFor(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_EQ(hr_layout_post(layout_, 1, nullptr, &error_), HR_OK);
  EXPECT_EQ(Take().forward_ns, 0U);
}

TEST_F(LayoutTest, RefusesAPostThatIsNotDue) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  const auto refused = [this](std::uint32_t index, hr_status status, const char* words) {
    EXPECT_EQ(hr_layout_post(layout_, index, nullptr, &error_), status);
    EXPECT_NE(std::strstr(error_.text, words), nullptr) << error_.text;
  };
  refused(0, HR_BUSY, "hr_layout_begin_backward");
  BeginBackward();
  refused(3, HR_INVALID_ARGUMENT, "the layout has 3");
  PostAll();
  refused(0, HR_BUSY, "gradient 0 (conv.weight)");
  BeginBackward();
  refused(2, HR_BUSY, "gradient 2: its last operation has not ended");
  Serve();
  PostAll();
  EXPECT_EQ(handle_.session->HasEnded(6).value(), false);
}

TEST_F(LayoutTest, NamesAGradientThatWasForgottenWhenTheNextPassBegins) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  BeginBackward();
  BeginBackward();  // a pass that posted nothing is none
  ASSERT_EQ(hr_layout_post(layout_, 0, nullptr, &error_), HR_OK);
  ASSERT_EQ(hr_layout_post(layout_, 2, nullptr, &error_), HR_OK);
  EXPECT_EQ(hr_layout_begin_backward(layout_, &error_), HR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error_.text, "gradient 1 (conv.bias)"), nullptr) << error_.text;
  EXPECT_NE(std::strstr(error_.text, "2 of 3"), nullptr) << error_.text;
  ASSERT_EQ(hr_layout_post(layout_, 1, nullptr, &error_), HR_OK);
  BeginBackward();
}

TEST_F(LayoutTest, WaitsForWhatIsOpenAndTellsHowItEnded) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  EXPECT_EQ(hr_layout_wait(layout_, 0, 0, &error_), HR_OK);  // nothing of it was ever open
  EXPECT_EQ(hr_layout_wait(layout_, 3, 0, &error_), HR_INVALID_ARGUMENT);
  BeginBackward();
  PostAll();
  EXPECT_EQ(hr_layout_wait(layout_, 1, kMillisecond, &error_), HR_TIMEOUT);
  EXPECT_TEXT(error_.text, "gradient 1");
  service_->Serve();
  service_->Serve(Code::kPeerLost, "rank 3 (pid 1234) exited");
  service_->Serve();
  WaitFor(0);
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(hr_layout_wait(layout_, 1, -1, &error_), HR_PEER_LOST);
    EXPECT_STREQ(error_.text, "gradient 1 (conv.bias): rank 3 (pid 1234) exited");
  }
}

TEST_F(LayoutTest, SaysByHowManyRanksAveragesAreDividedFromOneIterationToTheNext) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  ASSERT_EQ(hr_layout_set_contributors(layout_, 3, &error_), HR_OK) << error_.text;
  BeginBackward();
  ASSERT_EQ(hr_layout_post(layout_, 2, nullptr, &error_), HR_OK) << error_.text;
  EXPECT_EQ(Take().contributors, 3U);
  EXPECT_EQ(hr_layout_set_contributors(layout_, 0, &error_), HR_INVALID_ARGUMENT);
  EXPECT_TEXT(error_.text, "1 of 3 gradients");
  for (const std::uint32_t index : {1U, 0U}) {
    ASSERT_EQ(hr_layout_post(layout_, index, nullptr, &error_), HR_OK) << error_.text;
    EXPECT_EQ(Take().contributors, 3U);
  }
  EXPECT_EQ(hr_layout_set_contributors(layout_, 0, &error_), HR_OK);
}

TEST_F(LayoutTest, DividesNoSum) {
  options_.reduction = HR_SUM;
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  EXPECT_EQ(hr_layout_set_contributors(layout_, 2, &error_), HR_INVALID_ARGUMENT);
  EXPECT_TEXT(error_.text, "summed");
  EXPECT_EQ(hr_layout_set_contributors(layout_, 0, &error_), HR_OK);
}

TEST_F(LayoutTest, EndsWithTheCauseWhenTheServiceIsLost) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  BeginBackward();
  PostAll();
  Serve();
  BeginBackward();
  ASSERT_EQ(hr_layout_post(layout_, 2, nullptr, &error_), HR_OK);
  std::thread loser([this] { handle_.session->OnLost(Error(Code::kUnavailable, "it is gone")); });
  EXPECT_EQ(hr_layout_wait(layout_, 2, -1, &error_), HR_UNAVAILABLE);
  loser.join();
  EXPECT_TEXT(error_.text, "gradient 2");
  EXPECT_EQ(hr_layout_post(layout_, 1, nullptr, &error_), HR_UNAVAILABLE);
  EXPECT_TEXT(error_.text, "gradient 1");
  EXPECT_EQ(hr_layout_begin_backward(layout_, &error_), HR_UNAVAILABLE);
  EXPECT_TEXT(error_.text);
}

TEST_F(LayoutTest, TakesPostsOfManyThreads) {
  specs_.clear();
  for (std::uint32_t i = 0; i < 768; ++i) {
    specs_.push_back({segment_, std::size_t{4} * i, 1, HR_FLOAT32, nullptr, 0});
  }
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  for (int iteration = 0; iteration < 20; ++iteration) {
    BeginBackward();
    std::vector<std::thread> posters;
    for (std::uint32_t thread = 0; thread < 4; ++thread) {
      posters.emplace_back([this, thread] {
        for (std::uint32_t i = thread; i < 768; i += 4) {
          EXPECT_EQ(hr_layout_post(layout_, i, nullptr, nullptr), HR_OK);
        }
      });
    }
    std::vector<bool> seen(768);
    for (int served = 0; served < 768;) {
      if (!service_->HasRecord()) {
        std::this_thread::yield();
        continue;
      }
      const auto record = std::bit_cast<ipc::GradientRecord>(service_->Serve());
      EXPECT_FALSE(seen[record.tensor - 5]);
      seen[record.tensor - 5] = true;
      ++served;
    }
    for (std::thread& poster : posters) poster.join();
    for (std::uint32_t i = 0; i < 768; ++i) WaitFor(i);
  }
}

TEST_F(LayoutTest, RefusesWhatIsNoLayoutBeforeAnythingIsRegistered) {
  const std::vector<hr_tensor_spec> good = specs_;
  const auto expect = [this, &good](const char* words) {
    const std::string text = Refused();
    EXPECT_NE(text.find(words), std::string::npos) << text;
    specs_ = good;
  };
  specs_.clear();
  expect("0 gradients: 1 to 768");
  specs_.assign(769, good[0]);
  expect("769 gradients");
  specs_[1].dtype = HR_FLOAT64;
  expect("gradient 1 (conv.bias) (2 elements from byte 40) and gradient 2 (from byte 48) overlap");
  specs_[2].offset = 44;
  expect("gradient 1 (conv.bias) (2 elements from byte 40) and gradient 2 (from byte 44) overlap");
  specs_[0].offset = 4;
  expect("overlap");
  specs_[0].count = UINT64_MAX;
  expect("overlap");
  specs_[2].count = UINT64_MAX;
  expect("tensor 2 of the list");
  specs_[0].dtype = static_cast<hr_dtype>(0);
  expect("dtype 0");
  hr_segment* other = nullptr;
  ASSERT_EQ(hr_segment_create(&handle_, 4096, &other, &error_), HR_OK);
  specs_[2].segment = other;
  expect("gradient 2 lies in another segment");
  options_.reduction = HR_MAX;
  expect("reduction 4");
  options_.reduction = HR_AVERAGE;
  std::memset(options_.policy, 'x', sizeof options_.policy);
  expect("does not end in NUL");
  options_.size = 4;
  expect("hr_layout_options has size 4");
}

TEST_F(LayoutTest, IsTheOnlyOneOfItsSession) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  hr_layout_free(layout_);
  EXPECT_EQ(Create(), HR_ALREADY_EXISTS);
  EXPECT_NE(std::strstr(error_.text, "rank 1 of job test"), nullptr) << error_.text;
  hr_layout_free(nullptr);
}

TEST_F(LayoutTest, LeavesNothingBehindWhenTheServiceRefusesIt) {
  control_->layout_refusal = Error(Code::kMismatch, "rank 0 has 11 elements of conv.weight");
  EXPECT_EQ(Create(), HR_MISMATCH);
  EXPECT_TEXT(error_.text, "rank 0");
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> rows = {{5, 3}};
  EXPECT_EQ(control_->released, rows);
  control_->layout_refusal.reset();
  EXPECT_EQ(Create(), HR_OK) << error_.text;
}

TEST_F(LayoutTest, IsOfNoUseInAForkedChild) {
  ASSERT_EQ(Create(), HR_OK) << error_.text;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    hr_layout_free(layout_);
    const bool refused = hr_layout_begin_backward(layout_, nullptr) == HR_INVALID_ARGUMENT &&
                         hr_layout_post(layout_, 0, nullptr, nullptr) == HR_INVALID_ARGUMENT &&
                         hr_layout_wait(layout_, 0, 0, nullptr) == HR_INVALID_ARGUMENT &&
                         hr_layout_end_forward(layout_, nullptr) == HR_INVALID_ARGUMENT;
    ::_exit(refused ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(LayoutTest, RefusesNull) {
  EXPECT_EQ(hr_layout_create(&handle_, nullptr, 1, &options_, &layout_, &error_),
            HR_INVALID_ARGUMENT);
  EXPECT_EQ(hr_layout_begin_backward(nullptr, &error_), HR_INVALID_ARGUMENT);
  EXPECT_EQ(hr_layout_post(nullptr, 0, nullptr, &error_), HR_INVALID_ARGUMENT);
  EXPECT_EQ(hr_layout_wait(nullptr, 0, 0, &error_), HR_INVALID_ARGUMENT);
  EXPECT_EQ(hr_layout_end_forward(nullptr, &error_), HR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace headrace::client
