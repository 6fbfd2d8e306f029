// What changes a running job.
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <vector>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/control.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "client/cli/ctl/words.h"
#include "ipc/base/foreign_text.h"
#include "ipc/base/policies.h"

namespace headrace::ctl {
namespace {

struct Wish {
  std::string job;
  std::uint64_t value = 0;
  std::string text;  // a policy, a limit
  bool yes = false;  // cancel without a question
  double timeout_seconds = 1;
};
using SharedWish = std::shared_ptr<Wish>;

TimeNs Timeout(const Wish& wish) { return static_cast<TimeNs>(wish.timeout_seconds * kSecond); }

int Refuse(const Status& asked) {
  Complain(asked.error().text());
  return kExitProblem;
}

int Policy(const Globals& globals, const Wish& wish) {
  const Status asked = SetPolicy(globals.socket_path, wish.job, wish.text, Timeout(wish));
  if (!asked) return Refuse(asked);
  if (globals.json) {
    Print(Json{{"job", JsonText(wish.job)}, {"policy", wish.text}});
  } else {
    Print(fmt::format(
        "The job's leader was asked for plans by {}; headracectl plan {} shows when one is in "
        "force.\n",
        wish.text, wish.job));
  }
  return kExitOk;
}

// Asks the service, and says `said` of it.
int Carry(const Globals& globals, const Wish& wish, SteeringKind kind, const char* name,
          std::uint64_t value, const std::string& said) {
  const Status asked = Steer(globals.socket_path, wish.job, kind, value, Timeout(wish));
  if (!asked) return Refuse(asked);
  if (globals.json) {
    Print(Json{{"job", JsonText(wish.job)}, {"asked", name}, {"value", value}});
  } else {
    Print(said + "\n");
  }
  return kExitOk;
}

// Nobody is there to answer where the input is no terminal; a script has decided before.
bool IsConfirmed(const Wish& wish) {
  if (wish.yes || ::isatty(STDIN_FILENO) != 1) return true;
  std::cerr << "Cancel job " << Printable(wish.job)
            << "? It ends now, on all nodes, and its ranks get an error. [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

int Cancel(const Globals& globals, const Wish& wish) {
  if (!IsConfirmed(wish)) {
    Complain("nothing was cancelled");
    return kExitProblem;
  }
  return Carry(globals, wish, SteeringKind::kCancel, "cancel", 0,
               fmt::format("Job {} ends now; its ranks get an error that says so.", wish.job));
}

int Limit(const Globals& globals, const Wish& wish) {
  const Result<std::uint64_t> limit = ParseRateLimit(wish.text);
  if (!limit) {
    Complain(limit.error().text());
    return kExitUsage;
  }
  const std::string said =
      *limit == 0 ? fmt::format("From its next iteration on, job {} has no limit.", wish.job)
                  : fmt::format("From its next iteration on, job {} moves at most {} on each lane.",
                                wish.job, FormatRateLimit(*limit));
  return Carry(globals, wish, SteeringKind::kLimit, "limit", *limit, said);
}

// A command that takes a job.
CLI::App* AddSteering(const Program& program, const SharedWish& wish, const char* name,
                      const char* help, std::initializer_list<const char*> examples,
                      std::function<int()> run) {
  CLI::App* command = AddCommand(program, name, help, examples, std::move(run));
  command->add_option("job", wish->job, "name of a job")->required();
  AddTimeout(*command, wish->timeout_seconds);
  return command;
}

void AddPolicy(const Program& program) {
  const auto wish = std::make_shared<Wish>();
  AddSteering(program, wish, "policy", "asks for plans of a job by another policy from now on",
              {"policy vision exact"},
              [&globals = program.globals, wish] { return Policy(globals, *wish); })
      ->add_option("policy", wish->text, "the policy that makes its plans")
      ->required()
      ->check(CLI::IsMember(
          std::vector<std::string>(plan::kPolicyNames.begin(), plan::kPolicyNames.end())));
}

// pause and resume say all with their names.
void AddPlain(const Program& program, SteeringKind kind, const char* name, const char* help,
              const char* example, const char* said) {
  const auto wish = std::make_shared<Wish>();
  AddSteering(
      program, wish, name, help, {example}, [&globals = program.globals, wish, kind, name, said] {
        return Carry(globals, *wish, kind, name, 0, fmt::format(fmt::runtime(said), wish->job));
      });
}

void AddCancel(const Program& program) {
  const auto wish = std::make_shared<Wish>();
  AddSteering(program, wish, "cancel", "ends a job now, on all of its nodes",
              {"cancel vision", "cancel vision --yes"},
              [&globals = program.globals, wish] { return Cancel(globals, *wish); })
      ->add_flag("-y,--yes", wish->yes, "without the question that a terminal is asked");
}

// weight and priority take a number.
struct NumberCommand {
  SteeringKind kind;
  const char* name;
  const char* help;
  const char* example;
  const char* meaning;  // of the value
  std::uint64_t least;
  std::uint64_t most;
  const char* said;  // {0}: the job, {1}: the value
};
void AddNumber(const Program& program, const NumberCommand& number) {
  const auto wish = std::make_shared<Wish>();
  CLI::App* command =
      AddSteering(program, wish, number.name, number.help, {number.example},
                  [&globals = program.globals, wish, number] {
                    return Carry(globals, *wish, number.kind, number.name, wish->value,
                                 fmt::format(fmt::runtime(number.said), wish->job, wish->value));
                  });
  CheckRange(command->add_option("value", wish->value, number.meaning)->required(), number.least,
             number.most);
}

void AddLimit(const Program& program) {
  const auto wish = std::make_shared<Wish>();
  AddSteering(program, wish, "limit", "the most a job may move on each lane",
              {"limit vision 2Gbit", "limit vision 100MB/s", "limit vision none"},
              [&globals = program.globals, wish] { return Limit(globals, *wish); })
      ->add_option("rate", wish->text, "2Gbit, 500Mbit, 100MB/s, ...; none ends the limit")
      ->required();
}

}  // namespace

void AddSteeringCommands(const Program& program) {
  AddPolicy(program);
  AddPlain(program, SteeringKind::kPause, "pause", "holds a job back from its next iteration on",
           "pause vision",
           "Job {0} pauses where its next iteration begins; headracectl resume {0} lets it go on.");
  AddPlain(program, SteeringKind::kResume, "resume", "lets a paused job go on", "resume vision",
           "Job {0} goes on.");
  AddCancel(program);
  AddNumber(program, {.kind = SteeringKind::kWeight,
                      .name = "weight",
                      .help = "a job's share of a lane among jobs of its priority",
                      .example = "weight vision 3",
                      .meaning = "3: three times what a job of weight 1 gets",
                      .least = 1,
                      .most = kWeightMax,
                      .said = "From its next iteration on, job {0} has weight {1}."});
  AddNumber(program, {.kind = SteeringKind::kPriority,
                      .name = "priority",
                      .help = "a job's class: a larger one goes first wherever it waits",
                      .example = "priority vision 1",
                      .meaning = "0: as all jobs at first",
                      .least = 0,
                      .most = kPriorityMax,
                      .said = "From its next iteration on, job {0} has priority {1}."});
  AddLimit(program);
}

}  // namespace headrace::ctl
