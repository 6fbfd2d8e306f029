#include "client/lib/connection.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "client/lib/socket.h"
#include "ipc/channel.h"
#include "tests/support/expect_text.h"
#include "tests/support/open_descriptors.h"
#include "tests/unit/client/bootstrap_end.h"

namespace headrace::client {
namespace {

// In place of the client's ten seconds. A service that lives answers in that time on a machine that
// is busy.
constexpr TimeNs kAnswered = kSecond;

class LossRecorder final : public LossListener {
 public:
  void OnLost(const Error& loss) override {
    std::lock_guard lock(mutex_);
    loss_ = loss;
    lost_.notify_all();
  }
  // The loss, waited for; the test hangs, and is ended from outside, when none comes.
  Error Wait() {
    std::unique_lock lock(mutex_);
    lost_.wait(lock, [this] { return loss_.has_value(); });
    return *loss_;
  }
  bool lost() {
    std::lock_guard lock(mutex_);
    return loss_.has_value();
  }
  void OnMembersWait() override {}
  void OnPlaces(std::string places) override {
    std::lock_guard lock(mutex_);
    places_ = std::move(places);
    lost_.notify_all();
  }
  std::uint64_t OldestOpen() override { return oldest_open.load(); }

  std::string WaitForPlaces() {
    std::unique_lock lock(mutex_);
    lost_.wait(lock, [this] { return !places_.empty(); });
    return places_;
  }

  std::atomic<std::uint64_t> oldest_open = 0;

 private:
  std::mutex mutex_;
  std::condition_variable lost_;
  std::optional<Error> loss_;
  std::string places_;
};

class ConnectionTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Connection>> Attach(const std::string& path,
                                             TimeNs call_timeout_ns = 10 * kSecond) {
    return Connection::Attach({.socket_path = path,
                               .job = "test",
                               .rank = 2,
                               .world_size = 4,
                               .rendezvous = "node1:7733",
                               .architecture = "all-reduce",
                               .program = "connection_test",
                               .call_timeout_ns = call_timeout_ns},
                              channel_.fd.get(), doorbell_.get(), losses_);
  }

  ipc::Channel::Created channel_ = ipc::Channel::Create().value();
  UniqueFd doorbell_{::eventfd(0, EFD_CLOEXEC)};
  LossRecorder losses_;
};

TEST_F(ConnectionTest, AttachesWithItsChannelAndSaysWhatItIs) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok()) << connection.error().text();
  EXPECT_EQ((*connection)->grant().timeout_ms, 1500U);
  EXPECT_EQ((*connection)->service_pid(), ::getpid());
  EXPECT_EQ(service.seen().rank, 2U);
  EXPECT_EQ(service.seen().program, "connection_test");
  EXPECT_EQ(service.seen().rendezvous, "node1:7733");
  EXPECT_EQ(service.seen().architecture, "all-reduce");
  EXPECT_EQ(service.seen().channel_size, ipc::kChannelSize);
}

TEST_F(ConnectionTest, IsToldWhereTheJobsServicesAre) {
  BootstrapEnd service({.refusal = {}, .places = "a a:7733\nb b:7733\n"});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  EXPECT_EQ(losses_.WaitForPlaces(), "a a:7733\nb b:7733\n");
}

TEST_F(ConnectionTest, PassesSegmentsAndTensors) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  const ipc::SealedMemory memory = ipc::CreateSealedMemory("test", 8192).value();
  EXPECT_EQ((*connection)->RegisterSegment(memory.fd.get(), 8192).value(), 3U);
  EXPECT_EQ(service.seen().segment_size, 8192U);
  const std::vector<TensorSpec> tensors(5);
  EXPECT_EQ((*connection)->RegisterTensors(tensors).value(), 11U);
  EXPECT_EQ(service.seen().tensors, 5U);
  EXPECT_TRUE((*connection)->Leave().ok());
  EXPECT_TRUE(service.seen().left);
  EXPECT_FALSE(losses_.lost());
}

TEST_F(ConnectionTest, PassesGpuMemoryInAsManyPiecesAsOneMessageCarries) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  const DeviceHandle handle{.kind = DeviceHandleKind::kPosixFds,
                            .exporter_pid = 77,
                            .device = {1, 2, 3},
                            .offset = 4,
                            .size = 5,
                            .piece_size = 6};
  std::vector<UniqueFd> pieces;
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 1; i <= kDevicePiecesMax; ++i) {
    pieces.push_back(ipc::CreateSealedMemory("test", i * ipc::kPageSize).value().fd);
    sizes.push_back(i * ipc::kPageSize);
  }
  const auto segment = (*connection)->RegisterDeviceSegment(handle, pieces);
  ASSERT_TRUE(segment.ok()) << segment.error().text();
  EXPECT_EQ(*segment, 4U);
  const BootstrapEnd::Seen seen = service.seen();
  EXPECT_EQ(std::memcmp(&seen.handle, &handle, sizeof handle), 0);
  EXPECT_EQ(seen.piece_sizes, sizes);
}

