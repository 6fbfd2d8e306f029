#include "tests/golden/ctl/board_fixture.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "ipc/base/collective.h"
#include "ipc/base/steering.h"

namespace headrace::ctl {
namespace {

std::string MakeFolder() {
  std::string pattern = testing::TempDir() + "ctl_golden.XXXXXX";
  return ::mkdtemp(pattern.data());
}

template <typename Enum>
constexpr std::uint32_t Number(Enum value) {
  return static_cast<std::uint32_t>(value);
}

ipc::QueueRow Stage(std::uint32_t job, std::uint64_t block, ipc::StageState state,
                    ipc::WaitReason reason, std::uint64_t argument) {
  ipc::QueueRow row{};
  row.job_id = job;
  row.block = block;
  row.state = Number(state);
  row.reason = Number(reason);
  row.wait_argument = argument;
  row.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
  row.bytes = std::uint64_t{25} << 20;
  row.posted_ns = kNow - static_cast<TimeNs>(block) * 40 * kMillisecond;
  row.since_ns = kNow - 5 * kMillisecond;
  return row;
}

}  // namespace

BoardTest::BoardTest()
    : folder_(MakeFolder()), path_(folder_ + "/board"), file_(ipc::BoardFile::Create(path_, 0644)) {
  HR_CHECK(file_.ok(), file_.error().text());
}

BoardTest::~BoardTest() { std::filesystem::remove_all(folder_); }

Snapshot BoardTest::Read(TimeNs now_ns) {
  Result<ipc::BoardView> view = ipc::BoardView::Open(path_);
  HR_CHECK(view.ok(), view.error().text());
  return TakeSnapshot(view->layout(), now_ns);
}

void BoardTest::FillAll() {
  FillService(4242, kStarted);
  ipc::CountersRow counters{};
  counters.records_read = 123456;
  counters.operations_ended = 30860;
  counters.operations_failed = 4;
  counters.bytes_moved = std::uint64_t{780} << 30;
  counters.doorbells = 512;
  counters.sleeps = 498;
  counters.wake_calls = 20111;
  counters.records_refused = 1;
  counters.sessions_opened = 9;
  counters.sessions_closed = 2;
  counters.queue_rows_left_out = 3;
  counters.late_reports = 6;
  counters.slow_reports = 1;
  counters.quota_refusals = 5;
  ipc::WriteRow(layout().counters, counters);
  FillJobs();
  FillQueue();
  FillHeldBack();
  FillLanes();
  FillGpus();
  FillEvents();
  FillPlans();
  FillUsers();
  FillServed();
}

void BoardTest::FillService(std::int32_t pid, TimeNs started_ns) {
  ipc::ServiceRow row{};
  row.state = Number(ipc::ServiceState::kRunning);
  row.pid = pid;
  row.uid = 0;
  row.protocol_version = 1;
  row.started_ns = started_ns;
  row.started_unix_ns = 1'795'230'000'123'000'000;
  ipc::SetText(row.version, "0.1.0");
  ipc::SetText(row.socket_path, "/run/headrace/headrace.sock");
  ipc::SetText(row.reduce_target, "AVX2");
  row.memory_per_uid = std::uint64_t{96} << 30;
  row.memory_found = std::uint64_t{128} << 30;
  ipc::SetText(row.memory_limited_by, "/sys/fs/cgroup/pod/memory.max");
  ipc::WriteRow(layout().service, row);
}

void BoardTest::FillJobs() {
  ipc::JobRow vision{};
  vision.id = 7;
  vision.state = Number(ipc::JobState::kRunning);
  vision.owner_uid = 1000;
  vision.world_size = vision.ranks_attached = 4;
  vision.epoch = 12;
  vision.restarts = 3;
  vision.world_before = 5;
  vision.recoveries = 2;
  vision.recovery_ns = 840 * kMillisecond;
  vision.recovered_ns = 2'100 * kMillisecond;
  vision.joiners_waiting = 1;
  vision.spares_waiting = 2;
  vision.evictions = 3;
  vision.opened_ns = kNow - 3725 * kSecond;
  vision.operations_ended = 30821;
  vision.bytes_moved = std::uint64_t{779} << 30;
  vision.operations_open = 5;
  vision.weight = 3;
  vision.priority = 1;
  vision.limit_bytes_per_s = 250'000'000;
  vision.sends_class = Number(SendsClass::kAbove);
  vision.sends_ended = 40;
  vision.receives_ended = 38;
  vision.sends_bytes = std::uint64_t{78} << 20;
  vision.sends_waiting = 2;
  vision.held_ns = 1'200 * kMillisecond;
  vision.encoded_bytes = std::uint64_t{100} << 30;
  vision.encoded_sent_bytes = std::uint64_t{26} << 30;
  vision.encoded_gpu_bytes = std::uint64_t{25} << 30;
  vision.encode_ns = 21 * kSecond;
  vision.decode_ns = 13 * kSecond;
  vision.residual_millionths = 6'250;
  vision.device_bytes[0] = std::uint64_t{2} << 30;
  vision.device_bytes[1] = std::uint64_t{1} << 30;
  ipc::SetText(vision.name, "vision");
  ipc::JobRow speech{};
  speech.id = 9;
  speech.state = Number(ipc::JobState::kGathering);
  speech.owner_uid = 1001;
  speech.world_size = 8;
  speech.ranks_attached = 2;
  speech.epoch = 2;
  speech.opened_ns = kNow - 12 * kSecond;
  speech.operations_open = 2;
  speech.weight = 1;
  speech.paused = 1;
  ipc::SetText(speech.name, "speech-überlang");
  ipc::JobRow broken{};
  broken.id = 8;
  broken.state = Number(ipc::JobState::kFailed);
  broken.owner_uid = 0;
  broken.world_size = 2;
  broken.ranks_attached = 1;
  broken.epoch = 1;
  broken.opened_ns = kNow - 90 * kSecond;
  broken.operations_ended = 39;
  broken.operations_failed = 4;
  broken.bytes_moved = 1536;
  broken.weight = 1;
  broken.draining = 1;
  ipc::SetText(broken.name, "broken");
  ipc::SetText(broken.failure, "rank 1 (pid 777) exited after operation 43");
  // Not in the order of the ids: rows are reused.
  ipc::WriteRow(layout().jobs[0], speech);
  ipc::WriteRow(layout().jobs[3], vision);
  ipc::WriteRow(layout().jobs[63], broken);
  FillRanks();
}

void BoardTest::FillRanks() {
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ipc::RankRow row{};
    row.job_id = 7;
    row.rank = rank;
    row.pid = static_cast<std::int32_t>(5000 + rank);
    row.tensors = 161;
    row.segment_bytes = (std::uint64_t{98} << 20) + 4096;
    row.operations_posted = 30826 - rank;
    row.operations_ended = 30821;
    row.attached_ns = kNow - (3725 - rank) * kSecond;
    row.bytes_posted = std::uint64_t{779} << 30;
    row.last_posts = rank == 2 ? 24'000 : 100 * rank;
    row.late_ns = rank == 2 ? 288 * kSecond : static_cast<TimeNs>(rank) * 150 * kMillisecond;
    row.waited_ns = (rank == 2 ? 1 : 40) * kSecond;
    ipc::WriteRow(layout().ranks[10 - rank], row);
  }
  ipc::RankRow alone{};
  alone.job_id = 8;
  alone.rank = 0;
  alone.pid = 776;
  alone.attached_ns = kNow;
  ipc::WriteRow(layout().ranks[20], alone);
}

