// What waits, and for what.
#include <memory>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/queue_view.h"

namespace headrace::ctl {
namespace {

bool NamesSomethingUnknown(const Snapshot& snapshot, const QueueQuery& query) {
  const bool knows_job = query.job.empty() || KnowsJob(snapshot, query.job);
  const bool knows_lane = query.lane.empty() || KnowsLane(snapshot, query.lane);
  return !knows_job || !knows_lane;
}

}  // namespace

void AddQueueCommand(const Program& program) {
  const auto query = std::make_shared<QueueQuery>();
  const auto watch = std::make_shared<Watch>();
  CLI::App* command = AddCommand(
      program, "queue", "every open block stage and what it waits for",
      {"queue", "queue --state waiting --sort age", "queue --job vision --lane shm0 --watch 1"},
      [&globals = program.globals, query, watch] {
        return Show(
            globals,
            {.table =
                 [query](const Reading& reading, bool with_header) {
                   return QueueTable(reading.snapshot, *query, with_header);
                 },
             .json =
                 [query](const Reading& reading) { return QueueJson(reading.snapshot, *query); },
             .is_problem =
                 [query](const Snapshot& snapshot) {
                   return NamesSomethingUnknown(snapshot, *query);
                 }},
            *watch);
      });
  command->add_option("--job", query->job, "only stages of this job");
  command->add_option("--lane", query->lane, "only stages that run on this lane or wait for it");
  command->add_option("--state", query->state, "only stages in this state")
      ->check(CLI::IsMember({"gathering", "waiting", "moving"}));
  command->add_option("--sort", query->sort, "order of the rows")
      ->check(
          CLI::IsMember(std::vector<std::string>(std::begin(kQueueSorts), std::end(kQueueSorts))))
      ->capture_default_str();
  AddWatch(*command, *watch);
}

}  // namespace headrace::ctl
