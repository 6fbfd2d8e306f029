// The properties of a GPU, for choosing how to use it and for reports of that choice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/base/device_handle.h"
#include "ipc/base/result.h"
#include "transport/memory/cuda_driver.h"

namespace headrace::transport {

struct CudaDevice {
  CuDevice ordinal = 0;
  DeviceUuid uuid{};
  std::string name;
  std::uint64_t memory_size = 0;
  int capability_major = 0;  // 9.0 is Hopper
  int capability_minor = 0;
  int multiprocessors_count = 0;
  bool virtual_memory = false;  // cuMemCreate and addresses of our own
  bool posix_fds = false;       // such memory can be exported as a file descriptor
  bool stream_words = false;    // streams write and await 64-bit words
  bool rdma = false;            // network cards can read and write memory of cuMemCreate
  bool multicast = false;
  bool mps = false;  // processes share the GPU at the same time
};

Result<CudaDevice> DescribeDevice(const CudaDriver& driver, int ordinal);
Result<std::vector<CudaDevice>> DescribeDevices(const CudaDriver& driver);

// The GPU of this UUID among those that this process sees. kNotFound names it and the remedy.
Result<CuDevice> FindDevice(const CudaDriver& driver, const DeviceUuid& uuid);

// Whether `device` can read and write the memory of `peer` directly.
Result<bool> CanAccessPeer(const CudaDriver& driver, CuDevice device, CuDevice peer);

}  // namespace headrace::transport