void BoardTest::FillQueue() {
  using State = ipc::StageState;
  using Reason = ipc::WaitReason;
  ipc::QueueRow moving = Stage(7, 30822, State::kMoving, Reason::kNone, 0);
  moving.posted_ns = kNow - 9 * kMillisecond;
  ipc::SetText(moving.tensor, "layer4.2.conv3.weight");
  ipc::QueueRow no_credit = Stage(7, 30823, State::kWaiting, Reason::kNoCredit, 0);
  no_credit.posted_ns = kNow - 8 * kMillisecond;
  ipc::QueueRow behind = Stage(7, 30824, State::kWaiting, Reason::kBehindBlock, 30823);
  behind.posted_ns = kNow - 7 * kMillisecond;
  behind.dtype = static_cast<std::uint8_t>(DType::kBFloat16);
  ipc::QueueRow other = Stage(7, 30825, State::kWaiting, Reason::kBehindJob, 9);
  other.posted_ns = kNow - 6 * kMillisecond;
  other.kind = static_cast<std::uint8_t>(Collective::kBroadcast);
  ipc::QueueRow one = Stage(7, 30826, State::kGathering, Reason::kRankNotReady, 2);
  one.posted_ns = kNow - kMillisecond / 2;
  one.ranks_missing = 0b100;
  ipc::QueueRow many = Stage(9, 1, State::kGathering, Reason::kRankNotReady, 0);
  many.ranks_missing = 0b11111101;
  ipc::QueueRow absent = Stage(9, 2, State::kGathering, Reason::kRankNotAttached, 3);
  absent.kind = static_cast<std::uint8_t>(Collective::kBarrier);
  absent.bytes = 0;
  absent.ranks_missing = 0b1000;
  ipc::QueueRow of_plan = Stage(7, 12, State::kWaiting, Reason::kBehindBlock, 11);
  of_plan.iteration = 57;
  of_plan.posted_ns = kNow - 3 * kMillisecond;
  of_plan.tensors = 4;
  ipc::SetText(of_plan.tensor, "conv1.weight");
  ipc::QueueRow without_plan = Stage(9, 1, State::kGathering, Reason::kNoPlan, 0);
  without_plan.iteration = 1;
  without_plan.tensors = 161;
  std::size_t at = 1023;
  for (const ipc::QueueRow& row :
       {moving, no_credit, behind, other, one, many, absent, of_plan, without_plan}) {
    ipc::WriteRow(layout().queue[at], row);
    at -= 100;
  }
}

