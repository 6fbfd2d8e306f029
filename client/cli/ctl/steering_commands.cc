// What changes a running job.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <vector>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/control.h"
#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/table.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/codec_choice.h"
#include "ipc/base/foreign_text.h"
#include "ipc/base/policies.h"
#include "ipc/base/steering.h"

namespace headrace::ctl {
namespace {

constexpr std::uint64_t kRankMax = 63;  // of the largest job

struct SteeringOptions {
  std::string job;
  std::uint64_t value = 0;
  std::string text;  // a policy, a limit, a class
  bool yes = false;  // cancel without a question
  bool force = false;
  double timeout_seconds = 1;
};
using SharedOptions = std::shared_ptr<SteeringOptions>;

TimeNs Timeout(const SteeringOptions& options) {
  return static_cast<TimeNs>(options.timeout_seconds * kSecond);
}

int UsageError(const Status& asked) {
  Complain(asked.error().text());
  return kExitProblem;
}

int Policy(const Globals& globals, const SteeringOptions& options) {
  const Status asked =
      SetPolicy(globals.socket_path, {options.job, globals.uid}, options.text, Timeout(options));
  if (!asked) return UsageError(asked);
  if (globals.json) {
    Print(Json{{"job", JsonText(options.job)}, {"policy", options.text}});
  } else {
    Print(fmt::format(
        "The job's leader was asked for plans by {}; headracectl plan {} shows when one is in "
        "force.\n",
        options.text, options.job));
  }
  return kExitOk;
}

// Asks the service, and says `said` of it.
int SteerAndReport(const Globals& globals, const SteeringOptions& options, SteeringKind kind,
                   const char* name, std::uint64_t value, const std::string& said) {
  const Status asked = Steer(globals.socket_path, {options.job, globals.uid}, kind, value,
                             Timeout(options), options.force);
  if (!asked) return UsageError(asked);
  if (globals.json) {
    Print(Json{{"job", JsonText(options.job)}, {"asked", name}, {"value", value}});
  } else {
    Print(said + "\n");
  }
  return kExitOk;
}

// Nobody is there to answer where the input is no terminal; a script has decided before.
bool IsConfirmed(const SteeringOptions& options) {
  if (options.yes || ::isatty(STDIN_FILENO) != 1) return true;
  std::cerr << "Cancel job " << Printable(options.job)
            << "? It ends now, on all nodes, and its ranks get an error. [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

int Cancel(const Globals& globals, const SteeringOptions& options) {
  if (!IsConfirmed(options)) {
    Complain("nothing was cancelled");
    return kExitProblem;
  }
  return SteerAndReport(
      globals, options, SteeringKind::kCancel, "cancel", 0,
      fmt::format("Job {} ends now; its ranks get an error that says so.", options.job));
}

int Limit(const Globals& globals, const SteeringOptions& options) {
  const Result<std::uint64_t> limit = ParseRateLimit(options.text);
  if (!limit) {
    Complain(limit.error().text());
    return kExitUsage;
  }
  const std::string said =
      *limit == 0 ? fmt::format("From its next iteration on, job {} has no limit.", options.job)
                  : fmt::format("From its next iteration on, job {} moves at most {} on each lane.",
                                options.job, FormatRateLimit(*limit));
  return SteerAndReport(globals, options, SteeringKind::kLimit, "limit", *limit, said);
}

int Sends(const Globals& globals, const SteeringOptions& options) {
  const auto found = std::ranges::find(kSendsClassNames, options.text);
  const auto value = static_cast<std::uint64_t>(found - kSendsClassNames.begin());
  const bool above = value == static_cast<std::uint64_t>(SendsClass::kAbove);
  return SteerAndReport(globals, options, SteeringKind::kSends, "sends", value,
                        fmt::format("From its next iteration on, sends and receives of job {}, and "
                                    "what only copies, go {} its other blocks.",
                                    options.job, above ? "before" : "in turn with"));
}

int Compress(const Globals& globals, const SteeringOptions& options) {
  const std::optional<CodecChoice> codec = ChoiceNamed(options.text);
  if (!codec) {
    Complain(fmt::format("codec \"{}\" is not one of {}", Printable(options.text), KnownCodecs()));
    return kExitUsage;
  }
  return SteerAndReport(
      globals, options, SteeringKind::kCompress, "compress", ChoiceValue(*codec),
      fmt::format("The job's leader was asked for plans with gradients as {}; headracectl plan {} "
                  "shows when one is in force.",
                  ChoiceName(*codec), options.job));
}

// A command that takes a job.
CLI::App* AddSteering(const Program& program, const SharedOptions& options, const char* name,
                      const char* help, std::initializer_list<const char*> examples,
                      std::function<int()> run) {
  CLI::App* command = AddCommand(program, name, help, examples, std::move(run));
  command->add_option("job", options->job, "name of a job")->required();
  AddTimeout(*command, options->timeout_seconds);
  return command;
}

void AddPolicy(const Program& program) {
  const auto options = std::make_shared<SteeringOptions>();
  AddSteering(program, options, "policy", "changes the policy that plans a job's gradients",
              {"policy vision exact"},
              [&globals = program.globals, options] { return Policy(globals, *options); })
      ->add_option("policy", options->text, "the new policy")
      ->required()
      ->check(CLI::IsMember(
          std::vector<std::string>(plan::kPolicyNames.begin(), plan::kPolicyNames.end())));
}

// pause and resume say all with their names.
void AddPlain(const Program& program, SteeringKind kind, const char* name, const char* help,
              const char* example, const char* said) {
  const auto options = std::make_shared<SteeringOptions>();
  AddSteering(program, options, name, help, {example},
              [&globals = program.globals, options, kind, name, said] {
                return SteerAndReport(globals, *options, kind, name, 0,
                                      fmt::format(fmt::runtime(said), options->job));
              });
}

void AddCancel(const Program& program) {
  const auto options = std::make_shared<SteeringOptions>();
  AddSteering(program, options, "cancel", "ends a job now, on all of its nodes",
              {"cancel vision", "cancel vision --yes"},
              [&globals = program.globals, options] { return Cancel(globals, *options); })
      ->add_flag("-y,--yes", options->yes, "do not ask for confirmation");
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
  const char* argument = "value";
};
void AddNumber(const Program& program, const NumberCommand& number) {
  const auto options = std::make_shared<SteeringOptions>();
  CLI::App* command = AddSteering(
      program, options, number.name, number.help, {number.example},
      [&globals = program.globals, options, number] {
        return SteerAndReport(globals, *options, number.kind, number.name, options->value,
                              fmt::format(fmt::runtime(number.said), options->job, options->value));
      });
  CheckRange(command->add_option(number.argument, options->value, number.meaning)->required(),
             number.least, number.most);
}

void AddLimit(const Program& program) {
  const auto options = std::make_shared<SteeringOptions>();
  AddSteering(program, options, "limit", "limits the rate of a job on each lane",
              {"limit vision 2Gbit", "limit vision 100MB/s", "limit vision none"},
              [&globals = program.globals, options] { return Limit(globals, *options); })
      ->add_option("rate", options->text, "2Gbit, 500Mbit, 100MB/s, ... per second; none: no limit")
      ->required();
}

void AddSends(const Program& program) {
  const auto options = std::make_shared<SteeringOptions>();
  AddSteering(program, options, "sends",
              "changes the order between a job's sends, receives and copies and its other blocks",
              {"sends pipeline --class same", "sends pipeline --class above"},
              [&globals = program.globals, options] { return Sends(globals, *options); })
      ->add_option("--class", options->text,
                   "above: before the job's other blocks (the default); same: in turn with them")
      ->required()
      ->check(CLI::IsMember(
          std::vector<std::string>(kSendsClassNames.begin(), kSendsClassNames.end())));
}

void AddCompress(const Program& program) {
  const auto options = std::make_shared<SteeringOptions>();
  CLI::App* command = AddSteering(
      program, options, "compress",
      "changes the codec that compresses a job's gradients between nodes",
      {"compress vision int8", "compress vision auto:int8,bf16", "compress vision none"},
      [&globals = program.globals, options] { return Compress(globals, *options); });
  command
      ->add_option(
          "codec", options->text,
          "codec of all gradients for which the ranks chose none, from the next plan on: " +
              KnownCodecs())
      ->required();
  command->add_flag("--force", options->force,
                    "also a codec with which the job's optimizer is known to diverge");
}

}  // namespace

void AddSteeringCommands(const Program& program) {
  AddPolicy(program);
  AddPlain(program, SteeringKind::kPause, "pause",
           "pauses a job at the start of its next iteration", "pause vision",
           "Job {0} pauses where its next iteration begins; headracectl resume {0} resumes it.");
  AddPlain(program, SteeringKind::kResume, "resume", "resumes a paused job", "resume vision",
           "Job {0} is resumed.");
  AddCancel(program);
  AddNumber(program,
            {.kind = SteeringKind::kWeight,
             .name = "weight",
             .help = "sets a job's share of each lane among jobs of the same priority",
             .example = "weight vision 3",
             .meaning = "weight; 3: three times the share of a job of weight 1; initially 1",
             .least = 1,
             .most = kWeightMax,
             .said = "From its next iteration on, job {0} has weight {1}."});
  AddNumber(program, {.kind = SteeringKind::kPriority,
                      .name = "priority",
                      .help = "sets a job's priority; blocks of jobs of higher priority go first",
                      .example = "priority vision 1",
                      .meaning = "priority; larger goes first; initially 0",
                      .least = 0,
                      .most = kPriorityMax,
                      .said = "From its next iteration on, job {0} has priority {1}."});
  AddNumber(program,
            {.kind = SteeringKind::kEvict,
             .name = "evict",
             .help = "removes a rank from a job at once, as if its process had exited",
             .example = "evict vision 3",
             .meaning = "number of the rank, as headracectl jobs shows it",
             .least = 0,
             .most = kRankMax,
             .said = "Rank {1} is removed from job {0}; the job continues without it if it is "
                     "elastic, and fails otherwise.",
             .argument = "rank"});
  AddLimit(program);
  AddSends(program);
  AddCompress(program);
}

}  // namespace headrace::ctl
