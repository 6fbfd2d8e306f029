// Tables and JSON of a filled board, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "client/cli/ctl/events_view.h"
#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/plan_gantt.h"
#include "client/cli/ctl/queue_view.h"
#include "client/cli/ctl/top/screen.h"
#include "client/cli/ctl/views.h"
#include "tests/golden/ctl/board_fixture.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

std::string NameOfUser(std::uint32_t uid) { return uid == 0 ? "root" : uid == 1000 ? "ada" : ""; }

class Views : public BoardTest {
 protected:
  Views() { FillAll(); }
  static std::string Text(const Json& json) { return json.dump(2) + "\n"; }
};

TEST_F(Views, StatusShowsServiceAndCounters) {
  ExpectGolden("status.txt", StatusTable(Read(), Liveness::kRunning, nullptr, true));
  ExpectGolden("status.json", Text(StatusJson(Read(), Liveness::kStopped, nullptr)));
}

TEST_F(Views, StatusShowsRatesOverAnInterval) {
  Snapshot before = Read(kNow - 4 * kSecond);
  before.counters.records_read -= 1000;
  before.counters.bytes_moved -= std::uint64_t{6} << 30;
  ExpectGolden("status_rates.txt", StatusTable(Read(), Liveness::kRunning, &before, true));
  ExpectGolden("status_rates.json", Text(StatusJson(Read(), Liveness::kRunning, &before)));
}

TEST_F(Views, StatusCountsFromZeroWhenTheServiceStartedAnewWithinTheInterval) {
  Snapshot before = Read(kNow - 4 * kSecond);
  before.service.started_ns -= 500 * kSecond;
  before.counters.records_read = 9'999'999;
  const Json json = StatusJson(Read(), Liveness::kRunning, &before);
  EXPECT_EQ(json["rates_per_second"]["records_read"], 123456 / 4.0);
}

TEST_F(Views, JobsShowOwnersProgressAndFailures) {
  ExpectGolden("jobs.txt", JobsTable(Read(), NameOfUser, true));
  ExpectGolden("jobs.json", Text(JobsJson(Read(), NameOfUser)));
}

TEST_F(Views, OneJobShowsItsRanksInOrder) {
  ExpectGolden("ranks.txt", RanksTable(Read(), "vision", true));
  ExpectGolden("ranks.json", Text(RanksJson(Read(), "vision", NameOfUser)));
  EXPECT_TRUE(RanksJson(Read(), "visio", NameOfUser)["jobs"].empty());
}

TEST_F(Views, QueueSaysInWordsWhyEachBlockWaits) {
  ExpectGolden("queue.txt", QueueTable(Read(), {}, true));
  ExpectGolden("queue.json", Text(QueueJson(Read(), {})));
}

TEST_F(Views, QueueOfOneJobWithoutHeader) {
  ExpectGolden("queue_vision.txt", QueueTable(Read(), {.job = "vision"}, false));
  EXPECT_EQ(QueueTable(Read(), {.job = "nobody"}, false), "");
}

TEST_F(Views, QueueNamesWhatIsNotOnTheBoardByNumber) {
  Snapshot snapshot = Read();
  snapshot.jobs.clear();
  snapshot.lanes.clear();
  const auto why = [&snapshot](std::uint64_t block) {
    for (const ipc::QueueRow& row : snapshot.queue) {
      if (row.job_id == 7 && row.block == block) return WhyItWaits(row, snapshot);
    }
    return std::string();
  };
  EXPECT_TEXT(why(30823), "#0");
  EXPECT_TEXT(why(30825), "job #9", "#0");
  EXPECT_TEXT(why(30826), "rank 2", "job #7", "5.0 ms");
  EXPECT_EQ(JobName(7, snapshot), "#7");
  snapshot.queue[0].reason = 77;
  EXPECT_TEXT(WhyItWaits(snapshot.queue[0], snapshot), "77");
}

TEST_F(Views, PlanShowsPredictedBesideMeasured) {
  ExpectGolden("plan.txt", PlanTable(Read(), "vision", true, true));
  ExpectGolden("plan.json", Text(PlanJson(Read(), "vision")));
  EXPECT_EQ(PlanTable(Read(), "nobody", true, true), "");
}

