// The flight recorder: who posted what when, each stage's times, how it ended; whose place it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "service/dispatch/observe/recorder.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/dispatch/expect.h"
#include "tests/unit/service/dispatch/planned.h"

namespace headrace::support {
namespace {

constexpr std::uint32_t kNever32 = UINT32_MAX;

// The place of the newest job with that id; fails when there is none.
std::size_t PlaceOf(const HandDrivenNode& node, std::uint32_t job) {
  std::size_t found = ipc::kFlightJobsMax;
  for (std::size_t place = 0; place < ipc::kFlightJobsMax; ++place) {
    if (ipc::ReadRow(node.board().flight_jobs[place])->job_id == job) found = place;
  }
  EXPECT_LT(found, ipc::kFlightJobsMax) << "job " << job;
  return found;
}

template <typename Row, std::size_t N>
std::vector<Row> RowsOf(const ipc::BoardSlot<Row> (&ring)[N]) {
  std::vector<Row> rows;
  for (const auto& slot : ring) {
    const Row row = *ipc::ReadRow(slot);
    if (row.number != 0) rows.push_back(row);
  }
  std::ranges::sort(rows, {}, &Row::number);
  return rows;
}

std::vector<ipc::FlightRow> Flights(const HandDrivenNode& node, std::uint32_t job = 1) {
  return RowsOf(node.board().flights[PlaceOf(node, job)]);
}

// What stands beside the row of a block; empty: nothing of it.
std::string CauseOf(const HandDrivenNode& node, const ipc::FlightRow& row, std::uint32_t job = 1) {
  const ipc::FlightCauseRow cause = *ipc::ReadRow(
      node.board().flight_causes[PlaceOf(node, job)][(row.number - 1) % ipc::kFlightRowsMax]);
  return cause.number == row.number ? std::string(ipc::GetText(cause.text)) : std::string();
}

TEST(Recorder, KeepsWhoPostedWhenAndEachStagesTimes) {
  HandDrivenNode node(Loopback({.startup_ns = 3 * kMillisecond}));
  ClientEnd& a = node.Attach({.world_size = 2}, 0);
  ClientEnd& b = node.Attach({.world_size = 2}, 1);
  node.AddTensor(b, TensorId{0},
                 {.name = "fc.bias", .segment = {}, .count = 16, .dtype = DType::kFloat32});
  b.Post(OnTensor(Collective::kAllReduce, DType::kFloat32, 16, TensorId{0}));
  node.Settle();
  const TimeNs first = node.now;
  node.Advance(2 * kMillisecond);
  a.PostApart(kSum);
  node.Settle();
  node.Advance(3 * kMillisecond);
  ExpectOk(a, 1);
  const std::vector<ipc::FlightRow> rows = Flights(node);
  ASSERT_EQ(rows.size(), 1U);
  const ipc::FlightRow& row = rows[0];
  EXPECT_EQ(row.number, 1U);
  EXPECT_EQ(row.operation, 1U);
  EXPECT_EQ(row.iteration, 0U);
  EXPECT_EQ(row.blocks, 1U);
  EXPECT_EQ(row.bytes, 64U);
  EXPECT_EQ(row.first_post_ns, first);
  EXPECT_EQ(row.ended_ns, node.now);
  EXPECT_EQ(row.last_rank, 0U);
  EXPECT_EQ(row.ready_us, 2000U);
  EXPECT_EQ(row.posted_us[0], 2000U);
  EXPECT_EQ(row.posted_us[1], 0U);
  EXPECT_EQ(row.posted_us[2], kNever32);
  EXPECT_EQ(row.code, 0);
  ASSERT_EQ(row.stages_count, 1);
  EXPECT_EQ(row.stages[0].lane, 0);
  EXPECT_EQ(row.stages[0].queued_us, 2000U);
  EXPECT_EQ(row.stages[0].begin_us, 2000U);
  EXPECT_EQ(row.stages[0].end_us, 5000U);
  EXPECT_EQ(ipc::GetText(row.tensor), "fc.bias");
  EXPECT_EQ(CauseOf(node, row), "");
  const ipc::FlightJobRow job = *ipc::ReadRow(node.board().flight_jobs[PlaceOf(node, 1)]);
  EXPECT_EQ(job.blocks, 1U);
  EXPECT_EQ(job.world_size, 2U);
  EXPECT_EQ(job.ranks_count, 2U);
  EXPECT_EQ(job.ranks[1], 1U);
  EXPECT_EQ(job.ended_ns, 0);
  EXPECT_EQ(ipc::GetText(job.name), "job");
}

TEST(Recorder, TellsOfAnOperationThatEndedBeforeItWasCutWhoHadNotPostedIt) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 3, .timeout_ms = 1000}, 0);
  node.Attach({.world_size = 3, .timeout_ms = 1000}, 1);
  ClientEnd& c = node.Attach({.world_size = 3, .timeout_ms = 1000}, 2);
  a.PostApart(kSum);
  c.PostApart(kSum);
  node.Settle();
  node.Advance(kSecond);
  ExpectFailed(a, 1, Code::kTimeout, {"rank 1"});
  const std::vector<ipc::FlightRow> rows = Flights(node);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].blocks, 0U);
  EXPECT_EQ(rows[0].last_rank, kNever32);
  EXPECT_EQ(rows[0].ready_us, kNever32);
  EXPECT_EQ(rows[0].posted_us[0], 0U);
  EXPECT_EQ(rows[0].posted_us[1], kNever32);
  EXPECT_EQ(rows[0].posted_us[2], 0U);
  EXPECT_EQ(rows[0].stages_count, 0);
  EXPECT_EQ(rows[0].code, static_cast<std::uint8_t>(Code::kTimeout));
  EXPECT_NE(CauseOf(node, rows[0]).find("timed out"), std::string::npos);
  EXPECT_EQ(node.JobRow(JobId{1})->failed_by_code[static_cast<std::size_t>(Code::kTimeout)], 1U);
  EXPECT_EQ(node.Counters().failed_by_code[static_cast<std::size_t>(Code::kTimeout)], 1U);
}

