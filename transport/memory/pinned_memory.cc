#include "transport/memory/pinned_memory.h"

#include <fmt/format.h>

#include <utility>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::size_t kPageSize = 4096;

Result<CuAddress> AddressOn(const CudaDriver& driver, const PrimaryContext& context, void* memory) {
  const CurrentContext current(driver, context.get().context);
  CuAddress address = 0;
  const CuResult result = current.result() != CuResult::kSuccess
                              ? current.result()
                              : driver.call().mem_host_get_device_pointer(&address, memory, 0);
  if (result != CuResult::kSuccess) return driver.Failed(result, "find pinned memory on a GPU");
  return address;
}

}  // namespace

Result<PinnedMemory> PinnedMemory::Allocate(const Gpus& gpus, std::size_t size) {
  PinnedMemory pinned;
  HR_CHECK(size > 0 && gpus.count() > 0, size);
  const std::size_t rounded = (size + kPageSize - 1) / kPageSize * kPageSize;
  const auto within = [rounded](const Error& error) {
    return error.Within(fmt::format("pin {} bytes of host memory", rounded));
  };
  Result<Mapping> mapping = Mapping::Anonymous(rounded);
  if (!mapping) return within(mapping.error());
  pinned.mapping_ = std::move(mapping).value();
  Result<HostRegistration> registration =
      RegisterHostMemory(gpus.contexts().front(), pinned.data(), rounded);
  if (!registration) return within(registration.error());
  pinned.registration_ = std::move(registration).value();
  for (const PrimaryContext& context : gpus.contexts()) {
    const Result<CuAddress> address = AddressOn(gpus.driver(), context, pinned.data());
    if (!address) return within(address.error());
    auto* const on_gpu = reinterpret_cast<std::byte*>(*address);
    if (pinned.on_gpus_ == nullptr) pinned.on_gpus_ = on_gpu;
    if (pinned.on_gpus_ == on_gpu) continue;
    return within(Error(Code::kUnavailable,
                        "the GPUs of this machine have no addresses in common: set gpu = off"));
  }
  HR_CHECK(pinned.size() >= size && pinned.size() % kPageSize == 0, pinned.size(), size);
  return pinned;
}

}  // namespace headrace::transport