TEST_F(Views, PlanWithAChoiceShowsMeanAndNinetiethPercentileAndByHowMuchItWon) {
  Snapshot snapshot = Read();
  const std::string text = PlanTable(snapshot, "vision", true, true);
  for (const char* shown : {"32", "exact, late", "mg-wfbp, no barrier", "4.0 %", "182.05 ms",
                            "186.00 ms", "+2.2 %", "191.25 ms", "195.00 ms", "+2.0 %"}) {
    EXPECT_NE(text.find(shown), std::string::npos) << shown << " in " << text;
  }
  Json json = PlanJson(snapshot, "vision")["jobs"][0]["plan"];
  EXPECT_EQ(json["chosen"], "exact, late");
  EXPECT_EQ(json["next_best_ns"], 189'332'000);
  EXPECT_EQ(json["predicted_p90_ns"], 191'250'000);
  // Where no other policy was tried, and where nothing was recorded.
  snapshot.plans[0].next_best_ns = 0;
  EXPECT_EQ(PlanTable(snapshot, "vision", true, true).find("mg-wfbp"), std::string::npos);
  EXPECT_TRUE(PlanJson(snapshot, "vision")["jobs"][0]["plan"]["next_best"].is_null());
  snapshot.plans[0].recorded_iterations = 0;
  EXPECT_EQ(PlanTable(snapshot, "vision", true, true).find("exact, late"), std::string::npos);
  json = PlanJson(snapshot, "vision")["jobs"][0]["plan"];
  EXPECT_TRUE(json["chosen"].is_null());
  EXPECT_TRUE(json["predicted_p90_ns"].is_null());
}

TEST_F(Views, PlanMadeBeforeAnythingWasMeasuredPredictsNothing) {
  Snapshot snapshot = Read();
  ipc::PlanRow& plan = snapshot.plans[0];
  ASSERT_EQ(plan.job_id, 7U);
  plan.version = 1;
  plan.recorded_iterations = 0;
  plan.predicted_backward_ns = plan.predicted_forward_ns = 0;
  ExpectGolden("plan_first.txt", PlanTable(snapshot, "vision", true, true));
}

TEST_F(Views, PlanNamesNoRateWhereBytesSeemedToCostNothing) {
  Snapshot snapshot = Read();
  snapshot.plans[0].predicted_bytes_per_s = 10'000'000'000'000;
  const std::string text = PlanTable(snapshot, "vision", true, true);
  EXPECT_EQ(text.find("TB/s"), std::string::npos) << text;
}

TEST_F(Views, PlanWithoutMeasuredTimesSaysNothingOfThem) {
  Snapshot snapshot = Read();
  ipc::PlanRow& plan = snapshot.plans[0];
  ASSERT_EQ(plan.job_id, 7U);
  plan.measured_ns = plan.moving_ns = 0;
  plan.recorded_iterations = 0;
  plan.predicted_backward_ns = 0;
  plan.barrier = 1;
  plan.in_flight_max = 1;
  plan.next_iteration = 0;
  plan.rows_left_out = 9;
  for (ipc::PlanBlockRow& block : snapshot.plan_blocks) block.end_ns = 0;
  ExpectGolden("plan_fresh.txt", PlanTable(snapshot, "vision", true, true));
  const Json json = PlanJson(snapshot, "vision")["jobs"][0]["plan"];
  EXPECT_TRUE(json["measured_ns"].is_null());
  EXPECT_TRUE(json["hidden_share"].is_null());
  EXPECT_TRUE(json["next_iteration"].is_null());
  EXPECT_TRUE(json["blocks"][0]["end_ns"].is_null());
}

TEST_F(Views, PlanHidesNoMoreThanAllAndNoLessThanNothing) {
  Snapshot snapshot = Read();
  snapshot.plans[0].waited_ns = 2 * snapshot.plans[0].moving_ns;
  EXPECT_EQ(PlanJson(snapshot, "vision")["jobs"][0]["plan"]["hidden_share"], 0.0);
  snapshot.plans[0].waited_ns = 0;
  EXPECT_EQ(PlanJson(snapshot, "vision")["jobs"][0]["plan"]["hidden_share"], 1.0);
}

