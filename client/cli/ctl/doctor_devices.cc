#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "client/cli/ctl/doctor_checks.h"

namespace headrace::ctl {
namespace {

Finding CheckLibrary(const char* check, const char* name, const Library& library) {
  if (!library.is_found) return {check, Level::kNote, library.error, ""};
  return {check, Level::kOk,
          library.version.empty() ? fmt::format("{} is there", name)
                                  : fmt::format("{} is version {}", name, library.version),
          ""};
}

// What the lanes between nodes travel by, as the service wrote it: "ucx/rc_mlx5", "ucx/tcp".
std::string WiresOf(const Snapshot& board) {
  std::string wires;
  for (const Lane& lane : board.lanes) {
    const std::string_view transport = ipc::GetText(lane.row.transport);
    if (transport.find("ucx") == std::string_view::npos &&
        ipc::GetText(lane.row.name).find("ucx") == std::string_view::npos) {
      continue;
    }
    wires += fmt::format("{}{} by {}", wires.empty() ? "" : ", ", ipc::GetText(lane.row.name),
                         transport);
  }
  return wires;
}

bool UsesRdma(const std::string& wires) {
  constexpr std::array kRdma = {"rc", "dc", "ud", "srd"};
  return std::any_of(kRdma.begin(), kRdma.end(), [&wires](const char* name) {
    return wires.find(fmt::format("{}_", name)) != std::string::npos;
  });
}

Finding CheckWires(const Snapshot& board, const Machine& machine) {
  const std::string wires = WiresOf(board);
  if (wires.empty()) {
    return {"links", Level::kNote, "the service has no lane between nodes", ""};
  }
  if (!machine.rdma_devices.empty() && !UsesRdma(wires)) {
    return {"links", Level::kWarning, wires + ", while there are RDMA devices",
            "see network_transports and UCX_TLS, and that the service may open /dev/infiniband"};
  }
  return {"links", Level::kOk, wires, ""};
}

Finding CheckRdma(const Machine& machine) {
  if (machine.rdma_devices.empty()) return {"rdma", Level::kNote, "no RDMA device", ""};
  return {"rdma", Level::kOk, fmt::format("{}", fmt::join(machine.rdma_devices, ", ")), ""};
}

Finding CheckCuda(const Machine& machine) {
  if (!machine.cuda_driver_version) return {"cuda", Level::kNote, machine.cuda_error, ""};
  const std::int32_t version = *machine.cuda_driver_version;
  const std::string driver =
      fmt::format("driver present, CUDA {}.{}", version / 1000, version % 1000 / 10);
  if (machine.gpus.empty()) {
    return {"cuda", Level::kWarning, driver + ", no device",
            "see that the container was given GPUs, and CUDA_VISIBLE_DEVICES"};
  }
  return {"cuda", Level::kOk, fmt::format("{}: {}", driver, fmt::join(machine.gpus, ", ")), ""};
}

Finding CheckMps(const Machine& machine) {
  if (machine.has_mps) {
    return {"mps", Level::kOk, fmt::format("a control daemon is at {}", machine.mps_directory), ""};
  }
  const std::string text = fmt::format("no control daemon at {}", machine.mps_directory);
  if (machine.gpus.empty()) return {"mps", Level::kNote, text, ""};
  return {"mps", Level::kNote,
          text + ": kernels of different processes on one GPU take turns instead of sharing it",
          "nvidia-cuda-mps-control -d, where trainer and service share GPUs"};
}

}  // namespace

void ExamineDevices(const Patient& patient, Findings& findings) {
  const Machine& machine = patient.machine;
  findings.push_back(CheckLibrary("ucx", "libucp.so.0", machine.ucx));
  if (patient.board) findings.push_back(CheckWires(*patient.board, machine));
  findings.push_back(CheckRdma(machine));
  findings.push_back(CheckCuda(machine));
  findings.push_back(CheckMps(machine));
  findings.push_back(CheckLibrary("nccl", "libnccl.so.2", machine.nccl));
}

}  // namespace headrace::ctl