void BoardTest::FillHeldBack() {
  using State = ipc::StageState;
  using Reason = ipc::WaitReason;
  ipc::QueueRow slow = Stage(7, 30819, State::kMoving, Reason::kPeer, 0);
  slow.posted_ns = kNow - 900 * kMillisecond;
  slow.since_ns = kNow - 800 * kMillisecond;
  slow.stage = 1;
  slow.lane = 1;
  ipc::SetText(slow.peer, "node-c +2");
  ipc::QueueRow paused = Stage(9, 3, State::kWaiting, Reason::kPaused, 1000);
  ipc::QueueRow limited = Stage(9, 4, State::kWaiting, Reason::kRateLimit, 12 * kMillisecond);
  ipc::QueueRow held = Stage(9, 5, State::kWaiting, Reason::kInterleaved, 7);
  held.since_ns = kNow - 8 * kMillisecond;
  ipc::QueueRow next = Stage(7, 13, State::kWaiting, Reason::kInFlight, 1);
  next.iteration = 57;
  next.lane = 1;
  ipc::QueueRow many = Stage(9, 6, State::kWaiting, Reason::kInFlight, 32);
  ipc::QueueRow head = Stage(7, 1, State::kGathering, Reason::kIteration, 57);
  head.iteration = 58;
  ipc::QueueRow full = Stage(9, 7, State::kWaiting, Reason::kLaneFull, 0);
  std::size_t at = 7;
  for (const ipc::QueueRow& row : {slow, paused, limited, held, next, many, head, full}) {
    ipc::WriteRow(layout().queue[at++], row);
  }
}

void BoardTest::FillLanes() {
  ipc::LaneRow busy{};
  busy.in_use = 1;
  busy.threads = 2;
  busy.credit_bytes = std::uint64_t{64} << 20;
  busy.in_flight_bytes = std::uint64_t{50} << 20;
  busy.in_flight_stages = 2;
  busy.queued_stages = 3;
  busy.stages_ended = 30860;
  busy.bytes_moved = std::uint64_t{780} << 30;
  busy.busy_ns = 923 * kSecond;
  busy.last_bytes = std::uint64_t{25} << 20;
  busy.last_ns = 2'345'678;
  busy.startup_ns = 41'000;
  busy.bytes_per_s = 11'180'000'000;
  busy.rate_bytes_per_s = 9'310'000'000;
  busy.rate_ns = kNow - 200 * kMillisecond;
  ipc::SetText(busy.name, "shm0");
  ipc::SetText(busy.transport, "shm");
  ipc::LaneRow fresh{};
  fresh.in_use = 1;
  fresh.threads = 1;
  fresh.credit_bytes = 4096;
  fresh.rate_bytes_per_s = 5;
  fresh.rate_ns = kNow - 2 * kSecond;  // that is over
  fresh.messages_dropped = 17;
  ipc::SetText(fresh.name, "test1");
  ipc::SetText(fresh.transport, "loopback");
  ipc::WriteRow(layout().lanes[0], busy);
  ipc::WriteRow(layout().lanes[1], fresh);
  FillShares();
}

