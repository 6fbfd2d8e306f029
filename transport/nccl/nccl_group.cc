#include "transport/nccl/nccl_group.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "ipc/base/check.h"
#include "ipc/base/clock.h"
#include "transport/nccl/nccl_scalar.h"

namespace headrace::transport {
namespace {

// Between two looks at ranks that finish. Nobody waits for the thread that looks.
constexpr std::chrono::microseconds kLookEvery(100);

// Whether all have finished; false after an error, or after NcclGroup::kEndWait.
bool AllFinished(const NcclFunctions& call, const std::vector<NcclComm>& comms) {
  const TimeNs deadline = MonotonicNow() + NcclGroup::kEndWait;
  for (const NcclComm comm : comms) {
    NcclResult state = NcclResult::kInProgress;
    while (state == NcclResult::kInProgress) {
      if (MonotonicNow() > deadline) return false;
      if (call.get_async_error(comm, &state) != NcclResult::kSuccess) return false;
      if (state == NcclResult::kInProgress) std::this_thread::sleep_for(kLookEvery);
    }
    if (state != NcclResult::kSuccess) return false;
  }
  return true;
}

bool Finalize(const NcclFunctions& call, const std::vector<NcclComm>& comms) {
  bool good = true;
  for (const NcclComm comm : comms) {
    const NcclResult result = call.finalize(comm);
    good = good && (result == NcclResult::kSuccess || result == NcclResult::kInProgress);
  }
  return good && AllFinished(call, comms);
}

}  // namespace

struct NcclGroup::Ending {
  // What destroy and abort return is of no use: there is nothing left to call.
  void Run(const NcclFunctions& call, const std::vector<NcclComm>& comms, bool finish) {
    const bool finished = finish && Finalize(call, comms);
    for (const NcclComm comm : comms) finished ? call.destroy(comm) : call.abort(comm);
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

NcclGroup::NcclGroup(const NcclLibrary& library, std::vector<NcclSeat> seats,
                     std::uint32_t ranks_count)
    : library_(library),
      seats_(std::move(seats)),
      ranks_count_(ranks_count),
      ranks_(seats_.size()) {}

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
    done = library_.Check(call.init_rank(&ranks_[i].comm, static_cast<int>(ranks_count_), id,
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
                            [this] { return ending_->done; });
}

Result<bool> NcclGroup::Poll() {
  HR_CHECK(!ending_);
  bool done = true;
  for (const Rank& rank : ranks_) {
    NcclResult state = NcclResult::kInProgress;
    const NcclResult asked = library_.call().get_async_error(rank.comm, &state);
    if (asked != NcclResult::kSuccess) return library_.Failed(asked, "ask a rank", rank.comm);
    if (state == NcclResult::kInProgress) {
      done = false;
    } else if (state != NcclResult::kSuccess) {
      const auto seat = static_cast<std::size_t>(&rank - ranks_.data());
      return library_.Failed(state, fmt::format("rank {} of {}", seats_[seat].rank, ranks_count_),
                             rank.comm);
    }
  }
  if (done) DropScaled();
  return done;
}

// An average over all ranks is NCCL's own; by another divisor, inputs are scaled before the sum.
Result<NcclReduction> NcclGroup::ReductionOf(const NcclBatch& batch, Rank& rank) {
  if (batch.reduction != Reduction::kAverage) return NcclReductionOf(batch.reduction);
  if (batch.divisor == ranks_count_) return kNcclAverage;
  if (rank.scaled == kNcclSum) {
    NcclScalar scalar = InverseOf(batch.divisor, batch.dtype);
    const NcclResult made = library_.call().make_scaled_sum(
        &rank.scaled, scalar.data(), NcclTypeOf(batch.dtype), kNcclScalarNow, rank.comm);
    if (made != NcclResult::kSuccess) {
      return library_.Failed(made, fmt::format("divide by {}", batch.divisor), rank.comm);
    }
  }
  return rank.scaled;
}

Status NcclGroup::Launch(const NcclBatch& batch) {
  HR_CHECK(!ending_);
  std::array<NcclReduction, 64> reductions{};
  HR_CHECK(ranks_.size() <= reductions.size(), ranks_.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Result<NcclReduction> reduction = ReductionOf(batch, ranks_[i]);
    if (!reduction) return reduction.error();
    reductions[i] = *reduction;
  }
  Status done = library_.Check(library_.call().group_start(), "begin calls");
  if (!done) return done;
  for (const NcclCall& call : batch.calls) {
    done = Call(batch, call, reductions[call.seat]);
    if (!done) break;
  }
  const Status ended = library_.Check(library_.call().group_end(), "hand over calls");
  return done ? ended : done;
}

Status NcclGroup::Call(const NcclBatch& batch, const NcclCall& call, NcclReduction reduction) {
  const NcclFunctions& nccl = library_.call();
  const NcclComm comm = ranks_[call.seat].comm;
  const CuStream stream = seats_[call.seat].stream;
  const NcclType type = NcclTypeOf(batch.dtype);
  const auto root = static_cast<int>(call.root);
  NcclResult result = NcclResult::kInvalidUsage;
  switch (call.kind) {
    case Collective::kAllReduce:
      result = nccl.all_reduce(call.source, call.target, call.count, type, reduction, comm, stream);
      break;
    case Collective::kReduce:
      result =
          nccl.reduce(call.source, call.target, call.count, type, reduction, root, comm, stream);
      break;
    case Collective::kBroadcast:
      result = nccl.broadcast(call.source, call.target, call.count, type, root, comm, stream);
      break;
    case Collective::kReduceScatter:
      result =
          nccl.reduce_scatter(call.source, call.target, call.count, type, reduction, comm, stream);
      break;
    case Collective::kAllGather:
      result = nccl.all_gather(call.source, call.target, call.count, type, comm, stream);
      break;
    case Collective::kBarrier:
      break;
  }
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return {};
  return library_.Failed(result,
                         fmt::format("{} of {} {} on rank {} of {}", Name(call.kind), call.count,
                                     Name(batch.dtype), seats_[call.seat].rank, ranks_count_),
                         comm);
}

void NcclGroup::DropScaled() {
  for (Rank& rank : ranks_) {
    const NcclReduction scaled = std::exchange(rank.scaled, kNcclSum);
    // It goes with its rank at the latest, so a refusal costs nothing.
    if (scaled != kNcclSum) library_.call().drop_reduction(scaled, rank.comm);
  }
}

void NcclGroup::Finish() { End(true); }

void NcclGroup::Abort() { End(false); }

void NcclGroup::End(bool finish) {
  HR_CHECK(!ending_);
  ending_ = std::make_shared<Ending>();
  std::vector<NcclComm> comms;
  for (const Rank& rank : ranks_) {
    if (rank.comm != nullptr) comms.push_back(rank.comm);
  }
  ranks_.clear();
  // NCCL is known to block in an abort now and then; it may have this thread for good.
  std::thread([ending = ending_, call = library_.call(), comms = std::move(comms), finish] {
    ending->Run(call, comms, finish);
  }).detach();
}

bool NcclGroup::ended() const {
  if (!ending_) return false;
  const std::lock_guard lock(ending_->mutex);
  return ending_->done;
}

}  // namespace headrace::transport
