#include "transport/ucx/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "ipc/base/unique_handle.h"

namespace headrace::transport {
namespace {

// Devices and ports looked at: more than any machine has.
constexpr int kPortsMax = 256;

struct FileTraits {
  using Value = std::FILE*;
  static Value None() { return nullptr; }
  static void Release(Value file) { std::fclose(file); }
};

// What `print` writes to a stream; empty when there is no memory for it.
template <typename Print>
std::string Printed(Print print) {
  char* bytes = nullptr;
  std::size_t size = 0;
  UniqueHandle<FileTraits> file(open_memstream(&bytes, &size));
  if (!file) return {};
  print(file.get());
  file.reset();
  std::string text(bytes, size);
  std::free(bytes);
  return text;
}

// Calls `take` with each line that has `mark` in it, from behind the mark on.
template <typename Take>
void AfterMark(std::string_view text, std::string_view mark, Take take) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (const std::size_t at = line.find(mark); at != line.npos) {
      take(line.substr(at + mark.size()));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool IsUp(const std::filesystem::path& port) {
  std::ifstream file(port / "state");
  std::string state;
  return std::getline(file, state) && state.find("ACTIVE") != state.npos;
}

}  // namespace

std::set<std::string> LanesInText(std::string_view text) {
  std::set<std::string> lanes;
  // "#  lane[0]:  0:tcp/lo.0 md[0]   -> md[0]/tcp/sysdev[255] am am_bw#0"
  AfterMark(text, "lane[", [&lanes](std::string_view rest) {
    const std::size_t slash = rest.find('/');
    const std::size_t colon = rest.rfind(':', slash);
    const std::size_t end = rest.find(" md[");
    if (slash == rest.npos || colon == rest.npos || end == rest.npos || slash > end) return;
    const std::size_t path = rest.rfind('.', end);  // the number of the path on the device
    const std::size_t stop = path == rest.npos || path < slash ? end : path;
    lanes.emplace(rest.substr(colon + 1, stop - colon - 1));
  });
  return lanes;
}

std::set<std::string> ResourcesInText(std::string_view text) {
  std::set<std::string> resources;
  // "#      resource 0  :  md 0  dev 0  flags -- tcp/lo"
  AfterMark(text, "resource ", [&resources](std::string_view rest) {
    const std::size_t space = rest.find_last_of(' ');
    if (rest.find('/', std::min(space, rest.size())) != rest.npos) {
      resources.emplace(rest.substr(space + 1));
    }
  });
  return resources;
}

std::set<std::string> LanesOf(ucp_ep_h endpoint) {
  return LanesInText(Printed([endpoint](std::FILE* file) { ucp_ep_print_info(endpoint, file); }));
}

std::set<std::string> ResourcesOf(ucp_context_h context) {
  return ResourcesInText(
      Printed([context](std::FILE* file) { ucp_context_print_info(context, file); }));
}

bool ReachesNodes(std::string_view resource) {
  constexpr std::array<std::string_view, 5> kOfOneNode = {"cuda_", "gdr_copy/", "rocm_", "ze_",
                                                          "sysv/"};
  return std::ranges::none_of(
      kOfOneNode, [resource](std::string_view name) { return resource.starts_with(name); });
}

bool SupportsCudaMemory(ucp_context_h context) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucp_context_query(context, &attributes) != UCS_OK) return false;
  return (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

std::string GpuPathText(bool takes_cuda_memory) {
  const std::string path = "GPU memory reaches other nodes through pinned host memory: ";
  return path + (takes_cuda_memory
                     ? "this UCX takes CUDA memory, but sums between nodes are made on the host"
                     : "this UCX has no CUDA transports");
}

std::string SlowWireWarning(std::string_view wires, const std::filesystem::path& rdma_devices) {
  if (wires.find("tcp/") == wires.npos) return {};
  std::error_code ignored;
  int ports = 0;
  for (const auto& device : std::filesystem::directory_iterator(rdma_devices, ignored)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", ignored)) {
      if (++ports > kPortsMax) return {};
      if (!IsUp(port.path())) continue;
      return fmt::format(
          "RDMA device {} port {} is up, but {} is in use: set the lane's net_devices to \"{}:{}\" "
          "and give the service access to /dev/infiniband",
          device.path().filename().string(), port.path().filename().string(), wires,
          device.path().filename().string(), port.path().filename().string());
    }
  }
  return {};
}

}  // namespace headrace::transport