TEST_F(ConnectionTest, PassesAHandleOfGpuMemory) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  DeviceHandle handle{.kind = DeviceHandleKind::kLegacyIpc, .size = 4096};
  handle.legacy.fill(9);
  EXPECT_EQ((*connection)->RegisterDeviceSegment(handle, {}).value(), 4U);
  const BootstrapEnd::Seen seen = service.seen();
  EXPECT_EQ(std::memcmp(&seen.handle, &handle, sizeof handle), 0);
  EXPECT_TRUE(seen.piece_sizes.empty());
}

TEST_F(ConnectionTest, HandsInALayout) {
  BootstrapEnd service({});
  auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  EXPECT_TRUE((*connection)->SetLayout({11, 3, Reduction::kSum, "exact", "int8"}).ok());
  EXPECT_EQ(service.seen().layout, "11 3 1 exact int8");
}

TEST_F(ConnectionTest, TellsTheServicesReasonForRefusingToAttach) {
  BootstrapEnd service(
      {.refusal = Error(Code::kVersionMismatch, "client speaks protocol 1, this service 2")});
  const auto connection = Attach(service.path());
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.error().code(), Code::kVersionMismatch);
  const std::string text = connection.error().text();
  EXPECT_VARYING_TEXT(text, "rank 2");
}

TEST_F(ConnectionTest, TellsTheServicesReasonForRefusingACall) {
  BootstrapEnd service(
      {.refusal = Error(Code::kExhausted, "64 segments are the most"), .refuse_calls = true});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  const std::vector<TensorSpec> tensors(1);
  const auto refused = (*connection)->RegisterTensors(tensors);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_EQ(refused.error().text(), "register tensors: 64 segments are the most");
}

TEST_F(ConnectionTest, NamesAServiceThatDoesNotAnswer) {
  BootstrapEnd service({.refusal = {}, .silent = true});
  const auto connection = Attach(service.path(), 50 * kMillisecond);
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.error().code(), Code::kTimeout);
  EXPECT_VARYING_TEXT(connection.error().text(), "0.1");
}

TEST_F(ConnectionTest, GivesAServiceUpThatDoesNotAnswerACall) {
  BootstrapEnd service({.refusal = {}, .silent_pings = true, .answers_after = 1000});
  const auto connection = Attach(service.path(), kAnswered);
  ASSERT_TRUE(connection.ok());
  const auto segment = (*connection)->RegisterSegment(channel_.fd.get(), 4096);
  ASSERT_FALSE(segment.ok());
  EXPECT_EQ(segment.error().code(), Code::kUnavailable);
  const std::string cause = losses_.Wait().text();
  EXPECT_VARYING_TEXT(cause);
  EXPECT_EQ(segment.error().text(), "register a segment: " + cause);
  EXPECT_EQ((*connection)->ReleaseSegment(1).error().text(), "release a segment: " + cause)
      << "at once, and with the same cause";
  EXPECT_FALSE((*connection)->IsThere());
}

TEST_F(ConnectionTest, GivesAServiceUpThatEndsNoOperationAndDoesNotAnswer) {
  BootstrapEnd service({.refusal = {}, .silent_pings = true, .timeout_ms = 100});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  losses_.oldest_open = 7;
  const TimeNs begin = MonotonicNow();
  const Error loss = losses_.Wait();
  EXPECT_GE(MonotonicNow() - begin, kSecond);
  EXPECT_EQ(loss.code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(loss.text());
  EXPECT_EQ((*connection)->ReleaseSegment(1).error().text(), "release a segment: " + loss.text());
}

TEST_F(ConnectionTest, AsksAgainWhileAnOperationIsOpenAndTheServiceLives) {
  BootstrapEnd service({.refusal = {}, .timeout_ms = 100});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  losses_.oldest_open = 7;
  while (service.seen().pings < 3) std::this_thread::yield();
  EXPECT_FALSE(losses_.lost());
}

TEST_F(ConnectionTest, WaitsForASegmentAsLongAsTheServiceGetsOnWithIt) {
  const UniqueFd memory(::memfd_create("connection_test", MFD_CLOEXEC));
  constexpr int kQuestions = 4;
  BootstrapEnd service({.refusal = {}, .gets_on = kQuestions, .answers_after = kQuestions});
  const auto connection = Attach(service.path(), kAnswered);
  ASSERT_TRUE(connection.ok());
  const TimeNs begun_ns = MonotonicNow();
  const auto segment = (*connection)->RegisterSegment(memory.get(), 4096);
  ASSERT_TRUE(segment.ok()) << segment.error().text();
  EXPECT_EQ(*segment, 3U);
  EXPECT_GE(MonotonicNow() - begun_ns, kQuestions * kAnswered);
}

TEST_F(ConnectionTest, WaitsNoLongerForASegmentThanTheServiceGetsOn) {
  const UniqueFd memory(::memfd_create("connection_test", MFD_CLOEXEC));
  BootstrapEnd service({.refusal = {}, .gets_on = 2, .answers_after = 1000});
  const auto connection = Attach(service.path(), kAnswered);
  ASSERT_TRUE(connection.ok());
  const auto segment = (*connection)->RegisterSegment(memory.get(), 4096);
  ASSERT_FALSE(segment.ok());
  EXPECT_EQ(segment.error().code(), Code::kUnavailable);
  EXPECT_NE(segment.error().text().find(service.path()), std::string::npos)
      << segment.error().text();
}

TEST_F(ConnectionTest, NamesACallTheServiceDoesNotKnow) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  const Status status = (*connection)->ReleaseSegment(3);  // BootstrapEnd has no such method
  EXPECT_EQ(status.code(), Code::kVersionMismatch);
}

