// The flight recorder's log as a table, as JSON and as a trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "client/cli/ctl/flight_view.h"
#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/trace.h"
#include "client/cli/ctl/trace_events.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/views.h"
#include "ipc/base/codecs.h"
#include "ipc/base/collective.h"
#include "ipc/base/error.h"
#include "tests/golden/ctl/board_fixture.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

constexpr std::uint32_t kNever32 = UINT32_MAX;
constexpr std::int64_t kNowUnix = 1'795'230'000'123'000'000 + (kNow - kStarted);

ipc::FlightRow Block(std::uint64_t number, TimeNs first_ns) {
  ipc::FlightRow row{};
  row.number = number;
  row.operation = number;
  row.bytes = std::uint64_t{25} << 20;
  row.first_post_ns = first_ns;
  row.ended_ns = first_ns + 12'345 * kMicrosecond;
  row.blocks = 1;
  row.last_rank = 2;
  row.ready_us = 4'100;
  row.kind = static_cast<std::uint8_t>(Collective::kAllReduce);
  row.dtype = static_cast<std::uint8_t>(DType::kFloat32);
  std::ranges::fill(row.posted_us, kNever32);
  for (std::uint32_t i = 0; i < 3; ++i) row.posted_us[i] = i * 2'050;
  return row;
}

void AddStage(ipc::FlightRow& row, std::uint8_t lane, std::uint8_t stage, std::uint32_t queued_us,
              std::uint32_t begin_us, std::uint32_t end_us) {
  row.stages[row.stages_count++] = {.lane = lane,
                                    .stage = stage,
                                    .reserved0 = 0,
                                    .queued_us = queued_us,
                                    .begin_us = begin_us,
                                    .end_us = end_us};
}

class Flight : public BoardTest {
 protected:
  Flight() {
    FillAll();
    FillTraining();
    FillBroken();
  }

