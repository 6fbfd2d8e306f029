#include "transport/memory/pinned_memory.h"

#include <fmt/format.h>

#include <algorithm>
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
  PinnedRange pinned;
  if (Status status = pinned.Append(gpus, memory); !status) return status.error();
  return pinned;
}

Status PinnedRange::Append(const Gpus& gpus, std::span<std::byte> memory) {
  HR_CHECK(!memory.empty() && memory.size() % kPageSize == 0 && gpus.count() > 0, memory.size());
  const auto within = [&memory](const Error& error) {
    return error.Within(fmt::format("pin {} bytes of host memory", memory.size()));
  };
  Part part{.size = memory.size()};
  Result<HostRegistration> registration =
      RegisterHostMemory(gpus.contexts().front(), memory.data(), memory.size());
  if (!registration) return within(registration.error());
  part.registration = std::move(registration).value();
  const std::byte* const expected = parts_.empty() ? nullptr : on_gpus() + size();
  for (const PrimaryContext& context : gpus.contexts()) {
    const Result<CuAddress> address = AddressOn(gpus.driver(), context, memory.data());
    if (!address) return within(address.error());
    auto* const on_gpu = reinterpret_cast<std::byte*>(*address);
    if (part.on_gpus == nullptr) part.on_gpus = on_gpu;
    if (part.on_gpus == on_gpu && (expected == nullptr || expected == on_gpu)) continue;
    return within(Error(Code::kUnavailable,
                        "the GPUs of this machine have no addresses in common: set gpu = off"));
  }
  parts_.push_back(std::move(part));
  return {};
}

bool PinnedRange::UnpinEnd() {
  if (!parts_.empty()) parts_.pop_back();
  return parts_.empty();
}

std::size_t PinnedRange::size() const {
  std::size_t size = 0;
  for (const Part& part : parts_) size += part.size;
  return size;
}

Result<PinnedMemory> PinnedMemory::Allocate(const Gpus& gpus, std::size_t size) {
  Result<PinnedMemory> pinned = Reserve(size);
  if (!pinned) return pinned.error();
  const Result<bool> all = pinned->PinMore(gpus, pinned->size());
  if (!all) return all.error();
  HR_CHECK(*all && pinned->size() >= size, pinned->size(), size);
  return pinned;
}

Result<PinnedMemory> PinnedMemory::Reserve(std::size_t size) {
  PinnedMemory pinned;
  HR_CHECK(size > 0, size);
  const std::size_t rounded = (size + kPageSize - 1) / kPageSize * kPageSize;
  Result<Mapping> mapping = Mapping::Anonymous(rounded);
  if (!mapping) {
    return mapping.error().Within(fmt::format("pin {} bytes of host memory", rounded));
  }
  pinned.mapping_ = std::move(mapping).value();
  return pinned;
}

Result<bool> PinnedMemory::PinMore(const Gpus& gpus, std::size_t most) {
  const std::size_t before = pinned_.size();
  HR_CHECK(before < size() && most > 0, before, size(), most);
  const std::size_t more = std::min(most, size() - before);
  const Status status = pinned_.Append(gpus, {data() + before, more});
  if (!status) return status.error();
  return before + more == size();
}

bool PinnedMemory::ReleaseEnd() {
  const bool unpinned = pinned_.UnpinEnd();
  if (unpinned) {
    mapping_ = Mapping();
  } else {
    mapping_.UnmapEnd(size() - pinned_.size());
  }
  return unpinned;
}

}  // namespace headrace::transport