TEST_F(Views, PlanSaysWhyThereIsNone) {
  Snapshot snapshot = Read();
  EXPECT_EQ(PlanTable(snapshot, "speech-überlang", true, true),
            "Job speech-überlang has no plan yet: 2 of its 8 ranks are here, and gradients move "
            "when all ranks have handed in their layout.\n");
  EXPECT_TEXT(PlanTable(snapshot, "broken", true, true), "broken", "rank 1 (pid 777)");
  EXPECT_TRUE(PlanJson(snapshot, "broken")["jobs"][0]["plan"].is_null());
  snapshot.plans.erase(snapshot.plans.begin());
  EXPECT_TEXT(PlanTable(snapshot, "vision", true, true), "vision");
  EXPECT_NE(PlanJson(snapshot, "vision")["jobs"][0]["why_none"].get<std::string>().find("layout"),
            std::string::npos);
}

TEST_F(Views, PlanIsAPictureWithinEightyColumns) {
  const Snapshot snapshot = Read();
  ExpectGolden("plan_picture.txt", PlanGantt(snapshot, snapshot.plans[0], 80, true));
  ExpectGolden("plan_picture_ascii.txt", PlanGantt(snapshot, snapshot.plans[0], 80, false));
  for (const bool utf8 : {false, true}) {
    std::istringstream lines(PlanGantt(snapshot, snapshot.plans[0], 80, utf8));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(WidthOf(line), 80U) << line;
  }
}

TEST_F(Views, PictureOfAPlanThatHasNotRunShowsOnlyWhatWasPredicted) {
  Snapshot snapshot = Read();
  snapshot.plans[0].measured_ns = 0;
  for (ipc::PlanBlockRow& block : snapshot.plan_blocks) block.end_ns = 0;
  std::string picture = PlanGantt(snapshot, snapshot.plans[0], 80, false);
  picture.resize(picture.rfind("- predicted"));  // the legend names all marks
  EXPECT_NE(picture.find('-'), std::string::npos);
  EXPECT_EQ(picture.find('='), std::string::npos);
  EXPECT_EQ(picture.find('_'), std::string::npos);
}

TEST_F(Views, SharesShowWhatEachJobHasOfALane) {
  ExpectGolden("shares.txt", SharesTable(Read(), "", true));
  ExpectGolden("shares.json", Text(SharesJson(Read(), "shm0")));
  EXPECT_TRUE(SharesJson(Read(), "test1")["shares"].empty());
}

TEST_F(Views, LanesShowCreditLoadAndRate) {
  ExpectGolden("lanes.txt", LanesTable(Read(), true));
  ExpectGolden("lanes.json", Text(LanesJson(Read())));
}

TEST_F(Views, ALaneThatCannotTellMovingFromWaitingHasNoBusyTime) {
  Snapshot snapshot = Read();
  snapshot.lanes[1].row.busy_ns = ipc::kTimeUnknown;
  const std::string table = LanesTable(snapshot, true);
  EXPECT_NE(
      table.find("\nBUSY of test1 is not known: NCCL does not say when bytes move and when it "
                 "waits for another node\n"),
      std::string::npos)
      << table;
  EXPECT_EQ(table.find("BUSY of shm0"), std::string::npos) << table;
  const Json lanes = LanesJson(snapshot)["lanes"];
  EXPECT_TRUE(lanes[1]["busy_ns"].is_null());
  EXPECT_TRUE(lanes[1]["busy_share"].is_null());
  EXPECT_GT(lanes[0]["busy_share"], 0);
}

TEST_F(Views, UsersShowWhatEachHasAndMayHave) {
  ExpectGolden("users.txt", UsersTable(Read(), NameOfUser, true));
  ExpectGolden("users.json", Text(UsersJson(Read(), NameOfUser)));
}

TEST_F(Views, EventsStandInOrderAndCannotMoveTheCursor) {
  ExpectGolden("events.txt", EventsTable(Read(), "", true));
  ExpectGolden("events.json", Text(EventsJson(Read(), "")));
}

TEST_F(Views, ShowsTheNewestOfAJobThatAreAskedFor) {
  const Snapshot all = Read();
  ASSERT_GT(all.events.size(), 2U);
  const std::vector<ipc::EventRow> newest = NewestEvents(all, "", 2).events;
  ASSERT_EQ(newest.size(), 2U);
  EXPECT_EQ(newest.back().number, all.events.back().number);
  EXPECT_EQ(newest.front().number, all.events[all.events.size() - 2].number);
  EXPECT_EQ(NewestEvents(all, "", 0).events.size(), all.events.size());
  for (const ipc::EventRow& event : NewestEvents(all, "vision", 1).events) {
    EXPECT_TRUE(IsEventOf(event, all, "vision"));
  }
}

