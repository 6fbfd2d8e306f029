#include "transport/nccl/nccl_launcher.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

// NCCL is mostly done within microseconds, or else busy connecting for much longer.
constexpr TimeNs kLookWithoutSleep = 50 * kMicrosecond;
constexpr std::chrono::microseconds kLookEvery(20);

}  // namespace

struct NcclLauncher::State {
  // Where the thread is. Whoever exchanges kInNccl for something else decides: the thread, that it
  // came back in time; the owner, that it is given up.
  enum class Place : std::uint32_t { kHere, kInNccl, kGivenUp, kEnded };

  void Run();
  // False when the owner is gone, and everything else with it.
  bool Carry(NcclLaunch& launch);

  std::shared_ptr<const NcclLibrary> library;
  std::array<NcclLaunch, kLaunchesMax> launches;
  // Launches below `posted` are the thread's until `done` is beyond them: each release store pairs
  // with the other side's acquire load. 32 bits, which is what a futex waits for; they wrap.
  std::atomic<std::uint32_t> posted = 0;
  std::atomic<std::uint32_t> done = 0;
  std::atomic<bool> stops = false;
  std::atomic<Place> place = Place::kHere;
};

void NcclLauncher::State::Run() {
  std::uint32_t next = 0;
  for (;;) {
    // The owner bumps `posted` once more when it stops, so that no wake is lost.
    posted.wait(next, std::memory_order_acquire);
    if (stops.load()) break;
    NcclLaunch& launch = launches[next % kLaunchesMax];
    const bool goes_on = Carry(launch);
    if (!goes_on) return;
    const std::uint32_t before = launch.rank->launches.fetch_sub(1, std::memory_order_release);
    HR_CHECK(before > 0, next);
    launch.rank.reset();
    done.store(++next, std::memory_order_release);
  }
  place = Place::kEnded;
  place.notify_all();
}

bool NcclLauncher::State::Carry(NcclLaunch& launch) {
  place = Place::kInNccl;
  BeginLaunch(launch);
  const TimeNs begun_ns = MonotonicNow();
  while (!IsLaunched(launch)) {
    if (MonotonicNow() - begun_ns < kLookWithoutSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kLookEvery);
    }
  }
  Place expected = Place::kInNccl;
  if (!place.compare_exchange_strong(expected, Place::kHere)) return false;
  MarkLaunch(launch);
  return true;
}

NcclLauncher::NcclLauncher(std::shared_ptr<const NcclLibrary> library, std::size_t calls_max)
    : has_thread_(library != nullptr), state_(std::make_shared<State>()) {
  state_->library = std::move(library);
  for (NcclLaunch& launch : state_->launches) launch.calls.reserve(calls_max);
  if (!has_thread_) return;
  // NCCL is known to keep a thread for good now and then.
  std::thread thread([state = state_] { state->Run(); });
  pthread_setname_np(thread.native_handle(), "nccl launch");
  thread.detach();
}

void NcclLauncher::Stop() {
  if (!has_thread_ || stopped_ns_ != kNever) return;
  stopped_ns_ = MonotonicNow();
  state_->stops = true;
  state_->posted.fetch_add(1);
  state_->posted.notify_all();
}

NcclLauncher::~NcclLauncher() {
  if (!has_thread_) return;
  Stop();
  State& state = *state_;
  const TimeNs deadline = stopped_ns_ + kEndWait;
  while (state.place.load() != State::Place::kEnded) {
    State::Place expected = State::Place::kInNccl;
    const bool is_late = MonotonicNow() > deadline;
    if (is_late && state.place.compare_exchange_strong(expected, State::Place::kGivenUp)) return;
    std::this_thread::sleep_for(kLookEvery);
  }
}

NcclLaunch& NcclLauncher::Next() {
  const std::uint32_t next = state_->posted.load();
  HR_CHECK(next - state_->done.load(std::memory_order_acquire) < kLaunchesMax, next);
  NcclLaunch& launch = state_->launches[next % kLaunchesMax];
  launch.calls.clear();
  return launch;
}

std::uint32_t NcclLauncher::Post() {
  State& state = *state_;
  const std::uint32_t number = state.posted.load();
  NcclLaunch& launch = state.launches[number % kLaunchesMax];
  HR_CHECK(launch.rank != nullptr, number);
  if (!has_thread_) BeginLaunch(launch);
  launch.rank->launches.fetch_add(1);
  state.posted.store(number + 1, std::memory_order_release);
  if (has_thread_) state.posted.notify_one();
  return number;
}

bool NcclLauncher::IsDone(std::uint32_t number) {
  State& state = *state_;
  HR_CHECK(static_cast<std::int32_t>(state.posted.load() - number) > 0, number);
  // They end in order.
  const std::uint32_t done = state.done.load(std::memory_order_acquire);
  if (static_cast<std::int32_t>(done - number) > 0) return true;
  if (has_thread_ || done != number) return false;
  NcclLaunch& launch = state.launches[number % kLaunchesMax];
  if (!IsLaunched(launch)) return false;
  MarkLaunch(launch);
  const std::uint32_t before = launch.rank->launches.fetch_sub(1);
  HR_CHECK(before > 0, number);
  launch.rank.reset();
  state.done = number + 1;
  return true;
}

bool NcclLauncher::IsMarked(std::uint32_t number) {
  return IsDone(number) && state_->launches[number % kLaunchesMax].marked;
}

const Status& NcclLauncher::StatusOf(std::uint32_t number) const {
  const std::uint32_t done = state_->done.load(std::memory_order_acquire);
  HR_CHECK(static_cast<std::int32_t>(done - number) > 0, number, done);
  return state_->launches[number % kLaunchesMax].status;
}

}  // namespace headrace::transport
