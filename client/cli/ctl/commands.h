// The commands of headracectl, one function a family: each adds its part to the command line and
// runs if it was chosen. The help, the completion and the manual page's test read the same tree, so
// that a command that is added here is known everywhere.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <initializer_list>
#include <string>

#include "client/cli/ctl/console.h"
#include "ipc/base/option_range.h"

namespace headrace::ctl {

// What every command is added to. All of it outlives the parsing.
struct Program {
  CLI::App& app;
  const Globals& globals;
  int& exit_code;
};

// `examples` are whole command lines without the program's name; they stand at the end of the help.
// `run` is called once, after all options are known, and returns the exit code.
CLI::App* AddCommand(const Program& program, const std::string& name, const std::string& help,
                     std::initializer_list<const char*> examples, std::function<int()> run);

// Gives a command that was added elsewhere its examples.
void AddExamples(CLI::App& command, std::initializer_list<const char*> examples);

// --watch, which needs no value, and --count, under `count_flags`: -n is the number of rows where a
// command has such an option.
void AddWatch(CLI::App& command, Watch& watch, const std::string& count_flags = "-n,--count");
template <typename Number>
CLI::Option* CheckRange(CLI::Option* option, Number least, Number most) {
  return option->check(Between(least, most));
}
// --timeout, in seconds.
void AddTimeout(CLI::App& command, double& seconds);

// help and version, which are also options: people type either.
void AddSelfCommands(const Program& program, const std::string& version);

// What to say of a line that CLI11 could not parse: which word is unknown, and which was meant.
std::string ExplainLine(const CLI::App& app, const CLI::ParseError& error);

void AddViewCommands(const Program& program);       // status, jobs, plan, lanes, users
void AddQueueCommand(const Program& program);       // queue
void AddEventsCommand(const Program& program);      // events
void AddSteeringCommands(const Program& program);   // policy, and what changes a running job
void AddDrainCommand(const Program& program);       // drain
void AddDoctorCommand(const Program& program);      // doctor
void AddTopCommand(const Program& program);         // top
void AddCompletionCommand(const Program& program);  // completion

}  // namespace headrace::ctl