TEST(Recorder, TellsBarriersAndStagesThatNoLaneEverHad) {
  HandDrivenNode node(Loopback({.startup_ns = 100 * kMillisecond}), 64);
  ClientEnd& a = node.Attach({.world_size = 1, .timeout_ms = 1000}, 0);
  ipc::Record hurried = kSum;
  hurried.timeout_ms = 10;
  a.Post(Barrier());
  a.PostApart(kSum);
  a.PostApart(hurried);
  node.Settle();
  node.Advance(10 * kMillisecond);
  ExpectFailed(a, 3, Code::kTimeout, {});
  node.Advance(90 * kMillisecond);
  const std::vector<ipc::FlightRow> rows = Flights(node);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].kind, static_cast<std::uint8_t>(Collective::kBarrier));
  EXPECT_EQ(rows[0].blocks, 0U);
  EXPECT_EQ(rows[1].operation, 3U) << "in the order of their ends";
  ASSERT_EQ(rows[1].stages_count, 1);
  EXPECT_EQ(rows[1].stages[0].begin_us, kNever32);
  EXPECT_EQ(rows[1].stages[0].end_us, kNever32);
  EXPECT_EQ(rows[2].operation, 2U);
  EXPECT_EQ(rows[2].stages[0].end_us, 100'000U);
}

TEST(Recorder, OverwritesTheOldestAndSaysHowManyThereWere) {
  HandDrivenNode node;
  ClientEnd& a = node.Attach({.world_size = 1}, 0);
  constexpr std::uint64_t kMany = ipc::kFlightRowsMax + 10;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    a.Post(Barrier());
    node.Settle();
  }
  const std::vector<ipc::FlightRow> rows = Flights(node);
  ASSERT_EQ(rows.size(), ipc::kFlightRowsMax);
  EXPECT_EQ(rows.front().number, 11U);
  EXPECT_EQ(rows.back().number, kMany);
  EXPECT_EQ(ipc::ReadRow(node.board().flight_jobs[PlaceOf(node, 1)])->blocks, kMany);
}

