#include "client/cli/ctl/commands.h"

#include <fmt/format.h>

namespace headrace::ctl {

CLI::App* AddCommand(const Program& program, const std::string& name, const std::string& help,
                     std::initializer_list<const char*> examples, std::function<int()> run) {
  CLI::App* command = program.app.add_subcommand(name, help);
  command->set_help_flag("-h,--help", "print this help and exit");
  AddExamples(*command, examples);
  command->callback([&exit_code = program.exit_code, run = std::move(run)] { exit_code = run(); });
  return command;
}

void AddExamples(CLI::App& command, std::initializer_list<const char*> examples) {
  std::string footer = examples.size() == 1 ? "Example:" : "Examples:";
  for (const char* example : examples) footer += fmt::format("\n  headracectl {}", example);
  command.footer(footer);
}

void AddWatch(CLI::App& command, Watch& watch, const std::string& count_flags) {
  CLI::Option* again =
      CheckRange(command
                     .add_option("-w,--watch", watch.seconds,
                                 "repeat every so many seconds; 2 without a number")
                     ->type_name("SECONDS")
                     ->expected(0, 1)
                     ->default_str("2"),
                 0.01, 86400.0);
  command.add_option(count_flags, watch.screens_max, "with --watch: stop after so many outputs")
      ->type_name("N")
      ->needs(again);
}

void AddTimeout(CLI::App& command, double& seconds) {
  CheckRange(command.add_option("--timeout", seconds, "seconds to wait for the service's answer")
                 ->capture_default_str(),
             0.01, 600.0);
}

}  // namespace headrace::ctl
