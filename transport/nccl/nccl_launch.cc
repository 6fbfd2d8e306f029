#include "transport/nccl/nccl_launch.h"

#include <fmt/format.h>

#include <utility>

#include "transport/nccl/nccl_scalar.h"

namespace headrace::transport {
namespace {

// An average over all ranks is NCCL's own; by another divisor, inputs are scaled before the sum.
Result<NcclReduction> ReductionOf(NcclLaunch& launch) {
  if (launch.reduction != Reduction::kAverage) return NcclReductionOf(launch.reduction);
  if (launch.divisor == launch.rank->ranks_count) return kNcclAverage;
  NcclScalar scalar = InverseOf(launch.divisor, launch.dtype);
  const NcclComm comm = launch.rank->comm;
  const NcclResult made = launch.library->call().make_scaled_sum(
      &launch.scaled, scalar.data(), NcclTypeOf(launch.dtype), kNcclScalarNow, comm);
  if (made == NcclResult::kSuccess) return launch.scaled;
  launch.scaled = kNcclSum;
  return launch.library->Failed(made, fmt::format("divide by {}", launch.divisor), comm);
}

NcclResult Ask(const NcclLaunch& launch, const NcclCall& call, NcclReduction reduction) {
  const NcclFunctions& nccl = launch.library->call();
  const NcclComm comm = launch.rank->comm;
  const CuStream stream = launch.stream;
  const NcclType type = NcclTypeOf(launch.dtype);
  const auto root = static_cast<int>(call.root);
  switch (call.kind) {
    case Collective::kAllReduce:
      return nccl.all_reduce(call.source, call.target, call.count, type, reduction, comm, stream);
    case Collective::kReduce:
      return nccl.reduce(call.source, call.target, call.count, type, reduction, root, comm, stream);
    case Collective::kBroadcast:
      return nccl.broadcast(call.source, call.target, call.count, type, root, comm, stream);
    case Collective::kReduceScatter:
      return nccl.reduce_scatter(call.source, call.target, call.count, type, reduction, comm,
                                 stream);
    case Collective::kAllGather:
      return nccl.all_gather(call.source, call.target, call.count, type, comm, stream);
    case Collective::kBarrier:
      break;
  }
  return NcclResult::kInvalidUsage;
}

Status MakeCall(const NcclLaunch& launch, const NcclCall& call, NcclReduction reduction) {
  const NcclResult result = Ask(launch, call, reduction);
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return {};
  return launch.library->Failed(
      result,
      fmt::format("{} of {} {} on rank {} of {}", Name(call.kind), call.count, Name(launch.dtype),
                  launch.rank->number, launch.rank->ranks_count),
      launch.rank->comm);
}

Status MakeCalls(NcclLaunch& launch) {
  const NcclLibrary& library = *launch.library;
  const Result<NcclReduction> reduction = ReductionOf(launch);
  if (!reduction) return reduction.error();
  Status done = library.Check(library.call().group_start(), "begin calls");
  if (!done) return done;
  for (const NcclCall& call : launch.calls) {
    done = MakeCall(launch, call, *reduction);
    if (!done) break;
  }
  // Ends what was begun also after an error, which is the cause that counts.
  const Status ended = library.Check(library.call().group_end(), "hand over calls");
  return done ? ended : done;
}

Error FailedRank(const NcclLaunch& launch, NcclResult state) {
  return launch.library->Failed(
      state, fmt::format("rank {} of {}", launch.rank->number, launch.rank->ranks_count),
      launch.rank->comm);
}

// A rank that an earlier piece ended with an error refuses whatever comes next: the error counts.
Status FirstCause(const NcclLaunch& launch, Status refused) {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = launch.library->call().get_async_error(launch.rank->comm, &state);
  const bool is_error = asked == NcclResult::kSuccess && state != NcclResult::kSuccess &&
                        state != NcclResult::kInProgress;
  return is_error ? Status(FailedRank(launch, state)) : std::move(refused);
}

}  // namespace

void BeginLaunch(NcclLaunch& launch) {
  launch.scaled = kNcclSum;
  launch.marked = false;
  launch.status = {};
  if (launch.rank->ends.load()) {
    launch.status = Error(Code::kCancelled, "the ranks are being ended");
    return;
  }
  launch.status = MakeCalls(launch);
  if (!launch.status) launch.status = FirstCause(launch, std::move(launch.status));
}

bool IsLaunched(NcclLaunch& launch) {
  if (!launch.status || launch.rank->ends.load()) return true;
  const NcclLibrary& library = *launch.library;
  const NcclComm comm = launch.rank->comm;
  NcclResult state = NcclResult::kInProgress;
  const NcclResult asked = library.call().get_async_error(comm, &state);
  if (asked != NcclResult::kSuccess) {
    launch.status = library.Failed(asked, "ask a rank", comm);
    return true;
  }
  if (state == NcclResult::kInProgress) return false;
  if (state != NcclResult::kSuccess) {
    launch.status = FailedRank(launch, state);
    return true;
  }
  const NcclReduction scaled = std::exchange(launch.scaled, kNcclSum);
  // It goes with its rank at the latest, so a refusal costs nothing.
  if (scaled != kNcclSum) library.call().drop_reduction(scaled, comm);
  return true;
}

void MarkLaunch(NcclLaunch& launch) {
  if (!launch.status || launch.rank->ends.load()) return;
  const CudaDriver& driver = *launch.context->get().driver;
  const CurrentContext current(driver, launch.context->get().context);
  launch.status = driver.Check(driver.call().event_record(launch.mark, launch.stream),
                               "mark the end of a piece");
  launch.marked = launch.status.ok();
}

}  // namespace headrace::transport