TEST_F(ConnectionTest, NoticesAtOnceThatTheServiceIsGone) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  service.Vanish();
  const Error loss = losses_.Wait();
  EXPECT_EQ(loss.code(), Code::kUnavailable);
  EXPECT_NE(loss.text().find(service.path() + " (pid "), std::string::npos) << loss.text();
  EXPECT_VARYING_TEXT(loss.text());
  const auto later = (*connection)->RegisterTensors(std::vector<TensorSpec>(1));
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().text(), "register tensors: " + loss.text());
}

TEST_F(ConnectionTest, EndsACallTheServiceDiesIn) {
  BootstrapEnd service({.refusal = {}, .silent = true});
  std::thread killer([&service] {
    // The call may come before or after this; both must end in the same words.
    service.Vanish();
  });
  const auto connection = Attach(service.path());
  killer.join();
  ASSERT_FALSE(connection.ok());
  EXPECT_EQ(connection.error().code(), Code::kUnavailable) << connection.error().text();
}

TEST_F(ConnectionTest, ServesManyThreadsAtOnce) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&connection] {
      for (int n = 0; n < 50; ++n) {
        EXPECT_EQ((*connection)->RegisterTensors(std::vector<TensorSpec>(2)).value(), 11U);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(service.seen().tensors, 800U);
}

// The service of the test knows no such call, as an older one might not.
TEST_F(ConnectionTest, NamesTheOlderSideWhenTheServiceDoesNotKnowACall) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  const Status released = (*connection)->ReleaseSegment(3);
  EXPECT_EQ(released.code(), Code::kVersionMismatch);
  EXPECT_VARYING_TEXT(released.error().text());
}

TEST_F(ConnectionTest, KnowsThatTheServiceHungUp) {
  BootstrapEnd service({});
  const auto connection = Attach(service.path());
  ASSERT_TRUE(connection.ok());
  EXPECT_TRUE((*connection)->IsThere());
  service.Vanish();
  EXPECT_EQ(losses_.Wait().code(), Code::kUnavailable);
  EXPECT_FALSE((*connection)->IsThere());
}

TEST_F(ConnectionTest, LeavesNoDescriptorBehind) {
  BootstrapEnd service({});
  Attach(service.path()).value().reset();
  const std::size_t before = OpenDescriptors();
  for (int i = 0; i < 50; ++i) Attach(service.path()).value().reset();
  // The service's thread closes its ends a little later; it never has more than a few open.
  EXPECT_LE(OpenDescriptors(), before + 8);
}

// The first kj loop of a process ignores SIGPIPE. In a process of this test's own that is the
// connection's, because a mere listener stands in for the service; after other tests it would be
// the one of their service.
TEST_F(ConnectionTest, LeavesTheProgramsSignalsAsTheyWere) {
  const auto changed = [this] {
    ::signal(SIGPIPE, SIG_DFL);  // what other tests of this program left is inherited
    const std::string path = testing::TempDir() + "headrace-signals-" + std::to_string(::getpid());
    const UniqueFd listener = ListenAt(path);
    const bool timed_out = Attach(path, 20 * kMillisecond).error().code() == Code::kTimeout;
    std::filesystem::remove(path);
    struct sigaction pipe {};
    ::sigaction(SIGPIPE, nullptr, &pipe);
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return (timed_out ? 0 : 1) + (pipe.sa_handler == SIG_DFL ? 0 : 2) +
           (::sigismember(&mask, SIGTERM) == 0 ? 0 : 4);
  };
  testing::GTEST_FLAG(death_test_style) = "threadsafe";  // runs the program anew
  EXPECT_EXIT(::_exit(changed()), testing::ExitedWithCode(0), "");
}

TEST(ServiceSocket, NamesThePathAndTheRemedyWhenNothingIsThere) {
  const auto socket = ConnectToService("/nonexistent/headrace.sock", kSecond);
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.error().code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(socket.error().text(), "/nonexistent/headrace.sock");
}

TEST(ServiceSocket, SaysWhenTheSocketIsStale) {
  std::string path;
  {
    BootstrapEnd service({});
    path = service.path() + "-stale";
    std::filesystem::rename(service.path(), path);
  }
  const auto socket = ConnectToService(path, kSecond);
  std::filesystem::remove(path);
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.error().code(), Code::kUnavailable);
  EXPECT_VARYING_TEXT(socket.error().text());
}

TEST(ServiceSocket, RefusesAPathThatIsNoAddress) {
  EXPECT_EQ(ConnectToService("", kSecond).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ConnectToService("/" + std::string(200, 'x'), kSecond).error().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace headrace::client
