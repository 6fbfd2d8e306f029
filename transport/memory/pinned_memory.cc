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

Result<PinnedRange> PinnedRange::Pin(const Gpus& gpus, std::span<std::byte> memory) {
  HR_CHECK(!memory.empty() && memory.size() % kPageSize == 0 && gpus.count() > 0, memory.size());
  const auto within = [&memory](const Error& error) {
    return error.Within(fmt::format("pin {} bytes of host memory", memory.size()));
  };
  PinnedRange pinned;
  Result<HostRegistration> registration =
      RegisterHostMemory(gpus.contexts().front(), memory.data(), memory.size());
  if (!registration) return within(registration.error());
  pinned.registration_ = std::move(registration).value();
  for (const PrimaryContext& context : gpus.contexts()) {
    const Result<CuAddress> address = AddressOn(gpus.driver(), context, memory.data());
    if (!address) return within(address.error());
    auto* const on_gpu = reinterpret_cast<std::byte*>(*address);
    if (pinned.on_gpus_ == nullptr) pinned.on_gpus_ = on_gpu;
    if (pinned.on_gpus_ == on_gpu) continue;
    return within(Error(Code::kUnavailable,
                        "the GPUs of this machine have no addresses in common: set gpu = off"));
  }
  return pinned;
}

Result<PinnedMemory> PinnedMemory::Allocate(const Gpus& gpus, std::size_t size) {
  PinnedMemory pinned;
  HR_CHECK(size > 0, size);
  const std::size_t rounded = (size + kPageSize - 1) / kPageSize * kPageSize;
  Result<Mapping> mapping = Mapping::Anonymous(rounded);
  if (!mapping) {
    return mapping.error().Within(fmt::format("pin {} bytes of host memory", rounded));
  }
  pinned.mapping_ = std::move(mapping).value();
  Result<PinnedRange> range = PinnedRange::Pin(gpus, {pinned.data(), rounded});
  if (!range) return range.error();
  pinned.pinned_ = std::move(range).value();
  HR_CHECK(pinned.size() >= size && pinned.size() % kPageSize == 0, pinned.size(), size);
  return pinned;
}

}  // namespace headrace::transport
