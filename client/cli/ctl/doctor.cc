#include "client/cli/ctl/doctor.h"

#include <fmt/format.h>

#include "client/cli/ctl/units.h"
#include "client/cli/ctl/words.h"

namespace headrace::ctl {
namespace {

Finding CheckService(const Patient& patient) {
  if (!patient.board) {
    return {"service", Level::kProblem, "no board tells of a running service", "start headraced"};
  }
  const ipc::ServiceRow& service = patient.board->service;
  const std::string who = fmt::format("pid {}", service.pid);
  if (patient.liveness == Liveness::kGone) {
    return {"service", Level::kProblem, who + " is gone and left its board behind",
            "start headraced; it takes over board and socket"};
  }
  if (patient.liveness == Liveness::kStopped) {
    return {"service", Level::kProblem, who + " is stopped by a signal",
            fmt::format("kill -CONT {}", service.pid)};
  }
  if (service.state != static_cast<std::uint32_t>(ipc::ServiceState::kRunning)) {
    return {"service", Level::kWarning,
            fmt::format("{} is {}", who, ServiceStateName(service.state)),
            "it takes no new jobs in this state"};
  }
  return {"service", Level::kOk,
          fmt::format("{} is running, version {}", who, ipc::GetText(service.version)), ""};
}

Finding CheckBoard(const Patient& patient) {
  if (!patient.board) {
    return {"board", Level::kProblem, patient.board.error().text(), ""};
  }
  const FileLook& file = patient.machine.board;
  if (patient.board->rows_unread > 0) {
    return {"board", Level::kWarning,
            fmt::format("{} rows are being written all the time", patient.board->rows_unread),
            "the service was stopped in the middle of them, or is stuck there"};
  }
  if ((file.mode & 022U) != 0) {
    return {"board", Level::kWarning,
            fmt::format("{} has mode {:04o}: others may write it", patient.board_path, file.mode),
            "set board_mode to 0o644 or less"};
  }
  return {"board", Level::kOk,
          fmt::format("{} has version {}, mode {:04o}, uid {}", patient.board_path,
                      ipc::kBoardVersion, file.mode, file.uid),
          ""};
}

Finding CheckSocket(const Patient& patient) {
  const FileLook& file = patient.machine.socket;
  if (!file.exists) {
    return {"socket", Level::kProblem, patient.socket_path + " does not exist",
            "start headraced, or name its socket with --socket or HEADRACE_SOCKET"};
  }
  if (!file.is_socket) {
    return {"socket", Level::kProblem, patient.socket_path + " is not a socket",
            "move the file away and start headraced"};
  }
  const std::string what =
      fmt::format("{} has mode {:04o}, uid {}", patient.socket_path, file.mode, file.uid);
  if (!file.may_write) {
    return {"socket", Level::kProblem, what + ": this user may not attach",
            "set socket_mode, or join the group that owns it"};
  }
  return {"socket", Level::kOk, what, ""};
}

Finding CheckAnswer(const Patient& patient) {
  if (!patient.ping) {
    const bool late = patient.ping.error().code() == Code::kTimeout;
    return {"answer", Level::kProblem, patient.ping.error().text(),
            late ? "the service is stopped or stuck: headracectl queue shows its last state"
                 : "see the checks of service and socket"};
  }
  return {"answer", Level::kOk,
          fmt::format("control and dispatch answer: {} there, {} with the way",
                      FormatAge(patient.ping->dispatch_ns), FormatAge(patient.ping->round_trip_ns)),
          ""};
}

Finding CheckProtocol(const Patient& patient) {
  if (!patient.board) {
    return {"protocol", Level::kNote,
            fmt::format("this program speaks version {}", patient.protocol_version), ""};
  }
  const std::uint32_t theirs = patient.board->service.protocol_version;
  if (theirs != patient.protocol_version) {
    return {"protocol", Level::kProblem,
            fmt::format("the service speaks version {}, this program {}", theirs,
                        patient.protocol_version),
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

Finding CheckCores(const Snapshot& board, std::uint32_t cores) {
  std::uint32_t threads = 0;
  for (const Lane& lane : board.lanes) threads += lane.row.threads;
  const std::string text = fmt::format("{} cores, {} lane threads", cores, threads);
  if (threads > cores) {
    return {"cores", Level::kWarning, text, "set lane_threads to the cores at most"};
  }
  return {"cores", Level::kOk, text, ""};
}

Finding CheckReductions(const Snapshot& board) {
  const std::string target{ipc::GetText(board.service.reduce_target)};
  if (target == "SCALAR" || target == "EMU128") {
    return {"reductions", Level::kWarning, target + ": sums use no vector instructions",
            "run on a processor with at least SSE2 or NEON"};
  }
  return {"reductions", Level::kOk, "sums use " + target, ""};
}

Finding CheckMemfd(const Status& memfd) {
  if (!memfd) {
    return {"memfd", Level::kProblem, memfd.error().text(),
            "memory is shared by sealed memfds: use Linux 3.17 or later, and allow memfd_create"};
  }
  return {"memfd", Level::kOk, "a sealed memfd can be made and mapped", ""};
}

Finding CheckOpenFiles(const Limits& limits, std::uint64_t sessions) {
  // A session holds its socket and its doorbell, and for moments one more descriptor it hands over.
  constexpr std::uint64_t kPerSession = 3;
  constexpr std::uint64_t kOwn = 64;
  const std::uint64_t room =
      limits.open_files > kOwn ? (limits.open_files - kOwn) / kPerSession : 0;
  const std::string text = limits.open_files == kUnlimited
                               ? fmt::format("{} may open any number of files", limits.of)
                               : fmt::format("{} may open {} files: about {} sessions, {} are open",
                                             limits.of, limits.open_files, room, sessions);
  if (limits.open_files == kUnlimited || room >= sessions + 64) {
    return {"open files", Level::kOk, text, ""};
  }
  return {"open files", Level::kWarning, text, "raise the limit with ulimit -n or LimitNOFILE"};
}

Finding CheckLockedMemory(const Limits& limits) {
  const std::string amount =
      limits.locked_bytes == kUnlimited ? "any amount" : FormatBytes(limits.locked_bytes);
  return {"locked memory", Level::kNote,
          fmt::format("{} may lock {} of memory; shared memory lanes lock none", limits.of, amount),
          ""};
}

Finding CheckHugePages(const std::string& word) {
  if (word.empty()) {
    return {"huge pages", Level::kNote, "this kernel does not say whether shared memory uses them",
            ""};
  }
  return {"huge pages", Level::kNote,
          fmt::format("shmem_enabled is {}: segments use {}", word,
                      word == "always" || word == "within_size" || word == "force"
                          ? "huge pages where they fit"
                          : "pages of the base size"),
          ""};
}

Finding CheckCuda(const Machine& machine) {
  if (!machine.cuda_driver_version) return {"cuda", Level::kNote, machine.cuda_error, ""};
  const std::int32_t version = *machine.cuda_driver_version;
  return {"cuda", Level::kNote,
          fmt::format("driver present, CUDA {}.{}", version / 1000, version % 1000 / 10), ""};
}

Finding CheckLibrary(const char* check, const char* library, bool found) {
  return {check, Level::kNote, fmt::format("{} {}", library, found ? "found" : "not found"), ""};
}

}  // namespace

Findings Examine(const Patient& patient) {
  const Machine& machine = patient.machine;
  Findings findings = {CheckService(patient), CheckSocket(patient), CheckAnswer(patient),
                       CheckProtocol(patient), CheckBoard(patient)};
  std::uint64_t sessions = 0;
  if (patient.board) {
    findings.push_back(CheckJobs(*patient.board));
    findings.push_back(CheckCores(*patient.board, machine.cores));
    findings.push_back(CheckReductions(*patient.board));
    sessions = patient.board->ranks.size();
  }
  findings.push_back(CheckMemfd(machine.memfd));
  findings.push_back(CheckOpenFiles(machine.limits, sessions));
  findings.push_back(CheckLockedMemory(machine.limits));
  findings.push_back(CheckHugePages(machine.shmem_huge_pages));
  findings.push_back(CheckCuda(machine));
  findings.push_back(CheckLibrary("ucx", "libucp.so.0", machine.has_ucx));
  findings.push_back(CheckLibrary("nccl", "libnccl.so.2", machine.has_nccl));
  return findings;
}

}  // namespace headrace::ctl
