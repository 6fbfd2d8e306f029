// What top shows, at any size and without a terminal; and what its keys do. tests/e2e/top_test.py
// drives it in a real one.
#include <gtest/gtest.h>

#include <limits>

#include "client/cli/ctl/top/draw.h"
#include "client/cli/ctl/top/keys.h"
#include "ipc/board_text.h"
#include "tests/golden/ctl/board_fixture.h"
#include "tests/support/expect_text.h"

namespace headrace::ctl {
namespace {

class Top : public BoardTest {
 protected:
  Top() {
    FillAll();
    now_ = Read();
    before_ = Read(kNow - 2 * kSecond);
    for (Lane& lane : before_.lanes) {
      if (lane.index == 0) lane.row.busy_ns -= 1500 * kMillisecond;
      if (lane.index == 0) lane.row.bytes_moved -= std::uint64_t{3} << 30;
    }
    for (ipc::ShareRow& share : before_.shares) {
      share.bytes_moved -= (share.job_id == 7 ? std::uint64_t{3} : 1) << 28;
    }
    for (ipc::RankRow& rank : before_.ranks) {
      if (rank.rank == 2) rank.last_posts -= 20;
      if (rank.rank == 2) rank.late_ns -= 240 * kMillisecond;
    }
  }

  Picture Make(const ViewOptions& view_options = {}) {
    return MakePicture(now_, &before_, Liveness::kRunning, view_options);
  }
  static Frame Size(int width, int height) {
    return {.width = width,
            .height = height,
            .utf8 = true,
            .clock = "14:02:11",
            .message = "",
            .asks = false,
            .trouble = ""};
  }

