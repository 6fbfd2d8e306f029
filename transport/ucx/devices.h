// Which of this machine's network devices carry one of its addresses, in UCX's names. Any thread.
#pragma once

#include <string>

namespace headrace::transport {

// A value for UcxOptions::net_devices: the interface that has `address`, and all RDMA ports, which
// listen at no address: "eth0,mlx5_0:1". UCX listens once at each interface that it may use, so it
// listens nowhere else then. Empty, which is UCX's own choice among all: `address` is no literal,
// is that of every interface, or is of no interface here. `rdma_folder` is for tests.
std::string DevicesAt(const std::string& address,
                      const std::string& rdma_folder = "/sys/class/infiniband");

}  // namespace headrace::transport
