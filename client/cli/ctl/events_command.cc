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
constexpr auto kFollowInterval = std::chrono::milliseconds(250);

struct EventsOptions {
  std::string job;
  bool follow = false;
  std::uint64_t newest = 0;     // only so many of those that are there; 0: all
  std::uint64_t count_max = 0;  // 0: no limit
};

class Follower {
 public:
  Follower(const Globals& globals, const EventsOptions& options)
      : globals_(globals), options_(options) {}

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
        Show(has_shown_ ? *snapshot : NewestEvents(*snapshot, options_.job, options_.newest));
      }
      if (!is_there && (was_there || !has_shown_)) {
        Complain("the service is gone; waiting for the next one");
      }
      was_there = is_there;
      has_shown_ = true;
      if (!IsEnough()) std::this_thread::sleep_for(kFollowInterval);
    }
    return kExitOk;
  }

 private:
  bool IsEnough() const { return options_.count_max > 0 && shown_ >= options_.count_max; }

  void Show(const Snapshot& snapshot) {
    const EventsFollower::News news = follower_.Update(snapshot);
    if (news.is_new_service) PrintEvent("service_started", snapshot.service.pid);
    if (news.lost > 0) PrintEvent("events_lost", static_cast<std::int64_t>(news.lost));
    for (const ipc::EventRow& event : news.events) {
      if (IsEnough() || !IsEventOf(event, snapshot, options_.job)) continue;
      Print(globals_.json ? EventJson(event).dump() + "\n" : EventLine(event, snapshot));
      ++shown_;
    }
    std::fflush(stdout);
  }

  // Stands among the events, where it belongs.
  void PrintEvent(const char* what, std::int64_t number) {
    if (globals_.json) {
      Print(Json{{what, number}}.dump() + "\n");
    } else if (std::string_view(what) == "events_lost") {
      Print(fmt::format("-- {} events were overwritten before they were read\n", number));
    } else {
      Print(fmt::format("-- another service (pid {}) writes from here on\n", number));
    }
  }

  const Globals& globals_;
  const EventsOptions& options_;
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

int Events(const Globals& globals, const EventsOptions& options) {
  if (options.follow) return Follower(globals, options).Run();
  return Show(
      globals,
      {.table =
           [&options](const Reading& reading, bool with_header) {
             return EventsTable(NewestEvents(reading.snapshot, options.job, options.newest),
                                options.job, with_header);
           },
       .json =
           [&options](const Reading& reading) {
             return EventsJson(NewestEvents(reading.snapshot, options.job, options.newest),
                               options.job);
           },
       .is_problem =
           [&options](const Snapshot& snapshot) { return IsUnknown(snapshot, options.job); }});
}

}  // namespace

void AddEventsCommand(const Program& program) {
  const auto options = std::make_shared<EventsOptions>();
  CLI::App* command =
      AddCommand(program, "events", "the newest events: attaches, losses, plans, errors",
                 {"events", "events -n 20 --job vision", "events --follow --count 20"},
                 [&globals = program.globals, options] { return Events(globals, *options); });
  // A job may be gone whose events are still there: a name that is unknown now is no mistake.
  command->add_option("--job", options->job, "only events of this job");
  CLI::Option* follow =
      command->add_flag("-f,--follow", options->follow, "go on with new events as they happen");
  command
      ->add_option("-n,--newest", options->newest,
                   "print at most so many of the events so far, the newest")
      ->type_name("N");
  command->add_option("--count", options->count_max, "with --follow: stop after so many events")
      ->type_name("N")
      ->needs(follow);
}

}  // namespace headrace::ctl