  Snapshot now_;
  Snapshot before_;
};

TEST_F(Top, TakesRatesFromTwoLooks) {
  const Picture picture = Make();
  ASSERT_EQ(picture.jobs.front().name, "vision") << "the fastest stands first";
  EXPECT_EQ(picture.jobs.front().bytes_per_s, static_cast<double>(std::uint64_t{3} << 27));
  EXPECT_EQ(picture.lanes[0].busy, 0.75);
  ASSERT_EQ(picture.lanes[0].users.size(), 2U);
  EXPECT_EQ(picture.lanes[0].users[0].job, "vision");
  EXPECT_EQ(picture.lanes[0].users[0].share, 0.75);
  ASSERT_EQ(picture.ranks.size(), 1U) << "nobody waited for the others since then";
  EXPECT_EQ(picture.ranks[0].rank, 2U);
  EXPECT_EQ(picture.ranks[0].last_posts, 20U);
}

TEST_F(Top, CallsALaneBusyThatWasNeverIdle) {
  for (Lane& lane : before_.lanes) lane.row.busy_ns = now_.lanes[lane.index].row.busy_ns;
  EXPECT_EQ(Make().lanes[0].busy, 1.0) << "something was on it at both looks";
  EXPECT_EQ(Make().lanes[1].busy, 0.0);
  // But nothing flows where all stages wait for a peer.
  for (ipc::QueueRow& row : now_.queue) {
    if (ipc::WaitsForPeer(row)) row.lane = 0;
  }
  EXPECT_EQ(Make().lanes[0].busy, 0.0);
}

TEST_F(Top, SaysNotHowBusyALaneWasThatCannotTellMovingFromWaiting) {
  for (Snapshot* const snapshot : {&before_, &now_}) {
    snapshot->lanes[0].row.busy_ns = ipc::kTimeUnknown;
  }
  EXPECT_FALSE(Make().lanes[0].busy.has_value());
  EXPECT_TRUE(Make().lanes[1].busy.has_value());
}

TEST_F(Top, CountsFromNothingAtFirstAndAfterAnotherServiceStarted) {
  const Picture first = MakePicture(now_, nullptr, Liveness::kRunning, {});
  EXPECT_FALSE(first.jobs.front().bytes_per_s.has_value());
  EXPECT_FALSE(first.lanes[0].busy.has_value());
  before_.service.started_ns -= kSecond;
  EXPECT_FALSE(Make().interval_ns.has_value());
}

TEST_F(Top, TakesIterationTimesFromTheSumsSinceTheLastLook) {
  ipc::PlanRow& plan = now_.plans[0];
  ASSERT_EQ(plan.job_id, 7U);
  plan.iterations_count = 14;
  plan.iterations_ns = 14 * 200 * kMillisecond;
  plan.iterations_waited_ns = 14 * 10 * kMillisecond;
  plan.iterations_moving_ns = 14 * 100 * kMillisecond;
  before_.plans[0].iterations_count = 4;
  before_.plans[0].iterations_ns = 4 * 200 * kMillisecond;
  before_.plans[0].iterations_waited_ns = 4 * 10 * kMillisecond;
  before_.plans[0].iterations_moving_ns = 4 * 100 * kMillisecond;
  const Picture picture = Make();
  EXPECT_EQ(picture.jobs[0].iteration_ns, 200 * kMillisecond);
  EXPECT_NEAR(picture.jobs[0].hidden.value(), 0.9, 1e-9);
}

TEST_F(Top, ShowsTheOldestWaitsFirstAndNothingThatOnlyMoves) {
  const Picture picture = Make();
  ASSERT_EQ(picture.waits.size(), 16U) << "17 stages, of which one moves and waits for nobody";
  EXPECT_EQ(picture.waits[0].block, "30819");
  for (std::size_t i = 1; i < picture.waits.size(); ++i) {
    EXPECT_GE(picture.waits[i - 1].age_ns, picture.waits[i].age_ns);
  }
}

TEST_F(Top, FiltersJobsRanksAndWaitsWhateverTheCase) {
  const Picture speech = Make({.filter = "SPEECH"});
  ASSERT_EQ(speech.jobs.size(), 1U);
  EXPECT_TRUE(speech.ranks.empty());
  for (const WaitLine& wait : speech.waits)
    EXPECT_NE((wait.job + wait.why).find("speech"), std::string::npos);
  EXPECT_EQ(Make({.filter = "node-c"}).waits.size(), 3U);
  EXPECT_EQ(speech.jobs_count, 3U) << "the title counts all";
}

TEST_F(Top, SortsByEveryColumnAndBackwards) {
  const auto names = [this](JobSort sort, bool reversed) {
    std::string text;
    for (const JobLine& job : Make({.sort = sort, .reversed = reversed}).jobs) text += job.name[0];
    return text;
  };
  EXPECT_EQ(names(JobSort::kName, false), "bsv");
  EXPECT_EQ(names(JobSort::kName, true), "vsb");
  EXPECT_EQ(names(JobSort::kRate, false), "vsb");
  EXPECT_EQ(names(JobSort::kTime, false)[0], 'v');
  EXPECT_EQ(names(JobSort::kHidden, false)[0], 'v');
  EXPECT_EQ(names(JobSort::kOpen, false), "vsb");
  EXPECT_EQ(names(JobSort::kAge, false), "vbs");
}

TEST_F(Top, LooksAsItDidOnAUsualTerminal) {
  const Picture picture = Make();
  const ViewOptions view_options{.selected_job = 7};
  ExpectGolden("top_80x24.txt", Draw(picture, view_options, Size(80, 24)).Text());
  ExpectGolden("top_120x40.txt", Draw(picture, view_options, Size(120, 40)).Text());
  ExpectGolden("top_40x10.txt", Draw(picture, view_options, Size(40, 10)).Text());
  Frame ascii = Size(80, 24);
  ascii.utf8 = false;
  ExpectGolden("top_80x24_ascii.txt", Draw(picture, view_options, ascii).Text());
  ExpectGolden("top_help.txt", DrawHelp(Size(80, 24)).Text());
}

TEST_F(Top, IsNeverLargerThanTheTerminal) {
  const Picture picture = Make();
  for (int width = 0; width <= 130; width += width < 12 ? 1 : 7) {
    for (int height = 0; height <= 50; height += height < 8 ? 1 : 5) {
      for (const bool utf8 : {false, true}) {
        Frame frame = Size(width, height);
        frame.utf8 = utf8;
        for (const Screen& screen : {Draw(picture, {.selected_job = 9}, frame), DrawHelp(frame)}) {
          EXPECT_LE(screen.lines.size(), static_cast<std::size_t>(height));
          for (const Line& line : screen.lines) {
            EXPECT_LE(WidthOf(line.Text()), static_cast<std::size_t>(width)) << line.Text();
          }
        }
      }
    }
  }
}

TEST_F(Top, SaysInTheTitleThatTheServiceIsGone) {
  const Picture picture = MakePicture(now_, &before_, Liveness::kGone, {});
  const Screen screen = Draw(picture, {}, Size(80, 24));
  EXPECT_EQ(
      screen.lines[0].Text().find(" headraced (pid 4242) is gone: this is what it wrote last"), 0U);
  EXPECT_EQ(screen.lines[0].spans[0].style, Style::kBad);
  EXPECT_NE(screen.Text().find("vision"), std::string::npos);
}

TEST_F(Top, KeepsTheSelectedJobOnAScreenWithRoomForOne) {
  const Screen screen = Draw(Make(), {.selected_job = 9}, Size(80, 4));
  EXPECT_NE(screen.Text().find("speech"), std::string::npos) << screen.Text();
}

TEST(Bars, FillAsFarAsTheShareGoes) {
  EXPECT_EQ(Bar(0, 4, true), "····");
  EXPECT_EQ(Bar(0.5, 4, true), "██··");
  EXPECT_EQ(Bar(0.53, 4, true), "██▏·");
  EXPECT_EQ(Bar(1, 4, true), "████");
  EXPECT_EQ(Bar(7, 4, false), "####");
  EXPECT_EQ(Bar(-1, 4, false), "....");
  EXPECT_EQ(Bar(std::numeric_limits<double>::quiet_NaN(), 4, false), "....");
}

TEST(Text, IsCutByCharactersAndSaysSo) {
  EXPECT_EQ(CutTo("überlang", 8, true), "überlang");
  EXPECT_EQ(CutTo("überlang", 4, true), "übe…");
  EXPECT_EQ(CutTo("überlang", 4, false), "übe~");
  EXPECT_EQ(CutTo("überlang", 0, true), "");
  EXPECT_EQ(PadTo("ü", 3, true, true), "  ü");
}

class TopKeys : public Top {
 protected:
  // The keys one after the other; the last one's action.
  Action Press(const std::vector<int>& pressed) {
    Action action;
    for (const int key : pressed) action = keys_.Press(key, Make(keys_.view_options()));
    return action;
  }
  void Select(std::uint32_t id) {
    keys_.Follow(Make());
    for (int i = 0; i < 3 && keys_.view_options().selected_job != id; ++i) Press({kKeyDown});
    ASSERT_EQ(keys_.view_options().selected_job, id);
  }
  Keys keys_;
};

TEST_F(TopKeys, QuitAndHelp) {
  EXPECT_EQ(Press({'q'}).kind, Action::Kind::kQuit);
  Press({'h'});
  EXPECT_TRUE(keys_.shows_help());
  EXPECT_EQ(Press({'q'}).kind, Action::Kind::kNothing) << "any key only goes back";
  EXPECT_FALSE(keys_.shows_help());
  EXPECT_EQ(Press({' '}).kind, Action::Kind::kReadNow);
}

TEST_F(TopKeys, TypeAFilterAndEndIt) {
  Press({'/', 's', 'p', 'q', kKeyBackspace, 'e'});
  EXPECT_EQ(keys_.Message(), "/spe_");
  EXPECT_EQ(keys_.view_options().filter, "spe");
  Press({kKeyEnter});
  EXPECT_EQ(keys_.Message(), "");
  EXPECT_EQ(keys_.view_options().filter, "spe");
  Press({kKeyEscape});
  EXPECT_EQ(keys_.view_options().filter, "");
  Press({'/', 0xc3, 0xbc, kKeyBackspace});
  EXPECT_EQ(keys_.view_options().filter, "") << "a character goes as a whole";
  for (int i = 0; i < 200; ++i) Press({'x'});
  EXPECT_LE(keys_.view_options().filter.size(), 64U);
}

TEST_F(TopKeys, PauseAsksFirst) {
  Select(7);
  EXPECT_EQ(Press({'p'}).kind, Action::Kind::kNothing);
  EXPECT_TRUE(keys_.asks());
  EXPECT_TEXT(keys_.Message(), "vision", "y/n");
  EXPECT_EQ(Press({'x'}).kind, Action::Kind::kNothing);
  EXPECT_TEXT(keys_.Message());
  const Action action = Press({'p', 'y'});
  EXPECT_EQ(action.kind, Action::Kind::kPause);
  EXPECT_EQ(action.job, "vision");
}

TEST_F(TopKeys, PauseOfAPausedJobLetsItGoOn) {
  Select(9);
  const Action action = Press({'p', 'y'});
  EXPECT_EQ(action.kind, Action::Kind::kResume);
  EXPECT_EQ(action.job, "speech-überlang");
}

TEST_F(TopKeys, WeighTheSelectedJob) {
  Select(7);
  EXPECT_EQ(Press({'+'}).weight, 4U);
  EXPECT_EQ(Press({'-'}).weight, 2U);
  Select(9);
  EXPECT_EQ(Press({'-'}).kind, Action::Kind::kNothing) << "no less than one";
}

TEST_F(TopKeys, SelectTheFirstWhenTheSelectedJobIsGone) {
  Select(9);
  Picture picture = Make();
  std::erase_if(picture.jobs, [](const JobLine& job) { return job.id == 9; });
  keys_.Follow(picture);
  EXPECT_EQ(keys_.view_options().selected_job, picture.jobs.front().id);
  picture.jobs.clear();
  keys_.Follow(picture);
  EXPECT_EQ(keys_.view_options().selected_job, 0U);
  EXPECT_EQ(keys_.Press('p', picture).kind, Action::Kind::kNothing);
  EXPECT_FALSE(keys_.asks());
}

TEST_F(TopKeys, SortGoesRound) {
  const JobSort first = keys_.view_options().sort;
  for (int i = 0; i < kJobSortsCount; ++i) Press({'s'});
  EXPECT_EQ(keys_.view_options().sort, first);
  Press({'S'});
  EXPECT_TRUE(keys_.view_options().reversed);
}

}  // namespace
}  // namespace headrace::ctl
