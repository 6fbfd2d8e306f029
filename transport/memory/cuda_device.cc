#include "transport/memory/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace headrace::transport {
namespace {

constexpr int kNameSizeMax = 256;

Result<DeviceUuid> UuidOf(const CudaDriver& driver, CuDevice device) {
  CuUuid uuid{};
  const CuResult result = driver.call().device_get_uuid(&uuid, device);
  if (result != CuResult::kSuccess) {
    return driver.Failed(result, fmt::format("ask for the UUID of GPU {}", device));
  }
  DeviceUuid copy{};
  std::copy(uuid.bytes.begin(), uuid.bytes.end(), copy.begin());
  return copy;
}

}  // namespace

Result<CudaDevice> DescribeDevice(const CudaDriver& driver, int ordinal) {
  CudaDevice device;
  const auto doing = fmt::format("describe GPU {}", ordinal);
  CuResult first_failure = driver.call().device_get(&device.ordinal, ordinal);
  if (first_failure != CuResult::kSuccess) return driver.Failed(first_failure, doing);
  const auto attribute = [&](CuDeviceAttribute which) {
    int value = 0;
    const CuResult result = driver.call().device_get_attribute(&value, which, device.ordinal);
    if (first_failure == CuResult::kSuccess) first_failure = result;
    return value;
  };
  device.capability_major = attribute(CuDeviceAttribute::kComputeCapabilityMajor);
  device.capability_minor = attribute(CuDeviceAttribute::kComputeCapabilityMinor);
  device.multiprocessors_count = attribute(CuDeviceAttribute::kMultiprocessorCount);
  device.virtual_memory = attribute(CuDeviceAttribute::kVirtualMemorySupported) != 0;
  device.posix_fds = attribute(CuDeviceAttribute::kPosixFdSupported) != 0;
  device.stream_words = attribute(CuDeviceAttribute::kCanUse64BitStreamMemOps) != 0;
  device.rdma = attribute(CuDeviceAttribute::kRdmaWithVmmSupported) != 0;
  if (first_failure != CuResult::kSuccess) return driver.Failed(first_failure, doing);

  // Younger than the oldest driver we take, which answers that it knows no such attribute.
  const auto younger = [&](CuDeviceAttribute which) {
    int value = 0;
    return driver.call().device_get_attribute(&value, which, device.ordinal) ==
               CuResult::kSuccess &&
           value != 0;
  };
  device.multicast = younger(CuDeviceAttribute::kMulticastSupported);
  device.mps = younger(CuDeviceAttribute::kMpsEnabled);

  std::array<char, kNameSizeMax> name{};
  std::size_t size = 0;
  auto done = driver.Check(
      driver.call().device_get_name(name.data(), kNameSizeMax - 1, device.ordinal), doing);
  if (!done) return done.error();
  done = driver.Check(driver.call().device_total_mem(&size, device.ordinal), doing);
  if (!done) return done.error();
  const auto uuid = UuidOf(driver, device.ordinal);
  if (!uuid) return uuid.error();
  device.name = name.data();
  device.memory_size = size;
  device.uuid = *uuid;
  return device;
}

Result<std::vector<CudaDevice>> DescribeDevices(const CudaDriver& driver) {
  std::vector<CudaDevice> devices;
  for (int ordinal = 0; ordinal < driver.devices_count(); ++ordinal) {
    auto device = DescribeDevice(driver, ordinal);
    if (!device) return device.error();
    devices.push_back(std::move(*device));
  }
  return devices;
}

Result<CuDevice> FindDevice(const CudaDriver& driver, const DeviceUuid& uuid) {
  for (int ordinal = 0; ordinal < driver.devices_count(); ++ordinal) {
    CuDevice device = 0;
    const CuResult result = driver.call().device_get(&device, ordinal);
    if (result != CuResult::kSuccess) return driver.Failed(result, "look for a GPU");
    const auto found = UuidOf(driver, device);
    if (!found) return found.error();
    if (*found == uuid) return device;
  }
  return Error(Code::kNotFound,
               fmt::format("{} is not among the {} GPUs that this process sees: give the service's "
                           "container all of the node's GPUs (NVIDIA_VISIBLE_DEVICES=all)",
                           DeviceUuidText(uuid), driver.devices_count()));
}

Result<bool> CanAccessPeer(const CudaDriver& driver, CuDevice device, CuDevice peer) {
  if (device == peer) return true;
  int can = 0;
  const CuResult result = driver.call().device_can_access_peer(&can, device, peer);
  if (result != CuResult::kSuccess) {
    return driver.Failed(result, fmt::format("ask whether GPU {} reaches GPU {}", device, peer));
  }
  return can != 0;
}

}  // namespace headrace::transport