TEST(Recorder, GivesThePlaceOfTheJobThatEndedLongestAgo) {
  HandDrivenNode node;
  for (std::uint32_t id = 1; id <= ipc::kFlightJobsMax; ++id) {
    ClientEnd& a = node.Attach({.id = {id}, .world_size = 1}, 0, 0);
    if (id != 5) a.Post(Barrier());
    node.Settle();
    node.Close(a, true, "left the job");
    node.Advance(kMillisecond);
  }
  // Job 5 recorded nothing: it goes first, then the one that ended first.
  const std::size_t of_five = PlaceOf(node, 5);
  const std::size_t of_one = PlaceOf(node, 1);
  node.Attach({.id = {101}, .world_size = 1}, 0, 0);
  node.Settle();
  EXPECT_EQ(PlaceOf(node, 101), of_five);
  node.Attach({.id = {102}, .world_size = 1}, 0, 0);
  node.Settle();
  EXPECT_EQ(PlaceOf(node, 102), of_one);
  EXPECT_TRUE(Flights(node, 102).empty()) << "rows of the former job are freed";
  EXPECT_EQ(Flights(node, 2).size(), 1U) << "a job that is over stays";
  EXPECT_NE(ipc::ReadRow(node.board().flight_jobs[PlaceOf(node, 2)])->ended_ns, 0);
}

TEST(Recorder, KeepsTheWholeCauseThatRanksWereTold) {
  HandDrivenNode node;
  const std::string name(200, 'n');
  ClientEnd& a = node.Attach({.world_size = 2, .timeout_ms = 1000}, 0);
  node.Attach({.world_size = 2, .timeout_ms = 1000}, 1);
  node.AddTensor(a, TensorId{0},
                 {.name = name, .segment = {}, .count = 16, .dtype = DType::kFloat32});
  a.Post(OnTensor(Collective::kAllReduce, DType::kFloat32, 16, TensorId{0}));
  node.Settle();
  node.Advance(kSecond);
  const std::vector<ipc::FlightRow> rows = Flights(node);
  ASSERT_EQ(rows.size(), 1U);
  const std::string cause = CauseOf(node, rows[0]);
  EXPECT_NE(cause.find(name), std::string::npos) << cause;
  EXPECT_NE(cause.find("rank 1"), std::string::npos) << cause;
}

TEST(Recorder, SaysHowAJobThatFailedEndedAndNothingOfOneThatEndedWell) {
  HandDrivenNode node;
  for (const bool orderly : {true, false}) {
    const std::uint32_t id = orderly ? 1 : 2;
    ClientEnd& a = node.Attach({.id = {id}, .world_size = 1}, 0, 0);
    node.Settle();
    node.Close(a, orderly, orderly ? "left the job" : "exited or was killed");
    node.Advance(kMillisecond);
    ASSERT_FALSE(node.JobRow(JobId{id}).has_value());
    const std::size_t place = PlaceOf(node, id);
    EXPECT_NE(ipc::ReadRow(node.board().flight_jobs[place])->ended_ns, 0);
    const ipc::FlightEndRow end = *ipc::ReadRow(node.board().flight_ends[place]);
    EXPECT_EQ(end.job_id, orderly ? 0 : id);
    if (orderly) continue;
    EXPECT_EQ(end.code, static_cast<std::uint32_t>(Code::kPeerLost));
    EXPECT_TEXT(ipc::GetText(end.cause));
  }
}

TEST(Recorder, LetsNoUserPushOutTheRecordsOfAnother) {
  HandDrivenNode node;
  const auto run = [&node](std::uint32_t id, std::uint32_t uid) {
    ClientEnd& a = node.Attach({.id = {id}, .world_size = 1, .uid = uid}, 0, 0);
    a.Post(Barrier());
    node.Settle();
    node.Close(a, true, "left the job");
    node.Advance(kMillisecond);
  };
  run(1, 1000);
  for (std::uint32_t id = 2; id < 2 + 3 * ipc::kFlightJobsMax; ++id) run(id, 1001);
  EXPECT_EQ(Flights(node, 1).size(), 1U);
}

