#include "service/watch/status_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "ipc/board_text.h"
#include "tests/support/expect_text.h"
#include "tests/unit/service/metrics/board.h"

namespace headrace::service {
namespace {

using Json = nlohmann::ordered_json;

Json StatusOf(const ipc::BoardLayout& board) {
  return Json::parse(WriteStatus(ReadBoard(board, kNow), board));
}

// Every key in the text, whatever it lies in.
void CollectKeys(const Json& json, std::set<std::string>& keys) {
  for (const auto& [key, value] : json.items()) {
    if (json.is_object()) keys.insert(key);
    if (value.is_structured()) CollectKeys(value, keys);
  }
}

TEST(Status, IsTheGoldenTextForABoardWithSomethingEverywhere) {
  ExpectGolden("status.json", StatusOf(*MakeBoard()).dump(1) + "\n");
}

TEST(Status, HasOnlyKeysThatItsPageTellsOf) {
  std::ifstream file(STATUS_PAGE);
  ASSERT_TRUE(file) << STATUS_PAGE;
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::set<std::string> keys;
  CollectKeys(StatusOf(*MakeBoard()), keys);
  for (const std::string& key : keys) {
    EXPECT_NE(page.find("`" + key + "`"), std::string::npos) << key;
  }
}

TEST(Status, SaysWhyABlockWaitsInWords) {
  const Json status = StatusOf(*MakeBoard());
  EXPECT_TEXT(status["queue"][4]["why"].get<std::string>(), "rank 1", "bert", "1.4 s");
  EXPECT_TEXT(status["queue"][1]["why"].get<std::string>(), "node-c", "1.4 s");
}

TEST(Status, HasNoBusyTimeOfALaneThatCannotTellMovingFromWaiting) {
  const auto board = MakeBoard();
  ipc::LaneRow lane = *ipc::ReadRow(board->lanes[1]);
  lane.busy_ns = ipc::kTimeUnknown;
  ipc::WriteRow(board->lanes[1], lane);
  const Json status = StatusOf(*board);
  EXPECT_TRUE(status["lanes"][1]["busy_s"].is_null());
  EXPECT_EQ(status["lanes"][0]["busy_s"], 923.0);
}

TEST(Status, NamesTheOwnersOfJobsOfOneName) {
  const auto board = MakeBoard();
  ipc::JobRow job = *ipc::ReadRow(board->jobs[63]);
  const std::string own = "bert (uid " + std::to_string(job.owner_uid) + ")";
  job.id = 4711;
  job.owner_uid = 65534;
  ipc::WriteRow(board->jobs[62], job);
  const Json status = StatusOf(*board);
  std::set<std::string> labels;
  for (const Json& each : status["jobs"]) labels.insert(each["label"]);
  EXPECT_TRUE(labels.contains(own));
  EXPECT_TRUE(labels.contains("bert (uid 65534)"));
  EXPECT_EQ(status["queue"][4]["job"], own);
  EXPECT_EQ(status["timelines"][0]["job"], own);
}

TEST(Status, OfAnEmptyBoardIsEmptyAndWhole) {
  const auto board = std::make_unique<ipc::BoardLayout>();
  const Json status = StatusOf(*board);
  EXPECT_EQ(status["service"]["state"], "unknown");
  for (const char* table : {"jobs", "lanes", "gpus", "queue", "timelines", "events"}) {
    EXPECT_TRUE(status[table].empty()) << table;
  }
}

TEST(Status, TakesAJobOfWhichTheRecorderKnowsTooManyStages) {
  const auto board = MakeBoard();
  ipc::FlightRow row = *ipc::ReadRow(board->flights[3][1]);
  row.stages_count = 255;
  ipc::WriteRow(board->flights[3][1], row);
  const Json status = StatusOf(*board);
  EXPECT_EQ(status["timelines"][0]["blocks"][1]["stages"].size(), ipc::kFlightStagesMax);
}

TEST(Status, IsBoundedByTheBoard) {
  const auto board = MakeBoard();
  board->jobs[63].row.id = 99;  // its number is about to be another's
  for (std::uint32_t i = 0; i < ipc::kFlightJobsMax; ++i) {
    ipc::FlightJobRow job{};
    job.job_id = i + 1;
    job.blocks = ipc::kFlightRowsMax;
    job.passes = ipc::kPassRowsMax;
    ipc::WriteRow(board->flight_jobs[i], job);
    ipc::JobRow named{};
    named.id = i + 1;
    ipc::WriteRow(board->jobs[i], named);
    ipc::FlightRow block = *ipc::ReadRow(board->flights[3][0]);
    for (std::uint64_t number = 1; number <= ipc::kFlightRowsMax; ++number) {
      block.number = number;
      ipc::WriteRow(board->flights[i][number - 1], block);
    }
  }
  const Json status = StatusOf(*board);
  ASSERT_EQ(status["timelines"].size(), ipc::kFlightJobsMax);
  EXPECT_EQ(status["timelines"][0]["blocks"].size(),
            kTimelineBlocks.OfEach(ipc::kFlightJobsMax + 1));
  EXPECT_LT(status.dump().size(), std::size_t{1} << 20);
}

TEST(Status, GivesEachOfAFewJobsALongerTimelineThanEachOfMany) {
  EXPECT_EQ(kTimelineBlocks.OfEach(0), 320U);
  EXPECT_EQ(kTimelineBlocks.OfEach(2), 320U);
  EXPECT_EQ(kTimelineBlocks.OfEach(10), 64U);
  EXPECT_EQ(kTimelineBlocks.OfEach(64), 24U);
}

TEST(LastFlights, AreInOrderAndLeaveOutWhatIsBeingOverwritten) {
  const auto board = MakeBoard();
  ipc::BoardReading reading = ReadBoard(*board, kNow);
  const auto place = *reading.FindFlight(7);
  auto rows = LastFlights(*board, place, 10);
  ASSERT_EQ(rows.size(), 2U);  // the eight before them were never written
  EXPECT_LT(rows[0].number, rows[1].number);
  EXPECT_EQ(LastFlights(*board, place, 1).size(), 1U);
  board->flights[3][1].version.fetch_add(1);
  rows = LastFlights(*board, place, 10);
  EXPECT_EQ(rows.size(), 1U);
}

}  // namespace
}  // namespace headrace::service
