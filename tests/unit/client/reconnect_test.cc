// What a session keeps when its service goes and another comes, and what it says meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/open_descriptors.h"
#include "tests/unit/client/coming_back.h"

namespace headrace::client {
namespace {

using ReconnectTest = ComingBack;

class ReconnectByOptionTest : public ComingBack {
 protected:
  ReconnectByOptionTest() : ComingBack(30) {}
};

TEST_F(ReconnectTest, HandsEverythingInAgainUnderTheSameHandles) {
  hr_segment* first = Segment(4096);
  hr_segment* second = Segment(8192);
  hr_tensor* one = Tensor(first, 0, "one");
  hr_tensor* two = Tensor(second, 64, "two");
  std::memset(hr_segment_address(second), 7, 8192);
  void* const address = hr_tensor_address(two);
  Lose();
  ComeBackTo(1);
  Life& life = At(1);
  ASSERT_EQ(life.control->segments.size(), 2U);
  EXPECT_EQ(life.control->segments.at(200).size(), 4096U);
  EXPECT_EQ(life.control->segments.at(201).data()[8191], std::byte{7}) << "what stood there stays";
  ASSERT_EQ(life.control->tensors.size(), 2U);
  EXPECT_EQ(life.control->tensors[1].name, "two");
  EXPECT_EQ(life.control->tensors[1].segment, 201U);
  EXPECT_EQ(life.control->tensors[1].offset, 64U);
  EXPECT_EQ(life.control->tensors[1].order, 3U);
  EXPECT_EQ(hr_tensor_address(two), address);
  EXPECT_EQ(hr_session_service_pid(&handle_), 42);
  const hr_operation operation = Post(two);
  EXPECT_EQ(life.Serve().tensor, 1U);
  EXPECT_EQ(hr_wait(&handle_, operation, -1, &error_), HR_OK) << error_.text;
  EXPECT_EQ(hr_tensors_release(&handle_, &one, 1, &error_), HR_OK);
  EXPECT_EQ(life.control->released.at(0), std::make_pair(0U, 1U));
  EXPECT_EQ(hr_segment_release(&handle_, first, &error_), HR_OK);
  EXPECT_EQ(life.control->segments.count(200), 0U);
}

TEST_F(ReconnectTest, SaysInWhichEpochTheRankWas) {
  Lose();
  ComeBackTo(1);
  EXPECT_EQ(At(1).request.after_epoch, 1U);
  Lose();
  ComeBackTo(2);
  EXPECT_EQ(At(2).request.after_epoch, 2U);
  EXPECT_EQ(At(2).request.job, "test");
  EXPECT_EQ(At(2).request.rank, 1U);
}

TEST_F(ReconnectTest, HandsTheLayoutInAgainAndBeginsItsIterationsAnew) {
  const hr_segment* segment = Segment(4096);
  const hr_tensor_spec specs[] = {{segment, 0, 16, HR_FLOAT32, "w", 0},
                                  {segment, 64, 8, HR_FLOAT32, "b", 0}};
  hr_layout_options options;
  ASSERT_EQ(hr_layout_options_init(&options, &error_), HR_OK);
  std::strcpy(options.policy, "us-byte");
  hr_layout* layout = nullptr;
  ASSERT_EQ(hr_layout_create(&handle_, specs, 2, &options, &layout, &error_), HR_OK) << error_.text;
  Tensor(segment, 2048, "besides");
  ASSERT_EQ(hr_layout_begin_backward(layout, &error_), HR_OK);
  ASSERT_EQ(hr_layout_post(layout, 1, nullptr, &error_), HR_OK);
  Lose();
  EXPECT_EQ(hr_layout_wait(layout, 1, -1, &error_), HR_UNAVAILABLE);
  ASSERT_EQ(hr_layout_set_iterations(layout, 56, &error_), HR_OK);
  ComeBackTo(1);
  Life& life = At(1);
  ASSERT_EQ(life.control->layouts.size(), 1U);
  EXPECT_EQ(life.control->layouts[0].first, 1U) << "behind the tensor that was registered";
  EXPECT_EQ(life.control->layouts[0].policy, "us-byte");
  EXPECT_EQ(life.control->layouts[0].iterations_before, 56U);
  EXPECT_EQ(life.control->tensors.at(2).offset, 64U);
  EXPECT_EQ(hr_layout_wait(layout, 1, -1, &error_), HR_OK) << "nothing of it is open";
  EXPECT_EQ(hr_layout_post(layout, 1, nullptr, &error_), HR_BUSY) << "no backward pass has begun";
  ASSERT_EQ(hr_layout_begin_backward(layout, &error_), HR_OK) << error_.text;
  ASSERT_EQ(hr_layout_post(layout, 1, nullptr, &error_), HR_OK) << error_.text;
  EXPECT_EQ(life.Serve().tensor, 2U);
  EXPECT_EQ(hr_layout_wait(layout, 1, -1, &error_), HR_OK) << error_.text;
}

TEST_F(ReconnectTest, KeepsHowEarlierOperationsEndedAndCountsOn) {
  hr_tensor* tensor = Tensor(Segment(4096), 0, "t");
  const hr_operation good = Post(tensor);
  const hr_operation bad = Post(tensor);
  const hr_operation open = Post(tensor);
  At(0).Serve();
  At(0).Serve(Code::kMismatch, "rank 0 posted a barrier");
  Lose("it is gone");
  ComeBackTo(1);
  EXPECT_EQ(hr_wait(&handle_, good, -1, &error_), HR_OK);
  EXPECT_EQ(hr_wait(&handle_, bad, -1, &error_), HR_MISMATCH);
  EXPECT_TRUE(Says("rank 0 posted a barrier")) << error_.text;
  EXPECT_EQ(hr_wait(&handle_, open, -1, &error_), HR_UNAVAILABLE);
  EXPECT_TRUE(Says("it is gone")) << error_.text;
  int ended = 0;
  EXPECT_EQ(hr_test(&handle_, open, &ended, &error_), HR_OK);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(Post(tensor), open + 2) << "behind the barrier";
  EXPECT_EQ(At(1).Serve().commit, 2U) << "in its channel they begin with 1";
  hr_counters counters{};
  counters.size = sizeof counters;
  EXPECT_EQ(hr_session_counters(&handle_, &counters, &error_), HR_OK);
  EXPECT_EQ(counters.posted, 5U);
}

TEST_F(ReconnectTest, CopiesBackWhatHadSucceededAndLeavesTheRest) {
  std::vector<float> summed(8, 1.0F);
  std::vector<float> lost(8, 2.0F);
  std::vector<float> given_up(8, 3.0F);
  hr_operation operations[3];
  int index = 0;
  for (auto* array : {&summed, &lost, &given_up}) {
    ASSERT_EQ(hr_all_reduce_array(&handle_, array->data(), 8, HR_FLOAT32, HR_SUM,
                                  &operations[index++], &error_),
              HR_OK);
  }
  Life& life = At(0);
  const ipc::Record record = life.service.Take();
  auto* staged = reinterpret_cast<float*>(life.control->segments.at(record.segment).data());
  std::fill_n(staged + record.offset / sizeof(float), 8, 10.0F);
  life.service.End(1);
  life.service.Take();
  life.service.Serve();  // the third has ended well, too
  hr_discard(&handle_, operations[2]);
  Lose();
  ComeBackTo(1);
  EXPECT_EQ(hr_wait(&handle_, operations[0], -1, &error_), HR_OK);
  EXPECT_EQ(hr_wait(&handle_, operations[1], -1, &error_), HR_UNAVAILABLE);
  EXPECT_EQ(summed, std::vector<float>(8, 10.0F));
  EXPECT_EQ(lost, std::vector<float>(8, 2.0F));
  EXPECT_EQ(given_up, std::vector<float>(8, 3.0F));
  ASSERT_EQ(hr_all_reduce_array(&handle_, lost.data(), 8, HR_FLOAT32, HR_SUM, operations, &error_),
            HR_OK)
      << error_.text;
  EXPECT_EQ(At(1).Serve().segment, 200U) << "staging memory of the new service";
}

TEST_F(ReconnectTest, IsRefusedWhileNothingIsLost) {
  EXPECT_EQ(Reconnect(), HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("nothing is lost") && Says("pid 41")) << error_.text;
  hr_tensor* tensor = Tensor(Segment(4096), 0, "t");
  const hr_operation operation = Post(tensor);
  At(0).Serve(Code::kPeerLost, "node b went away");
  EXPECT_EQ(hr_wait(&handle_, operation, -1, &error_), HR_PEER_LOST);
  // The service is there, but the job has failed on another node.
  ComeBackTo(1);
  EXPECT_EQ(Reconnect(), HR_INVALID_ARGUMENT) << "that failure is of the life before";
}

TEST_F(ReconnectTest, KnowsOfALossBeforeTheSessionWasTold) {
  lives_[0]->control->hung_up = true;
  ComeBackTo(1);
}

TEST_F(ReconnectTest, IsOffWithoutATimeout) {
  Lose();
  EXPECT_EQ(Reconnect(0), HR_INVALID_ARGUMENT);
  EXPECT_TRUE(Says("HEADRACE_RECONNECT")) << error_.text;
}

TEST_F(ReconnectByOptionTest, TakesTheTimeoutFromTheOptions) {
  Lose();
  auto reconnected = Reconnecting(0);
  const ipc::Record barrier = At(1).Serve();
  EXPECT_GT(barrier.timeout_ms, 0U) << "the service names who is missing, in time";
  EXPECT_LE(barrier.timeout_ms, 30'000U);
  EXPECT_EQ(reconnected.get(), HR_OK) << error_.text;
  EXPECT_EQ(At(1).control->calls_bound_ns, 10 * kSecond) << "as hr_open's options say";
}

TEST_F(ReconnectTest, TriesAgainWhileTimeMayMendIt) {
  refusals_ = {Error(Code::kUnavailable, "no service"),
               Error(Code::kPeerLost, "rank 0 remains"),
               Error(Code::kAlreadyExists, "rank 1 is attached"),
               Error(Code::kExhausted, "its memory is still booked"),
               Error(Code::kTimeout, "no answer"),
               Error(Code::kBusy, "behind")};
  Lose();
  ComeBackTo(1);
  EXPECT_EQ(attempts_, 8);
}

TEST_F(ReconnectTest, EndsAtOnceForWhatTimeDoesNotMend) {
  refusals_ = {Error(Code::kVersionMismatch, "headraced speaks protocol 9, libheadrace 3")};
  Lose();
  EXPECT_EQ(Reconnect(), HR_VERSION_MISMATCH);
  EXPECT_TRUE(Says("rank 1 of job test") && Says("protocol 9")) << error_.text;
  EXPECT_EQ(attempts_, 2);
  ComeBackTo(1);  // the right one was installed
}

TEST_F(ReconnectTest, SaysWhatWasMissingWhenTheTimeIsOver) {
  refusals_ = {Error(Code::kUnavailable, "connect to /nowhere/socket: start headraced")};
  refuses_for_good_ = true;
  hr_tensor* tensor = Tensor(Segment(4096), 0, "t");
  Lose();
  EXPECT_EQ(Reconnect(25 * kMillisecond), HR_TIMEOUT);
  EXPECT_TRUE(Says("not within 25 ms") && Says("start headraced")) << error_.text;
  hr_operation operation = 0;
  EXPECT_EQ(hr_all_reduce(&handle_, tensor, nullptr, HR_SUM, &operation, &error_), HR_UNAVAILABLE);
  EXPECT_TRUE(Says("start headraced")) << error_.text;
  hr_segment* segment = nullptr;
  EXPECT_EQ(hr_segment_create(&handle_, 4096, &segment, &error_), HR_UNAVAILABLE);
  refusals_.clear();
  ComeBackTo(1);
  Post(tensor);
}

TEST_F(ReconnectTest, ComesAgainWhenTheOthersCouldNot) {
  Tensor(Segment(4096), 0, "t");
  Lose();
  auto reconnected = Reconnecting();
  At(1).Serve(Code::kPeerLost, "rank 0 exited");
  At(2).Serve();
  EXPECT_EQ(reconnected.get(), HR_OK) << error_.text;
  EXPECT_EQ(At(2).control->segments.size(), 1U);
  EXPECT_EQ(At(2).request.after_epoch, 2U);
}

TEST_F(ReconnectTest, DoesNotComeAgainWhenSomebodyEndedTheJob) {
  Lose();
  auto reconnected = Reconnecting();
  At(1).Serve(Code::kCancelled, "uid 0 cancelled the job");
  EXPECT_EQ(reconnected.get(), HR_CANCELLED);
  EXPECT_TRUE(Says("uid 0 cancelled")) << error_.text;
}

TEST_F(ReconnectTest, WakesWhoeverWaitsAndTurnsAwayWhoeverComesMeanwhile) {
  hr_tensor* tensor = Tensor(Segment(4096), 0, "t");
  const hr_operation failed = Post(tensor);
  const hr_operation open = Post(tensor);
  At(0).Serve(Code::kPeerLost, "node b went away");
  EXPECT_EQ(hr_wait(&handle_, failed, -1, &error_), HR_PEER_LOST);
  hr_error waited{};
  auto waiter =
      std::async(std::launch::async, [&] { return hr_wait(&handle_, open, -1, &waited); });
  auto reconnected = Reconnecting();
  EXPECT_EQ(waiter.get(), HR_UNAVAILABLE);
  EXPECT_NE(std::strstr(waited.text, "reconnect"), nullptr) << waited.text;
  Life& life = At(1);
  hr_error error{};
  hr_operation operation = 0;
  EXPECT_EQ(hr_all_reduce(&handle_, tensor, nullptr, HR_SUM, &operation, &error), HR_UNAVAILABLE);
  EXPECT_NE(std::strstr(error.text, "is reconnecting"), nullptr) << error.text;
  EXPECT_EQ(hr_session_reconnect(&handle_, kSecond, &error), HR_BUSY);
  std::thread discarding([&] { hr_discard(&handle_, open); });
  life.Serve();
  EXPECT_EQ(reconnected.get(), HR_OK) << error_.text;
  discarding.join();
}

TEST_F(ReconnectTest, IsForTheProcessThatOpenedTheSession) {
  Lose();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = hr_session_reconnect(&handle_, kSecond, &error_) == HR_INVALID_ARGUMENT &&
                         Says("forked child");
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(hr_session_reconnect(nullptr, kSecond, &error_), HR_INVALID_ARGUMENT);
}

TEST_F(ReconnectTest, LeavesNothingBehindAHundredTimes) {
  hr_tensor* tensor = Tensor(Segment(4096), 0, "t");
  std::vector<float> array(8);
  std::size_t descriptors = 0;
  for (std::size_t round = 0; round < 100; ++round) {
    Post(tensor);
    hr_operation operation = 0;
    ASSERT_EQ(
        hr_all_reduce_array(&handle_, array.data(), 8, HR_FLOAT32, HR_SUM, &operation, &error_),
        HR_OK);
    Lose();
    ComeBackTo(round + 1);
    if (round == 0) descriptors = OpenDescriptors();
    EXPECT_EQ(OpenDescriptors(), descriptors) << "round " << round;
    lives_[round]->control = nullptr;  // gone with its connection
  }
  EXPECT_EQ(At(100).control->tensors.size(), 1U);
}

}  // namespace
}  // namespace headrace::client