  // A job that lives, of which the first rows are overwritten.
  void FillTraining() {
    ipc::FlightJobRow job{};
    job.job_id = 7;
    job.owner_uid = 1000;
    job.world_size = 4;
    job.ranks_count = 3;
    job.ranks[1] = 1;
    job.ranks[2] = 2;
    job.opened_ns = kNow - 3725 * kSecond;
    job.opened_unix_ns = kNowUnix - 3725 * kSecond;
    job.blocks = 3852;
    job.passes = 4;
    ipc::SetText(job.name, "vision");
    ipc::WriteRow(layout().flight_jobs[4], job);
    for (std::uint64_t number = 3850; number <= 3852; ++number) {
      const TimeNs first_ns =
          kNow - kSecond + static_cast<TimeNs>(number - 3850) * 3 * kMillisecond;
      ipc::FlightRow row = Block(number, first_ns);
      row.iteration = 57;
      row.operation = number - 3840;
      row.tensors = 4;
      ipc::SetText(row.tensor, "layer4.2.conv3.weight");
      AddStage(row, 0, 0, 4'100, 4'120, 5'430);
      AddStage(row, 1, 1, 5'430, 5'440, 12'000);
      AddStage(row, 0, 2, 12'000, 12'000, 12'345);
      if (number == 3851) {
        row.codec = static_cast<std::uint16_t>(SteeringValue(Codec::kTopK));
        row.sent_bytes = 614'400;
        row.encode_us = 2'345;
        row.decode_us = 678;
      }
      ipc::WriteRow(layout().flights[4][(number - 1) % ipc::kFlightRowsMax], row);
    }
    for (std::uint64_t number = 1; number <= 4; ++number) {
      ipc::PassRow pass{};
      pass.number = number;
      pass.iteration = 56 + (number - 1) / 2;
      pass.rank = number % 2 == 0 ? 2 : 0;
      pass.begin_ns = kNow - kSecond - 200 * kMillisecond +
                      static_cast<TimeNs>((number - 1) / 2) * 180 * kMillisecond;
      pass.backward_ns = 100 * kMillisecond;
      pass.forward_ns = 60 * kMillisecond;
      pass.waited_ns = 25 * kMillisecond;
      ipc::WriteRow(layout().passes[4][number - 1], pass);
    }
  }

  // One that is over, whose last operations failed.
  void FillBroken() {
    ipc::FlightJobRow job{};
    job.job_id = 8;
    job.world_size = 2;
    job.ranks_count = 2;
    job.ranks[1] = 1;
    job.opened_ns = kNow - 90 * kSecond;
    job.opened_unix_ns = kNowUnix - 90 * kSecond;
    job.ended_ns = kNow - 30 * kSecond;
    job.blocks = 2;
    ipc::SetText(job.name, "broken");
    ipc::WriteRow(layout().flight_jobs[1], job);
    ipc::FlightRow cut = Block(1, kNow - 40 * kSecond);
    cut.last_rank = 1;
    cut.code = static_cast<std::uint8_t>(Code::kPeerLost);
    cut.blocks = 3;
    cut.block = 2;
    cut.posted_us[2] = kNever32;
    WriteCause(cut.number, "rank 1 (pid 777) exited after operation 43");
    AddStage(cut, 0, 0, 4'100, 4'120, 5'430);
    AddStage(cut, 1, 1, 5'430, kNever32, kNever32);
    ipc::WriteRow(layout().flights[1][0], cut);
    ipc::FlightRow uncut = Block(2, kNow - 40 * kSecond);
    uncut.blocks = 0;
    uncut.code = static_cast<std::uint8_t>(Code::kTimeout);
    uncut.last_rank = uncut.ready_us = uncut.posted_us[1] = uncut.posted_us[2] = kNever32;
    // Longer than a row was wide.
    WriteCause(
        uncut.number,
        "operation 2 [all_reduce of 6553600 float32 (sum), "
        "transformer.encoder.layer.11.attention.output.dense.weight] timed out after 1000 ms: "
        "rank 1 (pid 777) has not posted it");
    ipc::WriteRow(layout().flights[1][1], uncut);
  }

  void WriteCause(std::uint64_t number, std::string_view text) {
    ipc::FlightCauseRow cause{};
    cause.number = number;
    ipc::SetText(cause.text, text);
    ipc::WriteRow(layout().flight_causes[1][number - 1], cause);
    ipc::FlightEndRow end{};
    end.job_id = 8;
    end.code = static_cast<std::uint32_t>(Code::kPeerLost);
    ipc::SetText(end.cause, "rank 1 (pid 777) exited after operation 43");
    ipc::WriteRow(layout().flight_ends[1], end);
  }

  FlightLog Log() { return ReadFlightLogFrom(layout(), kNow); }
  static std::string Text(const Json& json) { return json.dump(2) + "\n"; }
};

TEST_F(Flight, ShowsTheLastBlocksOfEachJob) {
  ExpectGolden("flight.txt", FlightTable(Log(), {}, kNowUnix, true));
  ExpectGolden("flight.json", Text(FlightJson(Log(), {})));
}

TEST_F(Flight, ShowsOnlyWhatIsAskedFor) {
  ExpectGolden("flight_failed.txt", FlightTable(Log(), {.failed = true}, kNowUnix, true));
  const Json one = FlightJson(Log(), {.job = "vision", .rows_max = 1});
  ASSERT_EQ(one["jobs"].size(), 1U);
  ASSERT_EQ(one["jobs"][0]["blocks"].size(), 1U);
  EXPECT_EQ(one["jobs"][0]["blocks"][0]["number"], 3852) << "the newest";
  EXPECT_EQ(one["jobs"][0]["overwritten"], 3849);
  EXPECT_EQ(FlightTable(Log(), {.job = "nobody"}, kNowUnix, true), "");
}

TEST_F(Flight, ShowsWhatWasOpenWhenTheServiceIsGone) {
  const std::string text = FlightTable(Log(), {.job = "vision", .with_open = true}, kNowUnix, true);
  EXPECT_NE(text.find("57/12"), std::string::npos);
  EXPECT_FALSE(FlightJson(Log(), {.with_open = true})["open"].empty());
  EXPECT_FALSE(FlightJson(Log(), {}).contains("open"));
}

TEST_F(Flight, MarksTimesThatAreLongerThanARowCanSay) {
  ipc::FlightRow row = Block(3853, kNow - kSecond);
  row.posted_us[1] = UINT32_MAX - 1;
  row.ready_us = UINT32_MAX - 1;
  row.last_rank = 1;
  AddStage(row, 0, 0, 4'100, 5'100, UINT32_MAX - 1);
  ipc::WriteRow(layout().flights[4][(3853 - 1) % ipc::kFlightRowsMax], row);
  const FlightQuery newest{.job = "vision", .rows_max = 1};
  const std::string text = FlightTable(Log(), newest, kNowUnix, false);
  EXPECT_NE(text.find("rank 1 +>4294967 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("shm0 1.00+>4294962 ms"), std::string::npos) << text;
  EXPECT_TRUE(FlightJson(Log(), newest)["jobs"][0]["blocks"][0]["cut"]);
  EXPECT_FALSE(FlightJson(Log(), {.job = "broken"})["jobs"][0]["blocks"][0]["cut"]);
}

TEST_F(Flight, TakesNoCauseOfAnotherBlock) {
  ipc::FlightCauseRow other{};
  other.number = 1 + ipc::kFlightRowsMax;
  ipc::SetText(other.text, "of a later block");
  ipc::WriteRow(layout().flight_causes[1][0], other);
  EXPECT_EQ(FlightJson(Log(), {.job = "broken"})["jobs"][0]["blocks"][0]["cause"], "");
}

TEST_F(Flight, AJobThatIsOverIsKnownByItsEnd) {
  ipc::WriteRow(layout().jobs[63], ipc::JobRow{});  // the one called "broken"
  const auto nobody = [](std::uint32_t) { return std::string(); };
  const std::string text = RanksTable(Read(), "broken", true);
  EXPECT_TEXT(text, "broken", "30.0 s", FormatUtc(Read().UnixTime(kNow - 30 * kSecond)),
              "peer lost", "rank 1 (pid 777)", "headracectl flight broken --failed");
  const Json ended = RanksJson(Read(), "broken", nobody)["ended"];
  EXPECT_EQ(ended["id"], 8);
  EXPECT_EQ(ended["code"], "peer lost");
  EXPECT_EQ(ended["cause"], "rank 1 (pid 777) exited after operation 43");
  EXPECT_TRUE(RanksJson(Read(), "vision", nobody)["ended"].is_null()) << "it lives";
  EXPECT_TRUE(RanksJson(Read(), "nobody", nobody)["ended"].is_null());
  // One that ended well says so in fewer words.
  ipc::WriteRow(layout().flight_ends[1], ipc::FlightEndRow{});
  EXPECT_TEXT(HowItEnded(Read(), "broken"), "headracectl flight broken");
}

TEST_F(Flight, LeavesOutARowOfAnotherTurnOfTheRing) {
  ipc::FlightRow stray = Block(9, kNow - kSecond);
  ipc::WriteRow(layout().flights[4][100], stray);  // its place would be 8
  EXPECT_EQ(Log().jobs[0].blocks.size(), 3U);
}

// The slices of each track, and the names of the tracks.
struct Tracks {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> slices;
  std::map<std::pair<int, int>, std::string> names;
  std::map<int, std::string> processes;
  int instants = 0;
};

Tracks TracksOf(const Json& trace) {
  Tracks tracks;
  for (const Json& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    const int process = event["pid"];
    const std::pair<int, int> track{process, event["tid"]};
    if (event["name"] == "thread_name") tracks.names[track] = event["args"]["name"];
    if (event["name"] == "process_name") tracks.processes[process] = event["args"]["name"];
    if (phase == "i") ++tracks.instants;
    if (phase != "X") continue;
    const double begin = event["ts"];
    EXPECT_GE(begin, 0) << event;
    EXPECT_GE(event["dur"], 0) << event;
    tracks.slices[track].emplace_back(begin, begin + event["dur"].get<double>());
  }
  return tracks;
}

TEST_F(Flight, TraceHasEveryStageAndPassOnTracksWithNamesAndNothingOverlaps) {
  const FlightLog log = Log();
  const Json trace = Json::parse(JobTrace(log, log.jobs[0]));
  Tracks tracks = TracksOf(trace);
  EXPECT_EQ(tracks.processes.size(), 4U) << "the service and three ranks";
  std::map<std::string, std::size_t> counts;
  for (auto& [track, slices] : tracks.slices) {
    ASSERT_TRUE(tracks.names.contains(track)) << track.first << " " << track.second;
    ASSERT_TRUE(tracks.processes.contains(track.first));
    counts[tracks.names[track]] += slices.size();
    std::ranges::sort(slices);
    for (std::size_t i = 1; i < slices.size(); ++i) {
      EXPECT_LE(slices[i - 1].second, slices[i].first + 1e-6) << tracks.names[track];
    }
  }
  EXPECT_EQ(counts["shm0"], 6U);
  EXPECT_EQ(counts["shm0 queue"], 6U);
  EXPECT_EQ(counts["test1"], 3U) << "that overlap: each has a track of its own";
  EXPECT_EQ(counts["backward"], 4U);
  EXPECT_EQ(counts["forward"], 4U);
  EXPECT_EQ(counts["waits"], 4U);
  EXPECT_EQ(tracks.instants, 9) << "three blocks of three ranks";
  EXPECT_EQ(trace["otherData"]["job"], "vision");
  EXPECT_EQ(trace["otherData"]["blocks_overwritten"], 3849);
  ExpectGolden("trace.json", Text(trace));
}

TEST_F(Flight, TraceOfAJobThatRecordedNothingIsValid) {
  FlightLog log = Log();
  log.jobs[0].blocks.clear();
  log.jobs[0].passes.clear();
  const Json trace = Json::parse(JobTrace(log, log.jobs[0]));
  EXPECT_TRUE(TracksOf(trace).slices.empty());
}

TEST(TraceRows, GivesTheLowestRowThatIsFree) {
  TraceRows rows;
  EXPECT_EQ(rows.RowFor(0, 10), 0U);
  EXPECT_EQ(rows.RowFor(5, 8), 1U);
  EXPECT_EQ(rows.RowFor(9, 12), 1U);
  EXPECT_EQ(rows.RowFor(10, 11), 0U);
  EXPECT_EQ(rows.count(), 2U);
}

}  // namespace
}  // namespace headrace::ctl
