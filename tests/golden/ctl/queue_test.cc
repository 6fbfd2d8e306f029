// Which block stages `queue` shows, and in what order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/queue_view.h"
#include "tests/golden/ctl/board_fixture.h"
#include "tests/golden/ctl/run_program.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

class Queue : public BoardTest {
 protected:
  Queue() {
    FillAll();
    FillService(::getpid(), MonotonicNow());
  }

  std::vector<std::string> Blocks(const QueueQuery& query) {
    std::vector<std::string> names;
    const Snapshot snapshot = Read();
    for (const ipc::QueueRow& row : SelectQueue(snapshot, query)) {
      names.push_back(JobName(row.job_id, snapshot) + " " + BlockName(row));
    }
    return names;
  }
  Ran Ask(const std::string& arguments) {
    return RunProgram("--board " + path() + " " + arguments);
  }
};

TEST_F(Queue, ShowsOnlyTheLaneAskedForAndNothingThatHasNoneYet) {
  EXPECT_EQ(Blocks({.lane = "test1"}), (std::vector<std::string>{"vision 30819", "vision 57/13"}));
  for (const ipc::QueueRow& row : SelectQueue(Read(), {.lane = "shm0"})) {
    EXPECT_NE(StageStateName(row.state), "gathering");
    EXPECT_EQ(row.lane, 0);
  }
}

TEST_F(Queue, ShowsOnlyTheStateAskedFor) {
  EXPECT_EQ(Blocks({.state = "moving"}),
            (std::vector<std::string>{"vision 30819", "vision 30822"}));
  EXPECT_EQ(Blocks({.state = "gathering"}).size(), 5U);
}

TEST_F(Queue, PutsTheOldestAndTheLargestFirst) {
  const Snapshot snapshot = Read();
  const std::vector<ipc::QueueRow> by_age = SelectQueue(snapshot, {.sort = "age"});
  ASSERT_EQ(by_age.size(), snapshot.queue.size());
  EXPECT_TRUE(std::is_sorted(by_age.begin(), by_age.end(), [](const auto& left, const auto& right) {
    return left.posted_ns < right.posted_ns;
  }));
  EXPECT_EQ(BlockName(by_age.front()), "30819");
  EXPECT_EQ(Blocks({.sort = "bytes"}).back(), "speech-überlang 2") << "a barrier moves nothing";
  const std::vector<ipc::QueueRow> by_lane = SelectQueue(snapshot, {.sort = "lane"});
  EXPECT_EQ(StageStateName(by_lane.back().state), "gathering");
  EXPECT_EQ(StageStateName(SelectQueue(snapshot, {.sort = "state"}).front().state), "gathering");
}

TEST_F(Queue, SaysWhatThereIsWhenANameIsUnknown) {
  const Ran job = Ask("queue --job nobody");
  EXPECT_EQ(job.exit_code, 1);
  EXPECT_TEXT(job.output, "nobody", "broken", "speech-überlang", "vision");
  const Ran lane = Ask("queue --lane ucx7");
  EXPECT_EQ(lane.exit_code, 1);
  EXPECT_TEXT(lane.output, "ucx7", "nvlink0", "shm0", "test1");
  EXPECT_EQ(Ask("lanes ucx7").exit_code, 1);
  EXPECT_EQ(Ask("queue --job vision --lane shm0 --state waiting --sort bytes").exit_code, 0);
}

TEST_F(Queue, RefusesStatesAndSortsThatDoNotExist) {
  EXPECT_EQ(Ask("queue --state sleeping").exit_code, 2);
  EXPECT_EQ(Ask("queue --sort colour").exit_code, 2);
  EXPECT_EQ(Ask("queue --count 3").exit_code, 2) << "counts screens of --watch";
}

TEST_F(Queue, WatchesWithOneObjectALine) {
  const Ran ran = Ask("queue --json --watch 0.05 --count 3");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_EQ(std::count(ran.output.begin(), ran.output.end(), '\n'), 3);
  EXPECT_EQ(Json::parse(ran.output.substr(0, ran.output.find('\n')))["queue"].size(), 17U);
}

}  // namespace
}  // namespace headrace::ctl
