#include "transport/nccl/nccl_group.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
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

struct NcclGroup::Forming {
  struct LocalRank {
    CuContext context = nullptr;
    std::shared_ptr<NcclRank> rank;
  };

  void Run();
  NcclResult FormAll();
  NcclResult FormOne(const LocalRank& local_rank);

  // Copies: the group may be gone before NCCL lets this thread go.
  NcclFunctions call;
  decltype(CudaFunctions::ctx_push) push_context = nullptr;
  std::vector<LocalRank> local_ranks;
  std::optional<NcclId> id;
  NcclConfig config;

  // What NCCL said, and of what; read by others once `done` is set, whose store is a release.
  NcclResult result = NcclResult::kSuccess;
  std::string doing;
  std::atomic<bool> done = false;
};

void NcclGroup::Forming::Run() {
  result = FormAll();
  done.store(true, std::memory_order_release);
  done.notify_all();
}

NcclResult NcclGroup::Forming::FormAll() {
  if (!id) {
    doing = "name a set of ranks";
    id.emplace();
    if (const NcclResult made = call.get_unique_id(&*id); made != NcclResult::kSuccess) return made;
  }
  doing = "form ranks";
  NcclResult formed = call.group_start();
  if (formed != NcclResult::kSuccess) return formed;
  for (const LocalRank& local_rank : local_ranks) {
    formed = FormOne(local_rank);
    if (formed != NcclResult::kSuccess && formed != NcclResult::kInProgress) break;
  }
  // Ends what was started also after an error, which is the cause that counts.
  const NcclResult ended = call.group_end();
  const bool goes_on = formed == NcclResult::kSuccess || formed == NcclResult::kInProgress;
  return goes_on ? ended : formed;
}

// The context stays current: the thread ends with this.
NcclResult NcclGroup::Forming::FormOne(const LocalRank& local_rank) {
  const NcclRank& rank = *local_rank.rank;
  doing = fmt::format("form rank {} of {}", rank.number, rank.ranks_count);
  if (push_context(local_rank.context) != CuResult::kSuccess)
    return NcclResult::kUnhandledCudaError;
  return call.init_rank(&local_rank.rank->comm, static_cast<int>(rank.ranks_count), *id,
                        static_cast<int>(rank.number), &config);
}

struct NcclGroup::Ending {
  // What destroy and abort return is of no use: there is nothing left to call.
  void Run(const NcclFunctions& call, const Forming& forming, const NcclRank& rank, bool finish) {
    // NCCL hands over a rank when the call that forms it returns, which waits for no other rank.
    forming.done.wait(false, std::memory_order_acquire);
    if (rank.comm != nullptr) {
      AwaitLaunches(rank);
      const bool finished = finish && Finalize(call, rank.comm);
      finished ? call.destroy(rank.comm) : call.abort(rank.comm);
    }
    const std::lock_guard lock(mutex);
    --ranks_left;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t ranks_left = 0;
};

NcclGroup::NcclGroup(const NcclLibrary& library, std::vector<NcclLocalRank> local_ranks,
                     std::uint32_t ranks_count)
    : library_(library), local_ranks_(std::move(local_ranks)), ranks_count_(ranks_count) {
  for (const NcclLocalRank& local_rank : local_ranks_) {
    ranks_.push_back(std::make_shared<NcclRank>());
    ranks_.back()->number = local_rank.rank;
    ranks_.back()->ranks_count = ranks_count_;
  }
}

std::unique_ptr<NcclGroup> NcclGroup::Form(const NcclLibrary& library,
                                           std::vector<NcclLocalRank> local_ranks,
                                           std::uint32_t ranks_count,
                                           const std::optional<NcclId>& id,
                                           std::uint32_t ctas_max) {
  HR_CHECK(!local_ranks.empty() && local_ranks.size() <= ranks_count, local_ranks.size(),
           ranks_count);
  std::unique_ptr<NcclGroup> group(new NcclGroup(library, std::move(local_ranks), ranks_count));
  group->Begin(id, ctas_max);
  return group;
}

void NcclGroup::Begin(const std::optional<NcclId>& id, std::uint32_t ctas_max) {
  forming_ = std::make_shared<Forming>();
  forming_->call = library_.call();
  forming_->push_context = local_ranks_.front().context->get().driver->call().ctx_push;
  forming_->id = id;
  if (ctas_max != 0) forming_->config.ctas_max = static_cast<int>(ctas_max);
  for (std::size_t i = 0; i < local_ranks_.size(); ++i) {
    forming_->local_ranks.push_back(
        {.context = local_ranks_[i].context->get().context, .rank = ranks_[i]});
  }
  std::thread thread([forming = forming_] { forming->Run(); });
  pthread_setname_np(thread.native_handle(), "nccl form");
  thread.detach();
}

NcclGroup::~NcclGroup() {
  if (!ending_) Abort();
  std::unique_lock lock(ending_->mutex);
  ending_->changed.wait_for(lock, std::chrono::nanoseconds(kEndWait),
                            [this] { return ending_->ranks_left == 0; });
}

Result<bool> NcclGroup::Poll() {
  HR_CHECK(!ending_);
  if (!forming_->done.load(std::memory_order_acquire)) return false;
  if (Status formed = library_.Check(forming_->result, forming_->doing); !formed) {
    return formed.error();
  }
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
  ending_->ranks_left = ranks.size();
  // NCCL is known to block in an abort now and then; it may have these threads for good. Each rank
  // has its own, since ranks of one process may wait for each other there.
  for (auto& rank : ranks) {
    std::thread([ending = ending_, forming = forming_, call = library_.call(),
                 rank = std::move(rank), finish] {
      ending->Run(call, *forming, *rank, finish);
    }).detach();
  }
}

bool NcclGroup::ended() const {
  if (!ending_) return false;
  const std::lock_guard lock(ending_->mutex);
  return ending_->ranks_left == 0;
}

}  // namespace headrace::transport
