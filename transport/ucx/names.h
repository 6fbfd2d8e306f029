// The transports and devices that UCX really uses, and whether there are better ones: a lane must
// not be slow without a warning.
#pragma once

#include <ucp/api/ucp.h>

#include <filesystem>
#include <set>
#include <string>
#include <string_view>

namespace headrace::transport {

// "tcp/eth0" for each lane of an endpoint, and for each wire a context may use. UCX 1.13 tells them
// to people only: these read what it prints.
std::set<std::string> LanesOf(ucp_ep_h endpoint);
std::set<std::string> ResourcesOf(ucp_context_h context);

// Whether a resource reaches other nodes: "cuda_copy/cuda" and its like only move bytes to and from
// a GPU of this one.
bool ReachesNodes(std::string_view resource);

// Whether this UCX, on this machine, takes addresses of CUDA's memory: it was built with CUDA, and
// there is a driver.
bool SupportsCudaMemory(ucp_context_h context);
// What that means for GPUs' memory on its way to other nodes, as a sentence for people.
std::string GpuPathText(bool takes_cuda_memory);

// The same from text, for tests.
std::set<std::string> LanesInText(std::string_view text);
std::set<std::string> ResourcesInText(std::string_view text);

// A sentence for people when a better wire is present than the ones in use ("tcp/eth0"): an RDMA
// device with a port that is up. Empty when all is well.
std::string SlowWireWarning(std::string_view wires,
                            const std::filesystem::path& rdma_devices = "/sys/class/infiniband");

}  // namespace headrace::transport