TEST_F(Views, FollowingEventsCountsWhatWasOverwritten) {
  EventsFollower follower;
  Snapshot snapshot = Read();
  const std::size_t count = snapshot.events.size();
  EventsFollower::News news = follower.Update(snapshot);
  EXPECT_EQ(news.events.size(), count);
  EXPECT_EQ(news.lost, 0U) << "what lay before the first look was not missed";
  EXPECT_TRUE(follower.Update(snapshot).events.empty());
  const std::uint64_t last = snapshot.events.back().number;
  for (ipc::EventRow& event : snapshot.events) event.number = last + 10 + (last - event.number);
  std::reverse(snapshot.events.begin(), snapshot.events.end());
  news = follower.Update(snapshot);
  EXPECT_EQ(news.lost, 9U);
  EXPECT_EQ(news.events.size(), count);
}

TEST_F(Views, FollowingEventsCountsRowsThatCouldNotBeRead) {
  EventsFollower follower;
  Snapshot snapshot = Read();
  snapshot.events.resize(1);
  follower.Update(snapshot);
  Snapshot later = Read();
  later.events.erase(later.events.begin() + 2);
  const EventsFollower::News news = follower.Update(later);
  EXPECT_EQ(news.lost, 1U);
  EXPECT_EQ(news.events.size(), later.events.size() - 1);
}

TEST_F(Views, FollowingEventsGoesOnWithTheNextService) {
  EventsFollower follower;
  Snapshot snapshot = Read();
  follower.Update(snapshot);
  snapshot.service.started_ns += kSecond;
  snapshot.events.resize(1);
  snapshot.events[0].number = 1;
  const EventsFollower::News news = follower.Update(snapshot);
  EXPECT_TRUE(news.is_new_service);
  EXPECT_EQ(news.lost, 0U);
  EXPECT_EQ(news.events.size(), 1U);
}

TEST_F(Views, EventsOfOneJobOnly) {
  EXPECT_EQ(EventsJson(Read(), "broken")["events"].size(), 2U);
  EXPECT_TRUE(EventsJson(Read(), "vision")["events"].empty());
}

TEST_F(Views, NoRankIsCalledTheLastWhereAllAreAlike) {
  Snapshot snapshot = Read();
  EXPECT_NE(RanksTable(snapshot, "vision", true).find("Rank 2"), std::string::npos);
  for (ipc::RankRow& rank : snapshot.ranks) rank.last_posts = 100;
  EXPECT_EQ(RanksTable(snapshot, "vision", true).find("Rank 2"), std::string::npos);
}

TEST_F(Views, ARowThatIsBeingWrittenIsLeftOutAndCounted) {
  layout().jobs[3].version.fetch_add(1);
  layout().queue[1023].version.fetch_add(1);
  const Snapshot snapshot = Read();
  EXPECT_EQ(snapshot.rows_unread, 2U);
  EXPECT_EQ(snapshot.jobs.size(), 2U);
  EXPECT_EQ(snapshot.queue.size(), 16U);
  EXPECT_EQ(JobsJson(snapshot, NameOfUser)["rows_unread"], 2);
}

TEST_F(Views, TextThatIsNoUtf8StillMakesJson) {
  ipc::JobRow row{};
  row.id = 1;
  ipc::SetText(row.name, "caf\xc3");
  ipc::WriteRow(layout().jobs[1], row);
  EXPECT_EQ(JobsJson(Read(), NameOfUser)["jobs"][0]["name"], "caf\xef\xbf\xbd");
}

TEST_F(BoardTest, AnEmptyBoardGivesHeadersOnlyAndValidJson) {
  const Snapshot snapshot = Read();
  ExpectGolden("empty.txt", StatusTable(snapshot, Liveness::kGone, nullptr, true) +
                                JobsTable(snapshot, NameOfUser, true) +
                                QueueTable(snapshot, {}, true) + LanesTable(snapshot, true) +
                                EventsTable(snapshot, "", true) +
                                UsersTable(snapshot, NameOfUser, true));
  EXPECT_TRUE(JobsJson(snapshot, NameOfUser)["jobs"].is_array());
  EXPECT_TRUE(QueueJson(snapshot, {})["queue"].is_array());
  EXPECT_TRUE(LanesJson(snapshot)["lanes"].is_array());
  EXPECT_TRUE(EventsJson(snapshot, "")["events"].is_array());
}

}  // namespace
}  // namespace headrace::ctl
