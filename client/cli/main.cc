// headracectl: what the service is doing, for people and programs, and how to change it.
//
// What can be read is read from the board, so that it works while the service is stopped or stuck;
// certs has nothing to do with a service that runs. Exit codes: 0 ok, 1 found a problem, 2 usage.
#include <langinfo.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <clocale>
#include <cstring>

#include "client/cli/ctl/certs_command.h"
#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/control.h"
#include "client/cli/ctl/flight_command.h"
#include "client/cli/ctl/trace_command.h"
#include "client/cli/replay/command.h"
#include "ipc/board.h"
#include "ipc/board_layout.h"

namespace headrace::ctl {
namespace {

// What the terminal shows, by LC_ALL, LC_CTYPE or LANG.
bool TerminalShowsUtf8() {
  std::setlocale(LC_CTYPE, "");
  return std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
}

// Builds the commands, runs the one that was asked for.
int Run(int argc, char** argv) {
  Globals globals;
  globals.utf8 = TerminalShowsUtf8();
  int exit_code = kExitOk;
  CLI::App app("Headrace: what the service on this node is doing", "headracectl");
  app.set_help_flag("-h,--help", "print this help and exit");
  const std::string version = fmt::format("headracectl {} (protocol {}, board {})",
                                          HEADRACE_VERSION, ProtocolVersion(), ipc::kBoardVersion);
  app.set_version_flag("--version", version,
                       "print the version and the versions of the protocols and exit");
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "Exit codes: 0 ok, 1 found a problem, 2 usage.\n"
      "headracectl COMMAND --help describes a command; man headracectl has them all.");
  CLI::Option* board =
      app.add_option(
             "--board", globals.board_path,
             "status file of the service; with --socket alone, the file \"board\" beside it")
          ->envname("HEADRACE_BOARD")
          ->capture_default_str();
  const CLI::Option* socket =
      app.add_option("--socket", globals.socket_path, "socket of the service")
          ->envname("HEADRACE_SOCKET")
          ->capture_default_str();
  // Before the command runs.
  app.parse_complete_callback([&globals, board, socket] {
    if (socket->count() > 0 && board->count() == 0) {
      globals.board_path = ipc::BoardPathBeside(globals.socket_path);
    }
  });
  app.add_option("--uid", globals.uid,
                 "only jobs of this user; needed where several users have a job of one name");
  app.add_flag("--json", globals.json, "print JSON; its keys are documented and stable");
  app.add_flag("-H,--no-header", globals.no_header, "print tables without their header line");

  const Program program{app, globals, exit_code};
  AddViewCommands(program);
  AddQueueCommand(program);
  AddEventsCommand(program);
  AddFlightCommand(program);
  AddTraceCommand(program);
  AddTopCommand(program);
  AddDoctorCommand(program);
  AddSteeringCommands(program);
  AddDrainCommand(program);
  replay::AddReplayCommand(app, {globals.socket_path, globals.board_path, board, globals.json},
                           exit_code);
  AddExamples(*app.get_subcommand("replay"),
              {"replay client/profiles/resnet50.json --policy exact --iterations 20"});
  AddCertsCommand(app, globals.json, exit_code);
  AddCompletionCommand(program);
  AddSelfCommands(program, version);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Zero: --help or --version, which CLI11 prints.
    if (error.get_exit_code() == 0) return app.exit(error);
    Complain(ExplainLine(app, error));
    return kExitUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace headrace::ctl

int main(int argc, char** argv) { return headrace::ctl::Run(argc, argv); }
