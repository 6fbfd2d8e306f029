// What is wrong, and what helps.
#include <fmt/format.h>

#include <memory>

#include "client/cli/ctl/commands.h"
#include "client/cli/ctl/control.h"
#include "client/cli/ctl/doctor.h"
#include "client/cli/ctl/probe_words.h"

namespace headrace::ctl {
namespace {

constexpr TimeNs kPeerTrial = 25 * kSecond;

struct Wish {
  double timeout_seconds = 2;
  bool probe = false;
  std::string peer;
  Watch watch;
  std::string mps_directory = "/tmp/nvidia-mps";
};

int Doctor(const Globals& globals, const Wish& wish) {
  Liveness liveness = Liveness::kGone;
  Result<Snapshot> board = ReadNow(globals, liveness);
  const bool has_pid = liveness == Liveness::kRunning || liveness == Liveness::kStopped;
  const std::int32_t pid = board && has_pid ? board->service.pid : 0;
  const auto timeout_ns = static_cast<TimeNs>(wish.timeout_seconds * kSecond);
  Patient patient{
      .board_path = globals.board_path,
      .socket_path = globals.socket_path,
      .board = std::move(board),
      .liveness = liveness,
      .ping = Ping(globals.socket_path, timeout_ns),
      .protocol_version = ProtocolVersion(),
      .machine = LookAtMachine(globals.board_path, globals.socket_path, pid, wish.mps_directory)};
  if (patient.ping) {
    patient.probe = Probe(globals.socket_path, timeout_ns);
    patient.peers = Peers(globals.socket_path, timeout_ns);
    patient.configuration = Configuration(globals.socket_path, timeout_ns);
  }
  const Findings findings = Examine(patient);
  if (globals.json) {
    Print(FindingsJson(findings), wish.watch);
  } else {
    Print(FindingsTable(findings, !globals.no_header));
  }
  return HasProblem(findings) ? kExitProblem : kExitOk;
}

// Before the first job: whether this node's service reaches another one.
int DoctorPeer(const Globals& globals, const Wish& wish) {
  // Each of the service's steps may take five seconds by itself.
  const auto timeout_ns = static_cast<TimeNs>(wish.timeout_seconds * kSecond) + kPeerTrial;
  const Findings findings =
      ExaminePeer(wish.peer, TryPeer(globals.socket_path, wish.peer, timeout_ns));
  if (globals.json) {
    Print(FindingsJson(findings), wish.watch);
  } else {
    Print(FindingsTable(findings, !globals.no_header));
  }
  return HasProblem(findings) ? kExitProblem : kExitOk;
}

// For a container's liveness: one question, one line, and the exit code.
int ProbeOnly(const Globals& globals, const Wish& wish) {
  const auto timeout_ns = static_cast<TimeNs>(wish.timeout_seconds * kSecond);
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
  const auto wish = std::make_shared<Wish>();
  CLI::App* command =
      AddCommand(program, "doctor", "checks service and machine, and says what to do",
                 {"doctor", "doctor --probe --timeout 3", "doctor --peer node-b:7733"},
                 [&globals = program.globals, wish] {
                   return Repeat(globals, wish->watch, [&] {
                     if (!wish->peer.empty()) return DoctorPeer(globals, *wish);
                     return wish->probe ? ProbeOnly(globals, *wish) : Doctor(globals, *wish);
                   });
                 });
  CLI::Option* const probe = command->add_flag(
      "--probe", wish->probe, "one line and the exit code: does every lane of the service answer?");
  command
      ->add_option("--peer", wish->peer,
                   "whether this node's service reaches that one: name, port, certificates, "
                   "versions; before the first job")
      ->type_name("HOST:PORT")
      ->excludes(probe);
  command->add_option("--mps-directory", wish->mps_directory, "where NVIDIA's MPS keeps its pipes")
      ->envname("CUDA_MPS_PIPE_DIRECTORY")
      ->capture_default_str();
  AddTimeout(*command, wish->timeout_seconds);
  AddWatch(*command, wish->watch);
}

}  // namespace headrace::ctl
