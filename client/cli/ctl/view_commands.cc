// What stands on the board, one table a command.
#include <memory>

#include "client/cli/ctl/commands.h"

namespace headrace::ctl {
namespace {

void AddStatus(const Program& program) {
  const auto watch = std::make_shared<Watch>();
  CLI::App* command = AddCommand(
      program, "status", "the state and the counters of the service",
      {"status", "status --watch 2", "status --json --watch 1 --count 10"},
      [&globals = program.globals, watch] {
        return Show(globals,
                    {.table =
                         [](const Reading& reading, bool with_header) {
                           return StatusTable(reading.snapshot, reading.liveness, reading.before,
                                              with_header);
                         },
                     .json =
                         [](const Reading& reading) {
                           return StatusJson(reading.snapshot, reading.liveness, reading.before);
                         },
                     .is_problem = [](const Snapshot& snapshot) { return HasFailedJob(snapshot); }},
                    *watch);
      });
  AddWatch(*command, *watch);
}

int Jobs(const Globals& globals, const Watch& watch) {
  return Show(
      globals,
      {.table =
           [](const Reading& reading, bool with_header) {
             return JobsTable(reading.snapshot, NameOfUser, with_header);
           },
       .json = [](const Reading& reading) { return JobsJson(reading.snapshot, NameOfUser); },
       .is_problem = [](const Snapshot& snapshot) { return HasFailedJob(snapshot); }},
      watch);
}

bool IsUnknownOrFailed(const Snapshot& snapshot, const std::string& job) {
  return !KnowsJob(snapshot, job) || HasFailedJob(snapshot, job);
}

// True also for a job that has ended, which the table says.
bool IsUnknownOrHasFailed(const Snapshot& snapshot, const std::string& job) {
  const bool ended = snapshot.FindEnded(job) != nullptr;
  return (!ended && !KnowsJob(snapshot, job)) || HasFailedJob(snapshot, job);
}

int Ranks(const Globals& globals, const std::string& job, const Watch& watch) {
  return Show(
      globals,
      {.table = [&job](const Reading& reading,
                       bool with_header) { return RanksTable(reading.snapshot, job, with_header); },
       .json =
           [&job](const Reading& reading) { return RanksJson(reading.snapshot, job, NameOfUser); },
       .is_problem =
           [&job](const Snapshot& snapshot) { return IsUnknownOrHasFailed(snapshot, job); }},
      watch);
}

void AddJobs(const Program& program) {
  const auto job = std::make_shared<std::string>();
  const auto watch = std::make_shared<Watch>();
  CLI::App* command =
      AddCommand(program, "jobs", "the jobs on this node; with a name, the ranks of that job",
                 {"jobs", "jobs vision", "jobs vision --watch", "jobs --json"},
                 [&globals = program.globals, job, watch] {
                   return job->empty() ? Jobs(globals, *watch) : Ranks(globals, *job, *watch);
                 });
  command->add_option("job", *job, "name of a job");
  AddWatch(*command, *watch);
}

void AddPlan(const Program& program) {
  const auto job = std::make_shared<std::string>();
  const auto watch = std::make_shared<Watch>();
  CLI::App* command = AddCommand(
      program, "plan", "the plan of a job's gradients, with predicted and measured times",
      {"plan vision", "plan vision --watch 5", "plan vision --json"},
      [&globals = program.globals, job, watch] {
        return Show(
            globals,
            {.table =
                 [job, &globals](const Reading& reading, bool with_header) {
                   return PlanTable(reading.snapshot, *job, with_header, globals.utf8);
                 },
             .json = [job](const Reading& reading) { return PlanJson(reading.snapshot, *job); },
             .is_problem =
                 [job](const Snapshot& snapshot) { return IsUnknownOrFailed(snapshot, *job); }},
            *watch);
      });
  command->add_option("job", *job, "name of a job")->required();
  AddWatch(*command, *watch);
}

struct LanesOptions {
  std::string lane;
  bool jobs = false;
  Watch watch;
};

int Lanes(const Globals& globals, const Watch& watch) {
  return Show(globals,
              {.table = [](const Reading& reading,
                           bool with_header) { return LanesTable(reading.snapshot, with_header); },
               .json = [](const Reading& reading) { return LanesJson(reading.snapshot); }},
              watch);
}

int Shares(const Globals& globals, const std::string& lane, const Watch& watch) {
  return Show(
      globals,
      {.table = [&lane](
                    const Reading& reading,
                    bool with_header) { return SharesTable(reading.snapshot, lane, with_header); },
       .json = [&lane](const Reading& reading) { return SharesJson(reading.snapshot, lane); },
       .is_problem =
           [&lane](const Snapshot& snapshot) {
             return !lane.empty() && !KnowsLane(snapshot, lane);
           }},
      watch);
}

void AddLanes(const Program& program) {
  const auto options = std::make_shared<LanesOptions>();
  CLI::App* command = AddCommand(
      program, "lanes",
      "the lanes: credit, load and measured rate; with a name, each job's use of that lane",
      {"lanes", "lanes shm0", "lanes --jobs --json"}, [&globals = program.globals, options] {
        const bool by_job = options->jobs || !options->lane.empty();
        return by_job ? Shares(globals, options->lane, options->watch)
                      : Lanes(globals, options->watch);
      });
  command->add_option("lane", options->lane, "name of a lane");
  command->add_flag("--jobs", options->jobs, "each job's use of each lane");
  AddWatch(*command, options->watch);
}

void AddUsers(const Program& program) {
  const auto watch = std::make_shared<Watch>();
  CLI::App* command = AddCommand(
      program, "users", "what each user uses of the service, and the limits",
      {"users", "users --watch", "users --json"}, [&globals = program.globals, watch] {
        return Show(
            globals,
            {.table =
                 [](const Reading& reading, bool with_header) {
                   return UsersTable(reading.snapshot, NameOfUser, with_header);
                 },
             .json =
                 [](const Reading& reading) { return UsersJson(reading.snapshot, NameOfUser); }},
            *watch);
      });
  AddWatch(*command, *watch);
}

}  // namespace

void AddViewCommands(const Program& program) {
  AddStatus(program);
  AddJobs(program);
  AddPlan(program);
  AddLanes(program);
  AddUsers(program);
}

}  // namespace headrace::ctl