void BoardTest::FillGpus() {
  ipc::GpuRow gpu{};
  gpu.in_use = 1;
  gpu.stream_words = 1;
  gpu.memory_size = std::uint64_t{141} << 30;
  gpu.held_bytes = std::uint64_t{2} << 30;
  gpu.segments = 1;
  gpu.capability_major = 9;
  gpu.multicast = 1;
  for (std::uint8_t i = 0; i < 16; ++i) gpu.uuid[i] = i;
  ipc::SetText(gpu.name, "NVIDIA H200");
  ipc::WriteRow(layout().gpus[0], gpu);
  gpu.held_bytes = std::uint64_t{1} << 30;
  gpu.uuid[15] = 16;
  ipc::WriteRow(layout().gpus[1], gpu);
  ipc::LaneRow lane{};
  lane.in_use = 1;
  lane.threads = 1;
  lane.credit_bytes = std::uint64_t{256} << 20;
  ipc::SetText(lane.name, "nvlink0");
  ipc::SetText(lane.transport, "nvlink");
  ipc::WriteRow(layout().lanes[2], lane);
}

void BoardTest::FillShares() {
  const auto share = [this](std::size_t at, std::uint32_t job, std::uint64_t gibibytes) {
    ipc::ShareRow row{};
    row.job_id = job;
    row.lane = 0;
    row.queued_stages = job == 7 ? 2 : 1;
    row.in_flight_stages = 1;
    row.in_flight_bytes = std::uint64_t{25} << 20;
    row.stages_ended = gibibytes * 40;
    row.bytes_moved = gibibytes << 30;
    row.waiting_ns = static_cast<TimeNs>(gibibytes) * 100 * kMillisecond;
    row.moving_ns = static_cast<TimeNs>(gibibytes) * kSecond;
    ipc::WriteRow(layout().shares[at], row);
  };
  share(200, 7, 585);
  share(3, 9, 195);
}

