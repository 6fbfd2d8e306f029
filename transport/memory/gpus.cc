#include "transport/memory/gpus.h"

#include <fmt/format.h>

#include <utility>

namespace headrace::transport {

Result<std::unique_ptr<Gpus>> Gpus::Open(const std::string& library) {
  Result<std::unique_ptr<CudaDriver>> driver = CudaDriver::Open(library);
  if (!driver) return driver.error();
  std::unique_ptr<Gpus> gpus(new Gpus(std::move(driver).value()));
  Result<std::vector<CudaDevice>> devices = DescribeDevices(gpus->driver());
  if (!devices) return devices.error();
  gpus->devices_ = std::move(devices).value();
  for (const CudaDevice& device : gpus->devices_) {
    Result<PrimaryContext> context = RetainPrimaryContext(gpus->driver(), device.ordinal);
    if (!context) return context.error().Within(fmt::format("use GPU {}", device.ordinal));
    gpus->contexts_.push_back(std::move(context).value());
  }
  gpus->multicast_ =
      std::make_unique<Multicast>(gpus->driver(), gpus->devices(), gpus->memory_gate());
  return gpus;
}

void Gpus::OnBroken(CudaDriver::OnBrokenContext report) {
  driver_->OnBroken([this, report = std::move(report)](const std::string& cause) {
    // Whoever made the call has its context current still.
    CuContext current = nullptr;
    (void)driver_->call().ctx_get_current(&current);
    for (const PrimaryContext& context : contexts_) {
      if (current == nullptr || context.get().context != current) continue;
      return report(fmt::format("GPU {}: {}", context.get().device, cause));
    }
    return report(cause);
  });
}

Result<DeviceImport> Gpus::Import(const DeviceHandle& handle, std::span<const UniqueFd> fds) const {
  const Result<CuDevice> home = FindDevice(*driver_, handle.device);
  if (!home) return home.error();
  std::vector<PrimaryContext> users;
  for (const CudaDevice& device : devices_) {
    const Result<bool> reaches = CanAccessPeer(*driver_, device.ordinal, *home);
    if (!reaches) return reaches.error();
    if (!*reaches) continue;
    Result<PrimaryContext> user = RetainPrimaryContext(*driver_, device.ordinal);
    if (!user) return user.error();
    users.push_back(std::move(user).value());
  }
  Result<DeviceImport> imported = DeviceImport::Open(*driver_, handle, fds, users);
  if (imported) imported->Announce(*multicast_);
  return imported;
}

}  // namespace headrace::transport
