// Which of this machine's network devices carry one of its addresses, in UCX's names. Any thread.
#pragma once

#include <string>

namespace headrace::transport {

// A value for UcxOptions::net_devices: the interfaces that have `address`, and all RDMA ports,
// which listen at no address: "eth0,mlx5_0:1". UCX listens once at each interface that it may use,
// so it listens nowhere else then. A host name is resolved, which may wait for DNS; each of its
// addresses counts. Empty, which is UCX's own choice among all: `address` is that of every
// interface ("*", "0.0.0.0", "::"), or is of no interface here. `rdma_folder` is for tests.
std::string DevicesAt(const std::string& address,
                      const std::string& rdma_folder = "/sys/class/infiniband");

}  // namespace headrace::transport
