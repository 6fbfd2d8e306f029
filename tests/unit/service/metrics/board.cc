#include "tests/unit/service/metrics/board.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "ipc/base/collective.h"
#include "ipc/base/error.h"

namespace headrace::service {
namespace {

template <typename Enum>
constexpr std::uint32_t Number(Enum value) {
  return static_cast<std::uint32_t>(value);
}

void WriteService(ipc::BoardLayout& board) {
  ipc::ServiceRow row{};
  row.state = Number(ipc::ServiceState::kRunning);
  row.pid = 4242;
  row.protocol_version = 3;
  row.started_ns = kNow - 4000 * kSecond;
  row.started_unix_ns = 1'795'230'000'123'000'000;
  ipc::SetText(row.version, "0.1.0");
  ipc::SetText(row.reduce_target, "AVX2");
  ipc::WriteRow(board.service, row);
  ipc::CountersRow counters{};
  counters.records_read = 123'456;
  counters.operations_ended = 30'860;
  counters.operations_failed = 4;
  counters.bytes_moved = (std::uint64_t{1} << 60) + 1;  // more than a double can tell
  counters.doorbells = 512;
  counters.sleeps = 498;
  counters.wake_calls = 20'111;
  counters.records_refused = 1;
  counters.sessions_opened = 9;
  counters.sessions_closed = 2;
  counters.queue_rows_left_out = 3;
  counters.late_reports = 5;
  counters.slow_reports = 2;
  counters.quota_refusals = 6;
  counters.jobs_unrecorded = 7;
  counters.blocks_verified = 64;
  counters.failed_by_code[Number(Code::kPeerLost)] = 3;
  counters.failed_by_code[Number(Code::kTimeout)] = 1;
  ipc::WriteRow(board.counters, counters);
}

ipc::JobRow Job(std::uint32_t id, const char* name, ipc::JobState state) {
  ipc::JobRow row{};
  row.id = id;
  row.state = Number(state);
  row.owner_uid = 1000 + id;
  row.world_size = 2;
  row.ranks_attached = 2;
  row.epoch = 1;
  row.weight = 1;
  row.opened_ns = kNow - 100 * kSecond;
  ipc::SetText(row.name, name);
  return row;
}

void WriteJobs(ipc::BoardLayout& board) {
  ipc::JobRow bert = Job(7, "bert", ipc::JobState::kRunning);
  bert.operations_ended = 30'821;
  bert.operations_open = 5;
  bert.bytes_moved = std::uint64_t{779} << 30;
  bert.blocks_ended = 91'000;
  bert.weight = 3;
  bert.priority = 1;
  bert.paused = 1;
  bert.limit_bytes_per_s = 250'000'000;
  bert.gathering_ns = 12'500'000'001;
  bert.waiting_ns = 3 * kSecond;
  bert.moving_ns = 80 * kSecond + 250 * kMillisecond;
  bert.held_ns = 70 * kMillisecond;
  bert.restarts = 2;
  bert.joiners_waiting = 1;
  bert.spares_waiting = 2;
  bert.evictions = 3;
  bert.sends_class = 1;
  bert.sends_ended = 640;
  bert.receives_ended = 512;
  bert.sends_bytes = std::uint64_t{3} << 20;
  bert.sends_waiting = 4;
  bert.encoded_bytes = std::uint64_t{64} << 20;
  bert.encoded_sent_bytes = std::uint64_t{17} << 20;
  bert.encoded_gpu_bytes = std::uint64_t{64} << 20;
  bert.encode_ns = 125 * kMillisecond;
  bert.decode_ns = 62'500'000;
  bert.residual_millionths = 4321;
  ipc::JobRow nasty = Job(8, kNastyJob, ipc::JobState::kFailed);
  nasty.operations_failed = 4;
  nasty.failed_by_code[Number(Code::kPeerLost)] = 4;
  ipc::SetText(nasty.failure, "rank 1 (pid 777) exited \xff after operation 43");
  ipc::WriteRow(board.jobs[2], nasty);
  ipc::WriteRow(board.jobs[63], bert);
  ipc::JobRow old_job = Job(5, "gone", ipc::JobState::kFailed);
  old_job.operations_ended = 99;
  ipc::WriteRow(board.jobs[1], old_job);
  ipc::WriteRow(board.jobs[0], Job(9, "gone", ipc::JobState::kGathering));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ipc::RankRow row{};
    row.job_id = 7;
    row.rank = rank;
    row.pid = static_cast<std::int32_t>(5000 + rank);
    row.tensors = 161;
    row.segment_bytes = std::uint64_t{98} << 20;
    row.operations_posted = 30'826 - rank;
    row.operations_ended = 30'821;
    row.bytes_posted = std::uint64_t{780} << 30;
    row.last_posts = 400 + 600 * rank;
    row.late_ns = (rank + 1) * kSecond;
    row.waited_ns = rank * 2 * kSecond + 1;
    ipc::WriteRow(board.ranks[10 - rank], row);
  }
  ipc::RankRow of_old{};
  of_old.job_id = 5;
  ipc::WriteRow(board.ranks[0], of_old);
}

void WriteQueue(ipc::BoardLayout& board) {
  const auto stage = [&board](std::size_t at, std::uint64_t block, ipc::StageState state,
                              ipc::WaitReason reason, std::uint64_t argument) {
    ipc::QueueRow row{};
    row.block = block;
    row.job_id = 7;
    row.state = Number(state);
    row.reason = Number(reason);
    row.wait_argument = argument;
    row.iteration = 57;
    row.ranks_missing = reason == ipc::WaitReason::kRankNotReady ? 0b10 : 0;
    row.bytes = std::uint64_t{4} << 20;
    row.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
    row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
    row.lane = 1;
    row.tensors = 2;
    row.posted_ns = kNow - 1500 * kMillisecond + static_cast<TimeNs>(block) * kMillisecond;
    row.since_ns = kNow - 1400 * kMillisecond;
    ipc::SetText(row.tensor, "<b>conv1</b>");
    ipc::SetText(row.peer, "node-c");
    ipc::WriteRow(board.queue[at], row);
  };
  using State = ipc::StageState;
  using Reason = ipc::WaitReason;
  stage(1000, 1, State::kMoving, Reason::kNone, 0);
  stage(4, 2, State::kMoving, Reason::kPeer, 0);
  stage(2, 3, State::kWaiting, Reason::kBehindBlock, 2);
  stage(3, 4, State::kWaiting, Reason::kBehindBlock, 3);
  stage(1, 5, State::kGathering, Reason::kRankNotReady, 1);
}

void WriteGpus(ipc::BoardLayout& board) {
  ipc::GpuRow gpu{};
  gpu.in_use = 1;
  gpu.stream_words = 1;
  gpu.memory_size = std::uint64_t{139} << 30;
  gpu.held_bytes = std::uint64_t{2} << 30;
  gpu.segments = 2;
  gpu.capability_major = 9;
  ipc::SetText(gpu.name, "NVIDIA H200");
  ipc::WriteRow(board.gpus[0], gpu);
  gpu.stream_words = 0;
  gpu.mps = 1;
  gpu.held_bytes = 0;
  gpu.segments = 0;
  ipc::WriteRow(board.gpus[1], gpu);
}

void WriteUsers(ipc::BoardLayout& board) {
  ipc::UserRow user{.in_use = 1,
                    .uid = 1000,
                    .connections = 5,
                    .connections_max = 768,
                    .connections_cut = 2,
                    .sessions = 4,
                    .sessions_max = 223,
                    .jobs = 1,
                    .jobs_max = 27,
                    .memory_bytes = std::uint64_t{392} << 20,
                    .memory_max = std::uint64_t{96} << 30,
                    .operations_max = 100'000};
  ipc::WriteRow(board.users[7], user);
  user.uid = 0;
  user.memory_max = 0;
  ipc::WriteRow(board.users[8], user);
}

void WritePeers(ipc::BoardLayout& board) {
  // b leads our jobs and takes part in others; a job waits for c; nobody needs d now.
  const auto peer = [&board](std::size_t at, const char* name, bool connected, bool needed) {
    ipc::PeerRow row{};
    row.in_use = 1;
    row.connected = connected ? 1 : 0;
    row.needed = needed ? 1 : 0;
    row.round_trip_ns = connected ? 250 * kMicrosecond : -1;
    row.clock_offset_ns = connected ? -3 * kMillisecond : 0;
    row.resumes = connected ? 2 : 0;
    row.unlinked_ns = connected ? 750 * kMillisecond : 0;
    ipc::SetText(row.name, name);
    ipc::SetText(row.address, "10.0.0.3:7733");
    ipc::WriteRow(board.peers[at], row);
  };
  peer(0, "b", false, true);
  peer(1, "b", true, true);
  peer(2, "", false, true);
  peer(3, "d", false, false);
}

// Two users have a job of that name at that leader.
void WriteServed(ipc::BoardLayout& board) {
  ipc::ServedRow row{};
  row.in_use = 1;
  row.world_size = 4;
  row.encoded_bytes = std::uint64_t{32} << 20;
  row.kept_bytes = std::uint64_t{1536} << 10;
  row.residual_millionths = 8765;
  ipc::SetText(row.job, "gpt");
  ipc::SetText(row.leader, "10.0.0.1:7733");
  ipc::WriteRow(board.served[3], row);
  row.encoded_bytes = std::uint64_t{16} << 20;
  row.kept_bytes = std::uint64_t{512} << 10;
  row.residual_millionths = 20;
  ipc::WriteRow(board.served[4], row);
}

void WriteCertificate(ipc::BoardLayout& board) {
  ipc::WriteRow(board.certificate, ipc::CertificateRow{.in_use = 1,
                                                       .reserved0 = 0,
                                                       .loaded_unix_s = 1'764'000'000,
                                                       .until_unix_s = 1'796'000'000,
                                                       .authority_until_unix_s = 2'079'000'000,
                                                       .warn_from_unix_s = 1'793'408'000,
                                                       .refused = {}});
}

void WriteLanes(ipc::BoardLayout& board) {
  ipc::WriteRow(board.log, {.lines_dropped = 412, .last_drop_ns = kNow - 3 * kSecond});
  ipc::LaneRow lane{};
  lane.in_use = 1;
  lane.threads = 2;
  lane.credit_bytes = std::uint64_t{8} << 20;
  lane.in_flight_bytes = std::uint64_t{4} << 20;
  lane.in_flight_stages = 2;
  lane.queued_stages = 3;
  lane.stages_ended = 30'860;
  lane.bytes_moved = std::uint64_t{780} << 30;
  lane.busy_ns = 923 * kSecond;
  lane.startup_ns = 41'000;
  lane.bytes_per_s = 11'180'000'000;
  lane.rate_bytes_per_s = 9'310'000'000;
  lane.rate_ns = kNow - 200 * kMillisecond;
  ipc::SetText(lane.name, "shm0");
  ipc::SetText(lane.transport, "shm");
  ipc::WriteRow(board.lanes[0], lane);
  lane.rate_ns = kNow - 3 * kSecond;  // that is over
  lane.messages_dropped = 17;
  ipc::SetText(lane.name, "ucx0");
  ipc::SetText(lane.transport, "tcp/eth0");
  ipc::WriteRow(board.lanes[1], lane);
  ipc::ShareRow share{};
  share.job_id = 7;
  share.lane = 1;
  share.queued_stages = 2;
  share.in_flight_stages = 2;
  share.in_flight_bytes = std::uint64_t{8} << 20;
  share.stages_ended = 1234;
  share.bytes_moved = std::uint64_t{70} << 30;
  share.waiting_ns = 2 * kSecond;
  share.moving_ns = 60 * kSecond;
  ipc::WriteRow(board.shares[200], share);
  share.lane = 9;  // that is not there
  ipc::WriteRow(board.shares[201], share);
}

void WritePlans(ipc::BoardLayout& board) {
  ipc::PlanRow plan{};
  plan.job_id = 7;
  plan.version = 4;
  plan.blocks = 3;
  plan.bytes = 102'228'128;
  plan.iteration = 56;
  plan.predicted_ns = 160 * kMillisecond;
  plan.lower_bound_ns = 150 * kMillisecond;
  plan.backward_ns = 120 * kMillisecond;
  plan.forward_ns = 50 * kMillisecond;
  plan.waited_ns = 30 * kMillisecond;
  plan.measured_ns = 200 * kMillisecond;
  plan.moving_ns = 120 * kMillisecond;
  plan.elsewhere_ns = 15 * kMillisecond;
  plan.iterations_count = 56;
  plan.iterations_ns = 11'200'000'000;
  plan.iterations_waited_ns = 1'680'000'000;
  plan.iterations_moving_ns = 6'720'000'000;
  ipc::SetText(plan.policy, "us-byte");
  ipc::WriteRow(board.plans[5], plan);
  ipc::PlanRow none{};  // not all ranks have handed in their layout
  none.job_id = 9;
  ipc::WriteRow(board.plans[0], none);
}

void WriteRecorder(ipc::BoardLayout& board) {
  ipc::FlightJobRow job{};
  job.job_id = 7;
  job.blocks = ipc::kFlightRowsMax + 2;
  job.passes = 2;
  ipc::SetText(job.name, "bert");
  ipc::WriteRow(board.flight_jobs[3], job);
  for (std::uint64_t number = job.blocks - 1; number <= job.blocks; ++number) {
    ipc::FlightRow row{};
    row.number = number;
    row.operation = number - job.blocks + 3;
    row.iteration = 56;
    row.bytes = std::uint64_t{4} << 20;
    row.first_post_ns = kNow - 300 * kMillisecond;
    row.ended_ns = kNow - 200 * kMillisecond;
    row.ready_us = 20'000;
    row.last_rank = 1;
    row.tensors = 1;
    row.stages_count = 2;
    row.stages[0] = {.lane = 0,
                     .stage = 0,
                     .reserved0 = 0,
                     .queued_us = 20'000,
                     .begin_us = 21'000,
                     .end_us = 30'000};
    row.stages[1] = {.lane = 1,
                     .stage = 1,
                     .reserved0 = 0,
                     .queued_us = 30'000,
                     .begin_us = UINT32_MAX,
                     .end_us = UINT32_MAX};
    ipc::SetText(row.tensor, "conv1.weight");
    ipc::WriteRow(board.flights[3][(number - 1) % ipc::kFlightRowsMax], row);
  }
  for (std::uint64_t number = 1; number <= 2; ++number) {
    ipc::PassRow row{};
    row.number = number;
    row.iteration = 56;
    row.rank = static_cast<std::uint32_t>(number - 1);
    row.begin_ns = kNow - 350 * kMillisecond;
    row.backward_ns = 120 * kMillisecond;
    row.forward_ns = 50 * kMillisecond;
    row.waited_ns = 30 * kMillisecond;
    ipc::WriteRow(board.passes[3][number - 1], row);
  }
  for (std::uint64_t number = 130; number <= 131; ++number) {
    ipc::EventRow row{};
    row.number = number;
    row.at_unix_ns = 1'795'237'000'000'000'000;
    row.code = Number(number == 130 ? Code::kPeerLost : Code::kOk);
    row.job_id = number == 130 ? 8 : 0;
    ipc::SetText(row.text, "rank 1 (pid 777) exited");
    ipc::WriteRow(board.events[(number - 1) % ipc::kEventRowsMax], row);
  }
}

}  // namespace

std::unique_ptr<ipc::BoardLayout> MakeBoard() {
  auto board = std::make_unique<ipc::BoardLayout>();
  WriteService(*board);
  WriteJobs(*board);
  WriteQueue(*board);
  WriteLanes(*board);
  WriteGpus(*board);
  WritePeers(*board);
  WriteServed(*board);
  WriteCertificate(*board);
  WriteUsers(*board);
  WritePlans(*board);
  WriteRecorder(*board);
  return board;
}

void ExpectGolden(const std::string& name, const std::string& text) {
  const std::string path = std::string(GOLDEN_FOLDER) + "/" + name;
  if (std::getenv("HEADRACE_GOLDEN_UPDATE") != nullptr) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing; HEADRACE_GOLDEN_UPDATE=1 writes it";
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(golden, text) << path;
}

}  // namespace headrace::service
