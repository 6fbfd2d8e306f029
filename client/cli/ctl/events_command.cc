// What happened, and what happens.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/events_view.h"

namespace headrace::ctl {
namespace {

// The ring holds 128 events: a service would have to write 500 a second to lose one in between.
constexpr auto kLookEvery = std::chrono::milliseconds(250);

struct Wish {
  std::string job;
  bool follow = false;
  std::uint64_t newest = 0;     // only so many of those that are there; 0: all
  std::uint64_t count_max = 0;  // 0: no limit
};

class Follower {
 public:
  Follower(const Globals& globals, const Wish& wish) : globals_(globals), wish_(wish) {}

  // Until `count_max` events are shown, or for ever. A service that goes is followed by the next.
  int Run() {
    bool was_there = false;
    while (!IsEnough()) {
      Liveness liveness = Liveness::kGone;
      const Result<Snapshot> snapshot = ReadNow(globals_, liveness);
      const bool is_there = snapshot && liveness != Liveness::kGone;
      if (!snapshot && !was_there && !has_shown_) {
        Complain(snapshot.error().text());
        return kExitProblem;
      }
      if (snapshot) {
        Show(has_shown_ ? *snapshot : NewestEvents(*snapshot, wish_.job, wish_.newest));
      }
      if (!is_there && (was_there || !has_shown_)) {
        Complain("the service is gone; waiting for the next one");
      }
      was_there = is_there;
      has_shown_ = true;
      if (!IsEnough()) std::this_thread::sleep_for(kLookEvery);
    }
    return kExitOk;
  }

 private:
  bool IsEnough() const { return wish_.count_max > 0 && shown_ >= wish_.count_max; }

  void Show(const Snapshot& snapshot) {
    const EventsFollower::News news = follower_.Look(snapshot);
    if (news.is_new_service) Say("service_started", snapshot.service.pid);
    if (news.lost > 0) Say("events_lost", static_cast<std::int64_t>(news.lost));
    for (const ipc::EventRow& event : news.events) {
      if (IsEnough() || !IsEventOf(event, snapshot, wish_.job)) continue;
      Print(globals_.json ? EventJson(event).dump() + "\n" : EventLine(event, snapshot));
      ++shown_;
    }
    std::fflush(stdout);
  }

  // Stands among the events, where it belongs.
  void Say(const char* what, std::int64_t number) {
    if (globals_.json) {
      Print(Json{{what, number}}.dump() + "\n");
    } else if (std::string_view(what) == "events_lost") {
      Print(fmt::format("-- {} events were overwritten before they were read\n", number));
    } else {
      Print(fmt::format("-- another service (pid {}) writes from here on\n", number));
    }
  }

  const Globals& globals_;
  const Wish& wish_;
  EventsFollower follower_;
  std::uint64_t shown_ = 0;
  bool has_shown_ = false;
};

// Events outlive their jobs.
bool IsUnknown(const Snapshot& snapshot, const std::string& job) {
  const bool has_events =
      job.empty() || std::ranges::any_of(snapshot.events, [&](const ipc::EventRow& event) {
        return IsEventOf(event, snapshot, job);
      });
  return !has_events && !KnowsJob(snapshot, job);
}

int Events(const Globals& globals, const Wish& wish) {
  if (wish.follow) return Follower(globals, wish).Run();
  return Show(
      globals,
      {.table =
           [&wish](const Reading& reading, bool with_header) {
             return EventsTable(NewestEvents(reading.snapshot, wish.job, wish.newest), wish.job,
                                with_header);
           },
       .json =
           [&wish](const Reading& reading) {
             return EventsJson(NewestEvents(reading.snapshot, wish.job, wish.newest), wish.job);
           },
       .is_problem = [&wish](const Snapshot& snapshot) { return IsUnknown(snapshot, wish.job); }});
}

}  // namespace

void AddEventsCommand(const Program& program) {
  const auto wish = std::make_shared<Wish>();
  CLI::App* command =
      AddCommand(program, "events", "the last things that happened",
                 {"events", "events -n 20 --job vision", "events --follow --count 20"},
                 [&globals = program.globals, wish] { return Events(globals, *wish); });
  // A job may be gone whose events are still there: a name that is unknown now is no mistake.
  command->add_option("--job", wish->job, "only that job's");
  CLI::Option* follow =
      command->add_flag("-f,--follow", wish->follow, "and what happens from now on");
  command
      ->add_option("-n,--newest", wish->newest, "of those that are there only so many, the newest")
      ->type_name("N");
  command->add_option("--count", wish->count_max, "with --follow: end after so many events")
      ->type_name("N")
      ->needs(follow);
}

}  // namespace headrace::ctl
