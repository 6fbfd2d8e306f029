// The data path on real threads, as the daemon runs it: clients post, ring the doorbell when they
// are told to and sleep on their completion words. No wake-up may be lost on the way.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "service/actor/actor_set.h"
#include "service/actor/late_wake.h"
#include "service/actor/runner.h"
#include "service/dispatch/dispatch.h"
#include "service/lane/lane.h"
#include "service/mapping/mapper.h"
#include "service/watch/watch.h"
#include "tests/support/client_end.h"
#include "tests/support/recording.h"
#include "transport/shm/shm_transport.h"

namespace headrace::service {
namespace {

// Long enough that a test which needs it is known to be broken, and not merely slow.
constexpr TimeNs kFar = 30 * kSecond;
constexpr std::size_t kSegmentSize = std::size_t{1} << 20;

struct Way {
  const char* name;
  bool dedicated_lane;
  TimeNs spin_ns;
  bool run_each_other = false;  // dispatch and the lane, where the other's thread sleeps
};

// One training process: its own ends of channel, doorbell and memory.
class Process {
 public:
  Process(InboxWriter<DispatchMessage>& dispatch, std::uint32_t rank, std::uint32_t world_size) {
    ipc::Channel::Created created = ipc::Channel::Create().value();
    SessionIdentity identity;
    identity.id = {rank + 1};
    identity.job = {1};
    identity.job_name = "job";
    identity.rank = rank;
    identity.world_size = world_size;
    identity.timeout_ms = 60'000;
    UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bell_ = Duplicate(bell.get()).value();
    Send(dispatch,
         OpenSession{std::make_unique<Session>(
             std::move(identity), ipc::Channel::Open(created.fd.get()).value(), std::move(bell))});
    ipc::SealedMemory memory = ipc::CreateSealedMemory("headrace-test", kSegmentSize).value();
    Send(dispatch, AddSegment{SessionId{rank + 1}, SegmentId{0},
                              ipc::MapSealedMemory(memory.fd.get(), kSegmentSize).value()});
    memory_ = std::move(memory.mapping);
    channel_ = std::make_unique<ipc::Channel>(std::move(created.channel));
  }

  // Posts `count` operations, some at a time, and waits for each; how many did not end well.
  int Train(int count) {
    ipc::RingWriter writer(channel_->layout());
    const ipc::CompletionReader completions(channel_->layout());
    int failed = 0;
    for (int i = 0; i < count;) {
      for (int burst = i % 5; burst >= 0 && i < count; --burst, ++i) {
        // What is open at the same time has memory of its own.
        constexpr std::uint64_t kPlace = kSegmentSize / 8;
        const bool large = i % 50 == 0;
        ipc::Record record =
            i % 7 == 0
                ? support::Barrier()
                : support::OnSegment(Collective::kAllReduce, DType::kInt32, large ? kPlace / 4 : 16,
                                     static_cast<std::uint64_t>(i % 8) * kPlace);
        if (writer.Write(record)) Ring();
      }
      const std::uint64_t last = writer.next_sequence() - 1;
      if (!completions.Wait(last, kFar) || completions.Read(last).code != Code::kOk) ++failed;
    }
    return failed;
  }

 private:
  static void Send(InboxWriter<DispatchMessage>& dispatch, DispatchMessage message) {
    ASSERT_TRUE(dispatch.Send(std::move(message)));
  }
  void Ring() const {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(bell_.get(), &one, sizeof one), 8);
  }

  std::unique_ptr<ipc::Channel> channel_;
  UniqueFd bell_;
  Mapping memory_;
};

class DispatchThreads : public ::testing::TestWithParam<Way> {};

TEST_P(DispatchThreads, LoseNoWakeBetweenClientsDispatchAndLane) {
  constexpr std::uint32_t kRanks = 3;
  constexpr int kOperations = 1000;
  const auto board = std::make_unique<ipc::BoardLayout>();
  const std::unique_ptr<Sleeper> bed = std::move(Sleeper::Create().value());
  const std::unique_ptr<Sleeper> lane_bed = std::move(Sleeper::Create().value());
  support::CountingWakeable nobody;
  support::RecordingInbox<RpcMessage> rpc;
  support::RecordingInbox<PeersMessage> peers;
  Watch watch(nobody, rpc, peers, *board, [](const Event&) {});
  Mapper mapper(nobody, rpc, *board);
  Sleeper& lane_thread = GetParam().dedicated_lane ? *lane_bed : *bed;
  LaneWaker waker(lane_thread);
  transport::ShmTransport transport(2, waker);
  Dispatch dispatch(*bed, *bed, rpc, peers, watch.inbox(), mapper.inbox(), *board);
  LateWake dispatch_wake(*bed);
  LateWake lane_wake(lane_thread);
  LateInbox<DispatchMessage> to_dispatch(dispatch.inbox(), dispatch_wake);
  Lane lane(0, "lane0", transport, waker, lane_thread, to_dispatch);
  LateInbox<LaneMessage> to_lane(lane.inbox(), lane_wake);
  std::vector<LanePort> ports;
  ports.push_back({.name = "lane0",
                   .transport = "shm",
                   .threads = 2,
                   .credit_bytes = std::uint64_t{1} << 20,
                   .inbox = &to_lane});
  dispatch.ConnectLanes(std::move(ports));
  std::vector<std::unique_ptr<Process>> processes;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    processes.push_back(std::make_unique<Process>(dispatch.inbox(), rank, kRanks));
  }
  {
    std::vector<Actor*> shared{&dispatch};
    if (!GetParam().dedicated_lane) shared.push_back(&lane);
    ActorSet data(shared, *bed);
    ActorSet of_lane({&lane}, *lane_bed);
    if (GetParam().run_each_other) {
      data.AddReceiver(lane_wake, of_lane);
      of_lane.AddReceiver(dispatch_wake, data);
    }
    const Runner runner("dispatch", data, *bed, GetParam().spin_ns);
    std::unique_ptr<Runner> lane_runner;
    if (GetParam().dedicated_lane) {
      lane_runner = std::make_unique<Runner>("lane", of_lane, *lane_bed, GetParam().spin_ns);
    }
    std::vector<std::jthread> threads;
    for (const std::unique_ptr<Process>& process : processes) {
      threads.emplace_back([&process] { EXPECT_EQ(process->Train(kOperations), 0); });
    }
  }
  EXPECT_EQ(ipc::ReadRow(board->counters)->operations_ended, kOperations);
  EXPECT_EQ(ipc::ReadRow(board->counters)->operations_failed, 0U);
  EXPECT_TRUE(rpc.messages.empty());
  EXPECT_TRUE(peers.messages.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DispatchThreads,
    ::testing::Values(Way{"SharedThreadThatSleepsAtOnce", false, 0},
                      Way{"SharedThreadThatSpinsFirst", false, 20 * kMicrosecond},
                      Way{"DedicatedLaneThatSleepsAtOnce", true, 0},
                      Way{"DedicatedLaneThatSpinsFirst", true, 20 * kMicrosecond},
                      Way{"DispatchAndLaneThatRunEachOther", true, 0, true},
                      Way{"DispatchAndLaneThatSpinAndRunEachOther", true, 20 * kMicrosecond, true}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace headrace::service