void BoardTest::FillUsers() {
  // Not in the order of the uids: rows are reused.
  ipc::WriteRow(layout().users[127], {.in_use = 1,
                                      .uid = 0,
                                      .connections = 1,
                                      .connections_max = 768,
                                      .connections_cut = 0,
                                      .sessions = 1,
                                      .sessions_max = 506,
                                      .jobs = 1,
                                      .jobs_max = 62,
                                      .memory_bytes = 0,
                                      .memory_max = 0,
                                      .operations_max = 0});
  ipc::WriteRow(layout().users[2], {.in_use = 1,
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
                                    .operations_max = 100'000});
}

void BoardTest::FillServed() {
  ipc::ServedRow row{.in_use = 1,
                     .world_size = 16,
                     .encoded_bytes = std::uint64_t{37} << 30,
                     .kept_bytes = std::uint64_t{96} << 20,
                     .residual_millionths = 21'500,
                     .job = {},
                     .leader = {}};
  ipc::SetText(row.job, "gpt");
  ipc::SetText(row.leader, "10.0.0.9:7733");
  ipc::WriteRow(layout().served[5], row);
}

void BoardTest::FillEvents() {
  // The ring has wrapped: the newest event stands before the oldest.
  for (std::uint64_t number = ipc::kEventRowsMax - 1; number <= ipc::kEventRowsMax + 2; ++number) {
    ipc::EventRow row{};
    row.number = number;
    row.at_unix_ns = 1'795'237'000'000'000'000 + static_cast<TimeNs>(number) * 1'001 * kMillisecond;
    row.code = Number(number % 2 == 0 ? Code::kPeerLost : Code::kOk);
    row.job_id = number % 2 == 0 ? 8U : 0U;
    ipc::SetText(row.text, number % 2 == 0 ? "rank 1 (pid 777) exited after operation 43"
                                           : "a text with a \x1b[31mcolour\x1b[0m in it");
    ipc::WriteRow(layout().events[(number - 1) % ipc::kEventRowsMax], row);
  }
}

namespace {

void FillCodec(ipc::PlanRow& plan) {
  plan.compressed_tensors = 54;
  ipc::SetText(plan.codec, "int8");
  ipc::SetText(plan.judged_codec, "int8");
  plan.plain_ns = 231'400'000;
  plan.coded_ns = 182'050'000;
  plan.codec_pays = 1;
}

}  // namespace

void BoardTest::FillPlans() {
  ipc::PlanRow plan{};
  plan.job_id = 7;
  plan.version = 4;
  plan.tensors = 161;
  plan.blocks = 3;
  plan.hash = 0x00fedcba98765432;
  plan.bytes = 102'228'128;
  plan.from_iteration = 41;
  plan.iteration = 56;
  plan.next_version = 5;
  plan.next_iteration = 64;
  plan.predicted_ns = 182'050'000;
  plan.lower_bound_ns = 180'400'000;
  plan.predicted_backward_ns = 120'000'000;
  plan.predicted_forward_ns = 60'000'000;
  plan.predicted_startup_ns = 250'000;
  plan.predicted_bytes_per_s = 119'000'000;
  plan.backward_ns = 120'310'000;
  plan.forward_ns = 60'120'000;
  plan.waited_ns = 3'970'000;
  plan.measured_ns = 184'400'000;
  plan.measured_mean_ns = 186'000'000;
  plan.measured_p90_ns = 195'000'000;
  plan.moving_ns = 95'000'000;
  plan.elsewhere_ns = 20'000'000;
  plan.iterations_count = 56;
  plan.iterations_ns = 10'400'000'000;
  plan.iterations_waited_ns = 260'000'000;
  plan.iterations_moving_ns = 5'320'000'000;
  ipc::SetText(plan.policy, "auto");
  FillCodec(plan);
  plan.recorded_iterations = 32;
  plan.predicted_p90_ns = 191'250'000;
  ipc::SetText(plan.chosen, "exact, late");
  plan.next_best_ns = 189'332'000;  // 4 % more
  ipc::SetText(plan.next_best, "mg-wfbp, no barrier");
  ipc::WriteRow(layout().plans[5], plan);
  ipc::PlanRow none{};  // a job whose ranks have not all handed in their layout
  none.job_id = 9;
  none.tensors = 161;
  ipc::WriteRow(layout().plans[0], none);
  const auto block = [this](std::size_t row, std::uint32_t index, std::uint32_t first,
                            std::uint32_t last, TimeNs begin_ns, const char* name) {
    ipc::PlanBlockRow written{};
    written.job_id = 7;
    written.index = index;
    written.bytes = (index + 1) * (std::uint64_t{9} << 20);
    written.first_tensor = first;
    written.last_tensor = last;
    written.parts = last - first + 1;
    written.runs = index + 1;
    written.predicted_begin_ns = begin_ns;
    written.predicted_end_ns = begin_ns + 30 * kMillisecond;
    if (index < 2) {  // the last has not moved under this plan yet
      written.ready_ns = begin_ns - 200 * kMicrosecond;
      written.begin_ns = begin_ns + 10 * kMicrosecond;
      written.end_ns = written.predicted_end_ns + (index == 0 ? -400 : 1200) * kMicrosecond;
    }
    ipc::SetText(written.tensor, name);
    ipc::WriteRow(layout().plan_blocks[row], written);
  };
  block(4095, 0, 158, 160, 10 * kMillisecond, "layer4.2.conv3.weight");
  block(17, 1, 20, 157, 41 * kMillisecond, "");
  block(3, 2, 0, 0, 121 * kMillisecond, "conv1.weight");
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

}  // namespace headrace::ctl
