#include <fmt/format.h>

#include <algorithm>

#include "client/cli/ctl/doctor_checks.h"
#include "client/cli/ctl/units.h"

namespace headrace::ctl {
namespace {

// The threads that sum. Those of lanes between nodes and of GPUs move bytes, and sleep while they
// wait for them: they are one each, whatever the machine has.
Finding CheckCores(const Snapshot& board, std::uint32_t cores) {
  std::uint32_t threads = 0;
  for (const Lane& lane : board.lanes) threads = std::max(threads, lane.row.threads);
  const std::string text = fmt::format("{} cores, {} threads sum an operation", cores, threads);
  if (threads > cores) {
    return {"cores", Level::kWarning, text, "set lane_threads to the cores at most"};
  }
  return {"cores", Level::kOk, text, ""};
}

// A quota stops all threads of a group at once when it is used up: sums stand still for the rest of
// a tenth of a second.
Finding CheckQuota(const Machine& machine) {
  const char* whose = machine.quota_is_of_service ? "the service" : "this shell";
  if (!machine.cpu_quota) {
    return {"cpu quota", Level::kOk, fmt::format("{} has none", whose), ""};
  }
  const std::string text =
      fmt::format("{} may use {:.2g} cores' worth of time", whose, *machine.cpu_quota);
  if (*machine.cpu_quota < 1) {
    return {"cpu quota", Level::kWarning, text,
            "it is stopped whenever that is used up: give its container at least one core"};
  }
  return {"cpu quota", Level::kNote, text, ""};
}

// What one user may hand over, and what says so.
Finding CheckMemoryPerUid(const ipc::ServiceRow& service) {
  const std::string whose{ipc::GetText(service.memory_limited_by)};
  if (service.memory_per_uid == 0) {
    return {"memory per uid", Level::kNote,
            "one user may hand over any amount: memory_per_uid is 0", ""};
  }
  if (service.memory_found == 0) {
    return {"memory per uid", Level::kOk,
            fmt::format("each uid may hand over {}, as memory_per_uid says",
                        FormatBytes(service.memory_per_uid)),
            ""};
  }
  return {"memory per uid", Level::kOk,
          fmt::format("each uid but root{} may hand over {}: three quarters of the {} {}",
                      service.uid == 0 ? "" : fmt::format(" and {}", service.uid),
                      FormatBytes(service.memory_per_uid), FormatBytes(service.memory_found),
                      whose.empty() ? std::string("that this machine has") : "of " + whose),
          ""};
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

// Headrace's own memory is memfds, which no size of /dev/shm bounds; UCX and NCCL use files there.
Finding CheckSharedMemory(const Machine& machine) {
  constexpr std::uint64_t kEnough = std::uint64_t{1} << 30;
  if (machine.shm_bytes == 0) {
    return {"/dev/shm", Level::kWarning, "there is none",
            "UCX and NCCL need it: mount a tmpfs there"};
  }
  const std::string text = fmt::format("{}, {} free", FormatBytes(machine.shm_bytes),
                                       FormatBytes(machine.shm_free_bytes));
  if (machine.shm_free_bytes < kEnough) {
    return {"/dev/shm", Level::kWarning, text,
            "UCX and NCCL may need more: give the container a larger one (--shm-size, or an "
            "emptyDir of medium Memory)"};
  }
  return {"/dev/shm", Level::kOk, text + "; gradients are in memfds, which do not count", ""};
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

std::string Amount(std::uint64_t bytes) {
  return bytes == kUnlimited ? "any amount" : FormatBytes(bytes);
}

// Devices that read memory by themselves need it locked.
Finding CheckLockedMemory(const Machine& machine) {
  const Limits& limits = machine.limits;
  std::string text =
      fmt::format("{} may lock {} of memory", limits.of, Amount(limits.locked_bytes));
  if (limits.of != machine.shell_limits.of) {
    text += fmt::format(", this shell {}", Amount(machine.shell_limits.locked_bytes));
  }
  if (!machine.rdma_devices.empty() && limits.locked_bytes != kUnlimited) {
    return {"locked memory", Level::kWarning, text,
            "RDMA devices lock what they send: set ulimit -l unlimited or LimitMEMLOCK=infinity"};
  }
  return {"locked memory", Level::kNote, text + "; shared memory and TCP lanes lock none", ""};
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

}  // namespace

void ExamineMachine(const DiagnosticInput& input, Findings& findings) {
  const Machine& machine = input.machine;
  if (input.board) findings.push_back(CheckCores(*input.board, machine.cores));
  findings.push_back(CheckQuota(machine));
  if (input.board) findings.push_back(CheckMemoryPerUid(input.board->service));
  if (input.board) findings.push_back(CheckReductions(*input.board));
  findings.push_back(CheckMemfd(machine.memfd));
  findings.push_back(CheckSharedMemory(machine));
  findings.push_back(CheckOpenFiles(machine.limits, input.board ? input.board->ranks.size() : 0));
  findings.push_back(CheckLockedMemory(machine));
  findings.push_back(CheckHugePages(machine.shmem_huge_pages));
}

}  // namespace headrace::ctl