TEST(Recorder, GivesJobsThatOpenAtTheSameMomentPlacesOfTheirOwn) {
  HandDrivenNode node;
  for (std::uint32_t id = 1; id <= 3; ++id) node.Attach({.id = {id}, .world_size = 1}, 0, 0);
  node.Settle();
  EXPECT_NE(PlaceOf(node, 1), PlaceOf(node, 2));
  EXPECT_NE(PlaceOf(node, 2), PlaceOf(node, 3));
}

TEST(Recorder, LeavesAJobOutAndCountsItWhenEveryPlaceBelongsToOneThatLives) {
  HandDrivenNode node;
  std::vector<ClientEnd*> clients;
  for (std::uint32_t id = 1; id <= ipc::kFlightJobsMax + 2; ++id) {
    clients.push_back(&node.Attach({.id = {id}, .world_size = 1}, 0, 4096));
    clients.back()->Post(OnSegment(Collective::kAllReduce, DType::kFloat32, 16));
  }
  node.Settle();
  EXPECT_EQ(node.Counters().jobs_unrecorded, 2U);
  for (ClientEnd* client : clients) ExpectOk(*client, 1);
  EXPECT_EQ(node.JobRow(JobId{ipc::kFlightJobsMax + 1})->blocks_ended, 1U) << "sums go on";
}

struct Training {
  Training() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.push_back(&node.Attach({.world_size = 2}, rank));
      HandIn(node, *ranks.back(), layout);
    }
    Adopt(node, JobId{1}, PlanOf({{{1, 0, 16}}, {{0, 0, 8}}}));
    node.Settle();
  }
  void Post(std::uint32_t rank, std::uint32_t tensor) {
    ipc::GradientRecord record = GradientOf(*layout, tensor);
    record.backward_ns = static_cast<std::uint64_t>(begin_ns);
    record.posted_ns = static_cast<std::uint64_t>(node.now);
    record.forward_ns = 2 * kMillisecond;
    record.waited_ns = static_cast<std::uint64_t>(waited_ns);
    PostGradient(*ranks[rank], record);
    node.Settle();
  }

  HandDrivenNode node{Loopback({.startup_ns = kMillisecond})};
  std::shared_ptr<const service::Layout> layout = PackedLayout({8, 16});
  std::vector<ClientEnd*> ranks;
  TimeNs begin_ns = kSecond;
  TimeNs waited_ns = kMillisecond;
};

TEST(Recorder, CountsAWaitOfTwelveSecondsWhole) {
  Training training;
  training.waited_ns = 12 * kSecond;
  training.Post(0, 1);
  training.Post(0, 0);
  EXPECT_EQ(training.node.RankRow(JobId{1}, 0)->waited_ns, 24 * kSecond);
  const auto passes = RowsOf(training.node.board().passes[PlaceOf(training.node, 1)]);
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_EQ(passes[0].waited_ns, 24 * kSecond);
}

TEST(Recorder, CountsGradientsThatWaitAmongWhatIsOpen) {
  Training training;
  training.Post(0, 1);
  training.Post(0, 0);
  EXPECT_EQ(training.node.JobRow(JobId{1})->operations_open, 2U);
  training.Post(1, 1);
  training.Post(1, 0);
  training.node.Advance(10 * kMillisecond);
  EXPECT_EQ(training.node.JobRow(JobId{1})->operations_open, 0U);
}

// The part of the gap between two backward passes that neither pass says it took.
TEST(Recorder, ShowsTheTimeThatALoopSpendsElsewhere) {
  Training training;
  for (int iteration = 0; iteration < 4; ++iteration) {
    training.begin_ns = training.node.now;
    training.node.Advance(5 * kMillisecond);
    for (const std::uint32_t rank : {0U, 1U}) {
      for (const std::uint32_t tensor : {1U, 0U}) training.Post(rank, tensor);
    }
    training.node.Advance(95 * kMillisecond);
  }
  const ipc::PlanRow plan = *training.node.PlanRow(JobId{1});
  EXPECT_EQ(plan.measured_ns, 100 * kMillisecond);
  // 5 ms backward; two gradients with 2 ms of the forward pass and 1 ms of waits each.
  EXPECT_NEAR(static_cast<double>(plan.elsewhere_ns), 89e6, 1e5);
}

