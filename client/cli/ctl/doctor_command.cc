// What is wrong, and what helps.
#include <fmt/format.h>

#include <memory>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/control.h"
#include "client/cli/ctl/doctor.h"
#include "client/cli/ctl/probe_verdict.h"

namespace headrace::ctl {
namespace {

constexpr TimeNs kPeerTrial = 25 * kSecond;

struct DoctorOptions {
  double timeout_seconds = 2;
  bool probe = false;
  std::string peer;
  Watch watch;
  std::string mps_directory = "/tmp/nvidia-mps";
};

// Returns the exit code.
int PrintFindings(const Globals& globals, const DoctorOptions& options, const Findings& findings) {
  if (globals.json) {
    Print(FindingsJson(findings), options.watch);
  } else {
    Print(FindingsTable(findings, !globals.no_header));
  }
  return HasProblem(findings) ? kExitProblem : kExitOk;
}

int Doctor(const Globals& globals, const DoctorOptions& options) {
  Liveness liveness = Liveness::kGone;
  Result<Snapshot> board = ReadNow(globals, liveness);
  const bool has_pid = liveness == Liveness::kRunning || liveness == Liveness::kStopped;
  const std::int32_t pid = board && has_pid ? board->service.pid : 0;
  const auto timeout_ns = static_cast<TimeNs>(options.timeout_seconds * kSecond);
  DiagnosticInput input{.board_path = globals.board_path,
                        .socket_path = globals.socket_path,
                        .board = std::move(board),
                        .liveness = liveness,
                        .ping = Ping(globals.socket_path, timeout_ns),
                        .protocol_version = ProtocolVersion(),
                        .machine = InspectMachine(globals.board_path, globals.socket_path, pid,
                                                  options.mps_directory)};
  if (input.ping) {
    input.probe = Probe(globals.socket_path, timeout_ns);
    input.peers = Peers(globals.socket_path, timeout_ns);
    input.configuration = Configuration(globals.socket_path, timeout_ns);
  }
  const Findings findings = Examine(input);
  return PrintFindings(globals, options, findings);
}

// Before the first job: whether this node's service reaches another one.
int DoctorPeer(const Globals& globals, const DoctorOptions& options) {
  // Each of the service's steps may take five seconds by itself.
  const auto timeout_ns = static_cast<TimeNs>(options.timeout_seconds * kSecond) + kPeerTrial;
  const Findings findings =
      ExaminePeer(options.peer, TryPeer(globals.socket_path, options.peer, timeout_ns));
  return PrintFindings(globals, options, findings);
}

// For a container's liveness: one question, one line, and the exit code.
int ProbeOnly(const Globals& globals, const DoctorOptions& options) {
  const auto timeout_ns = static_cast<TimeNs>(options.timeout_seconds * kSecond);
  const ProbeVerdict verdict = JudgeProbe(Probe(globals.socket_path, timeout_ns));
  if (globals.json) {
    Print(Json{{"problem", !verdict.is_well}, {"text", JsonText(verdict.text)}}.dump() + "\n");
  } else {
    Print(verdict.text + "\n");
  }
  return verdict.is_well ? kExitOk : kExitProblem;
}

}  // namespace

void AddDoctorCommand(const Program& program) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = AddCommand(
      program, "doctor", "checks the service and this machine and says how to fix what is wrong",
      {"doctor", "doctor --probe --timeout 3", "doctor --peer node-b:7733"},
      [&globals = program.globals, options] {
        return Repeat(globals, options->watch, [&] {
          if (!options->peer.empty()) return DoctorPeer(globals, *options);
          return options->probe ? ProbeOnly(globals, *options) : Doctor(globals, *options);
        });
      });
  CLI::Option* const probe = command->add_flag(
      "--probe", options->probe,
      "only check that every lane of the service answers: one line and an exit code");
  command
      ->add_option("--peer", options->peer,
                   "check that this node's service can connect to that one: name, port, "
                   "certificates, versions")
      ->type_name("HOST:PORT")
      ->excludes(probe);
  command
      ->add_option("--mps-directory", options->mps_directory,
                   "directory of the pipes of NVIDIA MPS")
      ->envname("CUDA_MPS_PIPE_DIRECTORY")
      ->capture_default_str();
  AddTimeout(*command, options->timeout_seconds);
  AddWatch(*command, options->watch);
}

}  // namespace headrace::ctl
