#include "client/cli/ctl/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "client/cli/ctl/doctor_checks.h"
#include "client/cli/ctl/job_text.h"
#include "client/cli/ctl/units.h"
#include "ipc/base/age.h"

namespace headrace::ctl {
namespace {

Finding CheckService(const DiagnosticInput& input) {
  if (!input.board) {
    return {"service", Level::kProblem,
            "no board tells of a running service: " + input.board.error().text(),
            "start headraced, or name its board with --board or HEADRACE_BOARD"};
  }
  const ipc::ServiceRow& service = input.board->service;
  const std::string who = fmt::format("pid {}", service.pid);
  if (input.liveness == Liveness::kGone) {
    return {"service", Level::kProblem, who + " is gone and left its board behind",
            "start headraced; it takes over board and socket"};
  }
  if (input.liveness == Liveness::kStopped) {
    return {"service", Level::kProblem, who + " is stopped by a signal",
            fmt::format("kill -CONT {}", service.pid)};
  }
  if (service.state != static_cast<std::uint32_t>(ipc::ServiceState::kRunning)) {
    return {"service", Level::kWarning,
            fmt::format("{} is {}", who, ServiceStateName(service.state)),
            "it takes no new jobs in this state"};
  }
  return {"service", Level::kOk,
          fmt::format("{} is {}, version {}", who, LivenessName(input.liveness),
                      ipc::GetText(service.version)),
          ""};
}

Finding CheckBoard(const DiagnosticInput& input) {
  const FileState& file = input.machine.board;
  if (input.board->rows_unread > 0) {
    return {"board", Level::kWarning,
            fmt::format("{} rows are being written all the time", input.board->rows_unread),
            "the service was stopped in the middle of them, or is stuck there"};
  }
  if ((file.mode & 022U) != 0) {
    return {"board", Level::kWarning,
            fmt::format("{} has mode {:04o}: others may write it", input.board_path, file.mode),
            "set board_mode to 0o644 or less"};
  }
  return {"board", Level::kOk,
          fmt::format("{} has version {}, mode {:04o}, uid {}", input.board_path,
                      ipc::kBoardVersion, file.mode, file.uid),
          ""};
}

Finding CheckSocket(const DiagnosticInput& input) {
  const FileState& file = input.machine.socket;
  if (!file.exists) {
    const std::string what = input.socket_path + " does not exist";
    // Then that is said already.
    const bool gone = !input.board || input.liveness == Liveness::kGone;
    if (gone) return {"socket", Level::kNote, what, ""};
    return {"socket", Level::kProblem, what,
            "name the service's socket with --socket or HEADRACE_SOCKET, or restart headraced"};
  }
  if (!file.is_socket) {
    return {"socket", Level::kProblem, input.socket_path + " is not a socket",
            "move the file away and start headraced"};
  }
  const std::string what =
      fmt::format("{} has mode {:04o}, uid {}", input.socket_path, file.mode, file.uid);
  if (!file.may_write) {
    return {"socket", Level::kProblem, what + ": this user may not attach",
            "set socket_mode, or join the group that owns it"};
  }
  return {"socket", Level::kOk, what, ""};
}

Finding CheckAnswer(const DiagnosticInput& input) {
  if (!input.ping) {
    const bool late = input.ping.error().code() == Code::kTimeout;
    return {"answer", Level::kProblem, input.ping.error().text(),
            late ? "the service is stopped or stuck: headracectl queue shows its last state"
                 : "see the checks of service and socket"};
  }
  return {"answer", Level::kOk,
          fmt::format("control and dispatch answer in {}, {} with the round trip to them",
                      FormatAge(input.ping->dispatch_ns), FormatAge(input.ping->round_trip_ns)),
          ""};
}

Finding CheckProtocol(const DiagnosticInput& input) {
  if (!input.board) {
    return {"protocol", Level::kNote,
            fmt::format("this program speaks version {}", input.protocol_version), ""};
  }
  const std::uint32_t theirs = input.board->service.protocol_version;
  if (theirs != input.protocol_version) {
    return {"protocol", Level::kProblem,
            fmt::format("the service speaks version {}, this program {}", theirs,
                        input.protocol_version),
            "install client and service of one version"};
  }
  return {"protocol", Level::kOk, fmt::format("both speak version {}", theirs), ""};
}

Finding CheckJobs(const Snapshot& board) {
  std::string failed;
  for (const ipc::JobRow& job : board.jobs) {
    if (job.state != static_cast<std::uint32_t>(ipc::JobState::kFailed)) continue;
    failed += fmt::format("{}{}: {}", failed.empty() ? "" : "; ", ipc::GetText(job.name),
                          ipc::GetText(job.failure));
  }
  if (!failed.empty()) return {"jobs", Level::kProblem, failed, "end and restart its ranks"};
  return {"jobs", Level::kOk, fmt::format("{} on the node, none failed", board.jobs.size()), ""};
}

// A process may look alive while one of its threads does nothing any more.
Finding CheckThreads(const Threads& threads) {
  const std::string text = fmt::format("{} threads", threads.count);
  if (threads.stopped > 0) {
    return {"threads", Level::kProblem, fmt::format("{}, {} stopped", text, threads.stopped),
            "a signal or a debugger holds them: kill -CONT, or end the debugger"};
  }
  if (threads.uninterruptible > 0) {
    return {
        "threads", Level::kWarning,
        fmt::format("{}, {} wait in the kernel and take no signal", text, threads.uninterruptible),
        "look again; if they stay there, a disk, a network file system or a driver hangs"};
  }
  return {"threads", Level::kOk, text + ", none stopped", ""};
}

Finding CheckLog(const Snapshot& board) {
  const ipc::LogRow& log = board.log;
  if (log.lines_dropped == 0) return {"log", Level::kOk, "no line of it was dropped", ""};
  const TimeNs ago = board.now_ns - log.last_drop_ns;
  return {"log", Level::kWarning,
          fmt::format("{} lines were dropped, the last {} ago: nobody reads headraced's stderr, or "
                      "its disk does not take them",
                      log.lines_dropped, FormatAge(ago)),
          "see where headraced's stderr goes; the last events are in headracectl events"};
}

Finding CheckSteering(const DiagnosticInput& input) {
  const std::uint32_t uid = input.machine.uid;
  if (uid == 0 || uid == input.board->service.uid) {
    return {"steering", Level::kOk, fmt::format("uid {} may steer every job", uid), ""};
  }
  const auto own = std::count_if(input.board->jobs.begin(), input.board->jobs.end(),
                                 [uid](const ipc::JobRow& job) { return job.owner_uid == uid; });
  return {"steering", Level::kNote,
          fmt::format("uid {} may steer its own jobs, {} of {}; root and uid {} may steer all", uid,
                      own, input.board->jobs.size(), input.board->service.uid),
          ""};
}

// The way through dispatch and each lane, one finding each.
void CheckDataPath(const DiagnosticInput& input, Findings& findings) {
  if (!input.probe) {
    findings.push_back({"data path", Level::kProblem, input.probe.error().text(),
                        "headracectl queue shows what it did last"});
    return;
  }
  const bool dispatched = input.probe->dispatch_ns >= 0;
  findings.push_back(
      {"data path", dispatched ? Level::kOk : Level::kProblem,
       dispatched ? fmt::format("dispatch answers within {}", FormatAge(input.probe->dispatch_ns))
                  : "dispatch does not answer within a second",
       dispatched ? "" : "it is stuck: keep a core file (gcore), and restart the service"});
  for (const PartProbe& part : input.probe->parts) {
    if (part.answered) continue;
    findings.push_back({part.name, Level::kProblem, "does not answer within a second",
                        "its thread is stuck: keep a core file (gcore), and restart the service"});
  }
  for (const LaneProbe& lane : input.probe->lanes) {
    const std::string check = "lane " + lane.name;
    if (!lane.answered) {
      findings.push_back(
          {check, Level::kProblem, "does not answer within a second",
           "its thread is stuck, or a stage of it: headracectl queue --lane " + lane.name});
    } else if (!lane.status.ok()) {
      findings.push_back({check, Level::kProblem, lane.status.error().text(),
                          "the service's log and headracectl events say more"});
    } else {
      findings.push_back(
          {check, Level::kOk, fmt::format("answers within {}", FormatAge(lane.ns)), ""});
    }
  }
}

Finding CheckPeer(const PeerProbe& peer) {
  const std::string name = peer.name.empty() ? peer.address : peer.name;
  const std::string check = "peer " + name;
  if (!peer.connected) {
    if (peer.why.empty()) return {check, Level::kNote, "not connected: no job needs it now", ""};
    if (peer.refused) {
      return {check, Level::kProblem, fmt::format("not connected: {}", peer.why),
              "mend what it says; this is gone when the two have met, or in ten minutes"};
    }
    return {
        check, Level::kProblem, fmt::format("not connected: {}", peer.why),
        fmt::format("see that headraced runs there and {} is reachable from here", peer.address)};
  }
  if (peer.round_trip_ns < 0) {
    return {check, Level::kNote, fmt::format("connected at {}, not measured yet", peer.address),
            ""};
  }
  // A clock that is off puts logs and traces of several nodes out of order, and ends certificates.
  const TimeNs offset_ns = peer.clock_offset_ns;
  const std::string text = fmt::format(
      "connected at {}, round trip {}, clock {} {}", peer.address, FormatAge(peer.round_trip_ns),
      FormatAge(offset_ns < 0 ? -offset_ns : offset_ns), offset_ns < 0 ? "behind" : "ahead");
  if (offset_ns > kSecond || offset_ns < -kSecond) {
    return {check, Level::kWarning, text, "run a time service (chrony, systemd-timesyncd) on both"};
  }
  return {check, Level::kOk, text, ""};
}

void CheckPeers(const DiagnosticInput& input, Findings& findings) {
  if (!input.peers) {
    findings.push_back({"peers", Level::kWarning, input.peers.error().text(), "ask again"});
    return;
  }
  if (input.peers->empty()) {
    findings.push_back({"peers", Level::kNote, "no other node is known: no job spans several", ""});
  }
  for (const PeerProbe& peer : *input.peers) findings.push_back(CheckPeer(peer));
}

// Checks the certificate that the service uses, which need not be the one in its files.
Finding CheckCertificate(const Snapshot& board) {
  constexpr std::int64_t kDay = 24 * 3600;
  constexpr std::int64_t kWarnAhead = 30 * kDay;
  constexpr const char* kRemedy =
      "`headracectl certs node` makes a new one; the service reads the files when they change";
  const ipc::CertificateRow& row = board.certificate;
  const std::int64_t now_unix_s =
      (board.service.started_unix_ns + board.now_ns - board.service.started_ns) / kSecond;
  const bool authority = row.authority_until_unix_s < row.until_unix_s;
  const std::int64_t left_s = std::min(row.until_unix_s, row.authority_until_unix_s) - now_unix_s;
  const std::string_view whose = authority ? "the authority's certificate" : "the certificate";
  if (left_s <= 0) {
    return {"certificate", Level::kProblem,
            fmt::format("{} has ended, {} days ago: other nodes refuse this one", whose,
                        -left_s / kDay),
            kRemedy};
  }
  std::string text = fmt::format("{} is valid for {} days", whose, left_s / kDay);
  const std::string_view refused = ipc::GetText(row.refused);
  if (!refused.empty()) {
    return {"certificate", Level::kWarning,
            fmt::format("{}; its files have changed and are not used: {}", text, refused),
            "mend the files; the service looks at them again by itself"};
  }
  if (left_s < kWarnAhead) return {"certificate", Level::kWarning, text, kRemedy};
  return {"certificate", Level::kOk, text, ""};
}

Finding CheckHttp(const Result<std::string>& configuration) {
  if (!configuration) return {"http", Level::kWarning, configuration.error().text(), "ask again"};
  const std::string address = TomlText(*configuration, "http_address");
  if (address.empty()) {
    return {"http", Level::kNote, "no metrics, health and status page: http_address is not set",
            ""};
  }
  return {"http", Level::kOk, fmt::format("metrics at http://{}/metrics", address), ""};
}

}  // namespace

std::string TomlText(const std::string& toml, const std::string& key) {
  std::istringstream lines(toml);
  for (std::string line; std::getline(lines, line);) {
    const std::string begin = key + " = \"";
    if (!line.starts_with(begin)) continue;
    return line.substr(begin.size(), line.find('"', begin.size()) - begin.size());
  }
  return "";
}

Findings Examine(const DiagnosticInput& input) {
  Findings findings = {CheckService(input)};
  if (input.board && input.liveness != Liveness::kGone && input.machine.threads.count > 0) {
    findings.push_back(CheckThreads(input.machine.threads));
  }
  findings.push_back(CheckSocket(input));
  // One failure is one problem: what follows from it is a note.
  const bool is_known = HasProblem(findings);
  findings.push_back(CheckAnswer(input));
  if (is_known && !input.ping) findings.back().level = Level::kNote;
  // Without an answer to the first question, the others would only say the same again.
  if (input.ping) {
    CheckDataPath(input, findings);
    CheckPeers(input, findings);
    findings.push_back(CheckHttp(input.configuration));
  }
  if (input.board && input.board->certificate.in_use != 0) {
    findings.push_back(CheckCertificate(*input.board));
  }
  findings.push_back(CheckProtocol(input));
  if (input.board) {
    findings.push_back(CheckBoard(input));
    findings.push_back(CheckSteering(input));
    findings.push_back(CheckJobs(*input.board));
    findings.push_back(CheckLog(*input.board));
  }
  ExamineMachine(input, findings);
  ExamineDevices(input, findings);
  return findings;
}

}  // namespace headrace::ctl