TEST(Recorder, KeepsBlocksOfThePlanWithTheLastGradientOfEachRank) {
  Training training;
  training.begin_ns = training.node.now;
  training.Post(0, 1);
  training.node.Advance(kMillisecond);
  training.Post(1, 1);
  training.node.Advance(kMillisecond);
  const std::vector<ipc::FlightRow> rows = Flights(training.node);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].iteration, 1U);
  EXPECT_EQ(rows[0].operation, 1U);
  EXPECT_EQ(rows[0].bytes, 64U);
  EXPECT_EQ(rows[0].tensors, 1U);
  EXPECT_EQ(ipc::GetText(rows[0].tensor), "g1");
  EXPECT_EQ(rows[0].posted_us[0], 0U);
  EXPECT_EQ(rows[0].posted_us[1], 1000U);
  EXPECT_EQ(rows[0].last_rank, 1U);
  ASSERT_EQ(rows[0].stages_count, 1);
  EXPECT_EQ(rows[0].stages[0].end_us, 2000U);
}

TEST(Recorder, KeepsAPassOfEachRankAndIteration) {
  Training training;
  training.node.Advance(10 * kMillisecond);
  training.begin_ns = training.node.now - 4 * kMillisecond;
  training.Post(0, 1);
  training.node.Advance(3 * kMillisecond);
  training.Post(0, 0);
  const auto passes = RowsOf(training.node.board().passes[PlaceOf(training.node, 1)]);
  ASSERT_EQ(passes.size(), 1U) << "rank 1 has posted nothing";
  EXPECT_EQ(passes[0].iteration, 1U);
  EXPECT_EQ(passes[0].rank, 0U);
  EXPECT_EQ(passes[0].begin_ns, training.begin_ns);
  EXPECT_EQ(passes[0].backward_ns, 7 * kMillisecond);
  EXPECT_EQ(passes[0].forward_ns, 4 * kMillisecond);
  EXPECT_EQ(passes[0].waited_ns, 2 * kMillisecond);
  EXPECT_EQ(training.node.RankRow(JobId{1}, 0)->waited_ns, 2 * kMillisecond);
  EXPECT_EQ(training.node.RankRow(JobId{1}, 0)->bytes_posted, 96U);
}

TEST(Recorder, BelievesNoTimeOfARankThatCannotBe) {
  Training training;
  training.begin_ns = training.node.now + 500 * kSecond;  // a begin that is still to come
  training.Post(0, 1);
  training.Post(0, 0);
  const auto passes = RowsOf(training.node.board().passes[PlaceOf(training.node, 1)]);
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_EQ(passes[0].begin_ns, training.node.now);
  EXPECT_EQ(passes[0].backward_ns, 0);
}

TEST(Recorder, TellsWhichBlockOfThePlanALostRankHadNotPosted) {
  Training training;
  training.Post(0, 1);
  training.node.Close(*training.ranks[1], false, "exited or was killed");
  training.node.Settle();
  const std::vector<ipc::FlightRow> rows = Flights(training.node);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].iteration, 1U);
  EXPECT_EQ(rows[0].posted_us[0], 0U);
  EXPECT_EQ(rows[0].posted_us[1], kNever32);
  EXPECT_EQ(rows[0].code, static_cast<std::uint8_t>(Code::kPeerLost));
  EXPECT_NE(CauseOf(training.node, rows[0]).find("rank 1 (pid 1001)"), std::string::npos);
}

