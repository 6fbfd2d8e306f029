#include "transport/nccl/nccl_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"

namespace headrace::transport {
namespace {

// Between two looks at ranks that finish. Nobody waits for the threads that look.
constexpr std::chrono::microseconds kLookEvery(100);
// For a launch thread to leave a rank that is to be ended. One that NCCL holds back longer is freed
// by the abort itself.
constexpr TimeNs kLeaveWait = 20 * kMillisecond;

// Whether the rank's last calls and those of all others have ended; false after an error, or after
// NcclGroup::kEndWait.
bool Finalize(const NcclFunctions& call, NcclComm comm) {
  const NcclResult result = call.finalize(comm);
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) return false;
  const TimeNs deadline = MonotonicNow() + NcclGroup::kEndWait;
  NcclResult state = NcclResult::kInProgress;
  while (state == NcclResult::kInProgress) {
    if (MonotonicNow() > deadline) return false;
    if (call.get_async_error(comm, &state) != NcclResult::kSuccess) return false;
    if (state == NcclResult::kInProgress) std::this_thread::sleep_for(kLookEvery);
  }
  return state == NcclResult::kSuccess;
}

void AwaitLaunches(const NcclRank& rank) {
  const TimeNs deadline = MonotonicNow() + kLeaveWait;
  while (rank.launches.load(std::memory_order_acquire) != 0 && MonotonicNow() < deadline) {
    std::this_thread::sleep_for(kLookEvery);
  }
}

}  // namespace

struct NcclGroup::Ending {
  // What destroy and abort return is of no use: there is nothing left to call.
  void Run(const NcclFunctions& call, const NcclRank& rank, bool finish) {
    AwaitLaunches(rank);
    const bool finished = finish && Finalize(call, rank.comm);
    finished ? call.destroy(rank.comm) : call.abort(rank.comm);
    const std::lock_guard lock(mutex);
    --ranks_left;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t ranks_left = 0;
};

NcclGroup::NcclGroup(const NcclLibrary& library, std::vector<NcclSeat> seats,
                     std::uint32_t ranks_count)
    : library_(library), seats_(std::move(seats)), ranks_count_(ranks_count) {
  for (const NcclSeat& seat : seats_) {
    ranks_.push_back(std::make_shared<NcclRank>());
    ranks_.back()->number = seat.rank;
    ranks_.back()->ranks_count = ranks_count_;
  }
}

Result<std::unique_ptr<NcclGroup>> NcclGroup::Form(const NcclLibrary& library,
                                                   std::vector<NcclSeat> seats,
                                                   std::uint32_t ranks_count, const NcclId& id,
                                                   std::uint32_t ctas_max) {
  HR_CHECK(!seats.empty() && seats.size() <= ranks_count, seats.size(), ranks_count);
  std::unique_ptr<NcclGroup> group(new NcclGroup(library, std::move(seats), ranks_count));
  if (auto done = group->Begin(id, ctas_max); !done) return done.error();
  return group;
}

Status NcclGroup::Begin(const NcclId& id, std::uint32_t ctas_max) {
  const NcclFunctions& call = library_.call();
  NcclConfig config;
  if (ctas_max != 0) config.ctas_max = static_cast<int>(ctas_max);
  Status done = library_.Check(call.group_start(), "form ranks");
  if (!done) return done;
  for (std::size_t i = 0; done && i < seats_.size(); ++i) {
    const PrimaryContext& context = *seats_[i].context;
    const CurrentContext current(*context.get().driver, context.get().context);
    done = context.get().driver->Check(current.result(), "form a rank");
    if (!done) break;
    done = library_.Check(call.init_rank(&ranks_[i]->comm, static_cast<int>(ranks_count_), id,
                                         static_cast<int>(seats_[i].rank), &config),
                          fmt::format("form rank {} of {}", seats_[i].rank, ranks_count_));
  }
  // Ends what was started also after an error, which is the cause that counts.
  const Status ended = library_.Check(call.group_end(), "form ranks");
  return done ? ended : done;
}

NcclGroup::~NcclGroup() {
  if (!ending_) Abort();
  std::unique_lock lock(ending_->mutex);
  ending_->changed.wait_for(lock, std::chrono::nanoseconds(kEndWait),
                            [this] { return ending_->ranks_left == 0; });
}

Result<bool> NcclGroup::Poll() {
  HR_CHECK(!ending_);
  bool done = true;
  for (const auto& rank : ranks_) {
    // Its launch thread asks, and NCCL wants one at a time.
    if (rank->launches.load(std::memory_order_acquire) != 0) {
      done = false;
      continue;
    }
    NcclResult state = NcclResult::kInProgress;
    const NcclResult asked = library_.call().get_async_error(rank->comm, &state);
    if (asked != NcclResult::kSuccess) return library_.Failed(asked, "ask a rank", rank->comm);
    if (state == NcclResult::kInProgress) {
      done = false;
    } else if (state != NcclResult::kSuccess) {
      return library_.Failed(state, fmt::format("rank {} of {}", rank->number, ranks_count_),
                             rank->comm);
    }
  }
  return done;
}

void NcclGroup::Finish() { End(true); }

void NcclGroup::Abort() { End(false); }

void NcclGroup::End(bool finish) {
  HR_CHECK(!ending_);
  ending_ = std::make_shared<Ending>();
  std::vector<std::shared_ptr<NcclRank>> ranks = std::move(ranks_);
  ranks_.clear();
  for (const auto& rank : ranks) rank->ends = !finish;
  std::erase_if(ranks, [](const auto& rank) { return rank->comm == nullptr; });
  ending_->ranks_left = ranks.size();
  // NCCL is known to block in an abort now and then; it may have these threads for good. Each rank
  // has its own, since ranks of one process may wait for each other there.
  for (auto& rank : ranks) {
    std::thread([ending = ending_, call = library_.call(), rank = std::move(rank), finish] {
      ending->Run(call, *rank, finish);
    }).detach();
  }
}

bool NcclGroup::ended() const {
  if (!ending_) return false;
  const std::lock_guard lock(ending_->mutex);
  return ending_->ranks_left == 0;
}

}  // namespace headrace::transport
