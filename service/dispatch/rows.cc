#include "service/dispatch/rows.h"

#include <bit>

#include "ipc/board.h"

namespace headrace::service {
namespace {

ipc::StageState StateOf(const Operation& operation) {
  switch (operation.state) {
    case Operation::State::kGathering:
      return ipc::StageState::kGathering;
    case Operation::State::kMoving:
      return ipc::StageState::kMoving;
    default:
      return ipc::StageState::kWaiting;
  }
}

ipc::JobState StateOf(const Job& job) {
  if (job.failed) return ipc::JobState::kFailed;
  return job.attached() < job.world_size() ? ipc::JobState::kGathering : ipc::JobState::kRunning;
}

}  // namespace

ipc::JobRow MakeJobRow(const Job& job) {
  ipc::JobRow row{};
  row.id = job.id().value;
  row.state = static_cast<std::uint32_t>(StateOf(job));
  row.owner_uid = job.owner_uid();
  row.world_size = job.world_size();
  row.ranks_attached = job.attached();
  row.epoch = job.epoch();
  row.opened_ns = job.opened_ns();
  row.operations_ended = job.operations_ended;
  row.operations_failed = job.operations_failed;
  row.bytes_moved = job.bytes_moved;
  row.operations_open = job.operations_open;
  ipc::SetText(row.name, job.name());
  ipc::SetText(row.failure, job.failure ? job.failure->text : job.waits_for);
  return row;
}

ipc::RankRow MakeRankRow(const Job& job, std::uint32_t rank) {
  const Member& member = job.members()[rank];
  const Session& session = *member.session;
  ipc::RankRow row{};
  row.job_id = job.id().value;
  row.rank = rank;
  row.pid = session.identity().pid;
  row.tensors = static_cast<std::uint32_t>(session.tensors_count());
  row.segment_bytes = session.segment_bytes();
  row.operations_posted = member.posted;
  row.operations_ended = member.ended;
  row.attached_ns = session.identity().attached_ns;
  return row;
}

ipc::QueueRow MakeQueueRow(const Job& job, const Operation& operation) {
  ipc::QueueRow row{};
  row.block = operation.shape.sequence;
  row.job_id = job.id().value;
  row.state = static_cast<std::uint32_t>(StateOf(operation));
  row.reason = static_cast<std::uint32_t>(operation.reason);
  row.wait_argument = operation.reason_argument;
  row.ranks_missing = job.local_ranks() & ~operation.posted;
  row.bytes = operation.shape.Bytes();
  row.stage = static_cast<std::uint8_t>(operation.step);
  row.kind = static_cast<std::uint8_t>(operation.shape.kind);
  row.dtype = static_cast<std::uint8_t>(operation.shape.dtype);
  row.lane = operation.lane;
  row.posted_ns = operation.opened_ns;
  row.since_ns = operation.since_ns;
  ipc::SetText(row.tensor, job.TensorName(operation));
  return row;
}

}  // namespace headrace::service