TEST(Recorder, SumsWhatRanksJobsAndLanesDid) {
  HandDrivenNode node(Loopback({.startup_ns = 3 * kMillisecond}), 64);
  ClientEnd& a = node.Attach({.world_size = 2}, 0);
  ClientEnd& b = node.Attach({.world_size = 2}, 1);
  for (int i = 0; i < 2; ++i) a.PostApart(kSum);
  node.Settle();
  node.Advance(4 * kMillisecond);
  for (int i = 0; i < 2; ++i) b.PostApart(kSum);
  node.Settle();
  const auto share = [&node] {
    for (const auto& slot : node.board().shares) {
      if (slot.row.job_id == 1) return *ipc::ReadRow(slot);
    }
    return ipc::ShareRow{};
  };
  EXPECT_EQ(share().in_flight_stages, 1U);
  EXPECT_EQ(share().in_flight_bytes, 64U);
  EXPECT_EQ(share().queued_stages, 1U);
  node.Advance(3 * kMillisecond);
  node.Advance(3 * kMillisecond);
  EXPECT_EQ(share().queued_stages, 0U);
  EXPECT_EQ(share().stages_ended, 2U);
  EXPECT_EQ(share().bytes_moved, 128U);
  EXPECT_EQ(share().moving_ns, 6 * kMillisecond);
  EXPECT_EQ(share().waiting_ns, 3 * kMillisecond) << "the second had no credit";
  const ipc::JobRow job = *node.JobRow(JobId{1});
  EXPECT_EQ(job.blocks_ended, 2U);
  EXPECT_EQ(job.gathering_ns, 8 * kMillisecond);
  EXPECT_EQ(job.waiting_ns, 3 * kMillisecond);
  EXPECT_EQ(job.moving_ns, 6 * kMillisecond);
  EXPECT_EQ(node.RankRow(JobId{1}, 0)->last_posts, 0U);
  EXPECT_EQ(node.RankRow(JobId{1}, 1)->last_posts, 2U);
  EXPECT_EQ(node.RankRow(JobId{1}, 1)->late_ns, 8 * kMillisecond);
  EXPECT_EQ(node.RankRow(JobId{1}, 1)->bytes_posted, 128U);
  for (ClientEnd* client : {&a, &b}) node.Close(*client, true, "left the job");
  node.Settle();
  EXPECT_EQ(share().job_id, 0U) << "the rows go with the job";
}

TEST(Recorder, GivesTheRowsOfSharesBack) {
  HandDrivenNode node;
  for (std::uint32_t id = 1; id <= ipc::kShareRowsMax + 10; ++id) {
    ClientEnd& a = node.Attach({.id = {id}, .world_size = 1}, 0, 4096);
    a.PostApart(kSum);
    node.Settle();
    ExpectOk(a, 1);
    node.Close(a, true, "left the job");
    node.Settle();
  }
  for (const auto& slot : node.board().shares) EXPECT_EQ(slot.row.job_id, 0U);
}

TEST(Recorder, GoesOnWithoutARowWhenTheTableOfSharesIsFull) {
  const auto layout = std::make_unique<ipc::BoardLayout>();
  service::BoardWriter board(*layout);
  for (std::size_t row = 0; row < ipc::kShareRowsMax; ++row) {
    ASSERT_NE(board.ClaimShareRow(), service::kNoRow);
  }
  service::Recorder recorder(board);
  service::Job job({.id = SessionId{1}, .job = JobId{1}, .job_name = "job"}, kSecond);
  job.record = &recorder.OpenJob(job, kSecond);
  service::Operation operation;
  operation.spec.sequence = 1;
  service::Block& block = *job.AllocateBlock(operation);
  service::BlockPart& part = block.parts[0];
  part.queued.bytes = 64;
  recorder.StageQueued(job, block, part, kSecond);
  recorder.StageBegun(job, block, part, 2 * kSecond);
  recorder.Publish(job);
  EXPECT_EQ(job.record->sums.waiting_ns, kSecond);
  for (const auto& slot : layout->shares) EXPECT_EQ(ipc::ReadRow(slot)->job_id, 0U);
  recorder.StageEnded(job, block, part, Code::kOk, 3 * kSecond);
  recorder.CloseJob(job, 3 * kSecond);
  EXPECT_EQ(board.ClaimShareRow(), service::kNoRow) << "what was not taken is not given back";
}

}  // namespace
}  // namespace headrace::support
