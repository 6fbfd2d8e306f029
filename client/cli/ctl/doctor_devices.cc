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
  if (!machine.libraries.cuda_driver_version)
    return {"cuda", Level::kNote, machine.libraries.cuda_error, ""};
  const std::int32_t version = *machine.libraries.cuda_driver_version;
  const std::string driver =
      fmt::format("driver present, CUDA {}.{}", version / 1000, version % 1000 / 10);
  if (machine.libraries.gpus.empty()) {
    return {"cuda", Level::kWarning, driver + ", no device",
            "see that the container was given GPUs, and CUDA_VISIBLE_DEVICES"};
  }
  return {"cuda", Level::kOk,
          fmt::format("{}: {}", driver, fmt::join(machine.libraries.gpus, ", ")), ""};
}

// What the service says of GPUs, which may see others than this shell.
Finding CheckGpus(const Snapshot& board, const Machine& machine) {
  if (board.gpus.empty()) {
    if (machine.libraries.gpus.empty())
      return {"gpus", Level::kNote, "the service uses no GPU", ""};
    return {"gpus", Level::kWarning, "the service uses no GPU, while this machine has some",
            "see its log for why, its setting gpu, and that its container was given GPUs"};
  }
  std::string text;
  bool calls_host = false;
  for (const Gpu& gpu : board.gpus) {
    const bool streams = gpu.row.stream_words != 0;
    calls_host |= !streams;
    text += fmt::format("{}{}: {} ({}.{}), {} write and await words{}", text.empty() ? "" : "; ",
                        gpu.index, ipc::GetText(gpu.row.name), gpu.row.capability_major,
                        gpu.row.capability_minor, streams ? "its streams" : "host calls",
                        gpu.row.mps != 0 ? ", shared by MPS" : "");
  }
  if (!calls_host) return {"gpus", Level::kOk, text, ""};
  return {"gpus", Level::kWarning, text,
          "words by host calls are slower: see that the driver and the platform let streams do it"};
}

// How GPUs' memory reaches other nodes, in words; empty where there is no lane to other nodes.
std::string WayToOtherNodes(const Snapshot& board) {
  std::string_view way;
  for (const Lane& lane : board.lanes) {
    if (ipc::GetText(lane.row.name).find("ucx") == std::string_view::npos) continue;
    if (ipc::GetText(lane.row.transport).starts_with("NCCL")) {
      return "; GPU memory reaches other nodes by NCCL, from each GPU";
    }
    way = "; GPU memory reaches other nodes through pinned host memory (gpu_network = staged)";
  }
  return std::string(way);
}

// What carries blocks between GPUs: the service opens it with its kernels, or NCCL, or uses none.
Finding CheckGpuLane(const Snapshot& board) {
  for (const Lane& lane : board.lanes) {
    const std::string_view transport = ipc::GetText(lane.row.transport);
    if (transport.find("nvlink") == std::string_view::npos &&
        transport.find("nccl") == std::string_view::npos) {
      continue;
    }
    return {
        "gpu lane", Level::kOk,
        fmt::format("{} by {}{}", ipc::GetText(lane.row.name), transport, WayToOtherNodes(board)),
        ""};
  }
  return {"gpu lane", Level::kWarning, "the service has GPUs and no lane between them",
          "see its log for why"};
}

Finding CheckMps(const Machine& machine) {
  if (machine.has_mps) {
    return {"mps", Level::kOk, fmt::format("a control daemon is at {}", machine.mps_directory), ""};
  }
  const std::string text = fmt::format("no control daemon at {}", machine.mps_directory);
  if (machine.libraries.gpus.empty()) return {"mps", Level::kNote, text, ""};
  return {"mps", Level::kNote,
          text + ": kernels of different processes on one GPU take turns instead of sharing it",
          "nvidia-cuda-mps-control -d, where trainer and service share GPUs"};
}

}  // namespace

void ExamineDevices(const DiagnosticInput& input, Findings& findings) {
  const Machine& machine = input.machine;
  findings.push_back(CheckLibrary("ucx", "libucp.so.0", machine.libraries.ucx));
  if (input.board) findings.push_back(CheckWires(*input.board, machine));
  findings.push_back(CheckRdma(machine));
  findings.push_back(CheckCuda(machine));
  if (input.board) findings.push_back(CheckGpus(*input.board, machine));
  if (input.board && !input.board->gpus.empty()) {
    findings.push_back(CheckGpuLane(*input.board));
  }
  findings.push_back(CheckMps(machine));
  findings.push_back(CheckLibrary("nccl", "libnccl.so.2", machine.libraries.nccl));
}

}  // namespace headrace::ctl
