// Memory of cuMemCreate: bytes, addresses, and the two together (CUDA Driver API, Virtual Memory
// Management). What is not mapped, and what no GPU may access, cannot be touched by the host
// either, so a wrong address ends the test.
#include <sys/mman.h>

#include <algorithm>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

void* PointerTo(CuAddress address) { return reinterpret_cast<void*>(address); }

// Reserved addresses, or those of a mapping that is gone.
bool SetAside(CuAddress address, std::size_t size) {
  return ::mmap(PointerTo(address), size, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool IsWhole(std::size_t size) { return size != 0 && size % kGranularity == 0; }

bool IsReserved(CuAddress address, std::size_t size) {
  const auto& reservations = TheMachine().reservations;
  const auto after = reservations.upper_bound(address);
  if (after == reservations.begin()) return false;
  const auto range = std::prev(after);
  const std::uint64_t offset = address - range->first;
  return offset < range->second && size <= range->second - offset;
}

// The mappings that make up exactly this range; empty when there are gaps or one reaches out of it.
std::vector<std::map<CuAddress, Place>::iterator> MappingsIn(CuAddress address, std::size_t size) {
  auto& places = TheMachine().places;
  std::vector<std::map<CuAddress, Place>::iterator> found;
  const CuAddress end = address + size;
  while (address < end) {
    const auto place = places.find(address);
    if (place == places.end() || place->second.kind != PlaceKind::kVirtual) return {};
    found.push_back(place);
    address += place->second.size;
  }
  if (address != end) return {};
  return found;
}

bool Touches(CuAddress address, std::size_t size) {
  const auto& places = TheMachine().places;
  const auto next = places.lower_bound(address);
  return PlaceAt(address) != places.end() || (next != places.end() && next->first < address + size);
}

CuResult CheckProperties(const CuAllocationProperties& properties) {
  const Settings& settings = TheMachine().settings;
  if (settings.Lacks("virtual_memory")) return CuResult::kNotSupported;
  if (properties.type != kCuAllocationPinned) return CuResult::kInvalidValue;
  if (properties.location.type != CuLocationType::kDevice) return CuResult::kInvalidValue;
  if (!IsDevice(properties.location.id)) return CuResult::kInvalidDevice;
  if (properties.gpu_direct_rdma_capable != 0) return CuResult::kNotSupported;
  if (properties.handle_types == CuHandleType::kNone) return CuResult::kSuccess;
  if (properties.handle_types != CuHandleType::kPosixFd) return CuResult::kNotSupported;
  return settings.Lacks("posix_fds") ? CuResult::kNotSupported : CuResult::kSuccess;
}

}  // namespace
}  // namespace headrace::cuda_double

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

CuResult cuMemGetAllocationGranularity(std::size_t* granularity,
                                       const CuAllocationProperties* properties, CuGranularity) {
  HR_DOUBLE_ENTER();
  if (granularity == nullptr || properties == nullptr) return CuResult::kInvalidValue;
  *granularity = kGranularity;
  return CheckProperties(*properties);
}

CuResult cuMemCreate(CuMemory* memory, std::size_t size, const CuAllocationProperties* properties,
                     CuFlags flags) {
  HR_DOUBLE_ENTER();
  if (memory == nullptr || properties == nullptr || flags != 0 || !IsWhole(size)) {
    return CuResult::kInvalidValue;
  }
  if (const CuResult result = CheckProperties(*properties); result != CuResult::kSuccess) {
    return result;
  }
  std::shared_ptr<Memory> made;
  const CuResult result = Allocate(properties->location.id, size, properties->handle_types, made);
  if (result != CuResult::kSuccess) return result;
  *memory = ++machine.serial;
  machine.handles[*memory] = {std::move(made), 1};
  return CuResult::kSuccess;
}

CuResult cuMemRelease(CuMemory memory) {
  HR_DOUBLE_ENTER();
  const auto found = machine.handles.find(memory);
  if (found == machine.handles.end()) return CuResult::kInvalidValue;
  if (--found->second.count == 0) machine.handles.erase(found);
  return CuResult::kSuccess;
}

CuResult cuMemRetainAllocationHandle(CuMemory* memory, void* address) {
  HR_DOUBLE_ENTER();
  const auto place = PlaceAt(reinterpret_cast<CuAddress>(address));
  if (memory == nullptr || place == machine.places.end() ||
      place->second.kind != PlaceKind::kVirtual) {
    return CuResult::kInvalidValue;
  }
  for (auto& [token, handle] : machine.handles) {
    if (handle.memory != place->second.memory) continue;
    ++handle.count;
    *memory = token;
    return CuResult::kSuccess;
  }
  *memory = ++machine.serial;
  machine.handles[*memory] = {place->second.memory, 1};
  return CuResult::kSuccess;
}

CuResult cuMemGetAllocationPropertiesFromHandle(CuAllocationProperties* properties,
                                                CuMemory memory) {
  HR_DOUBLE_ENTER();
  const auto found = machine.handles.find(memory);
  if (properties == nullptr || found == machine.handles.end()) return CuResult::kInvalidValue;
  *properties = {};
  properties->handle_types = found->second.memory->handle_types;
  properties->location = {CuLocationType::kDevice, found->second.memory->ordinal};
  return CuResult::kSuccess;
}

CuResult cuMemAddressReserve(CuAddress* address, std::size_t size, std::size_t alignment, CuAddress,
                             CuFlags flags) {
  HR_DOUBLE_ENTER();
  if (address == nullptr || flags != 0 || !IsWhole(size)) return CuResult::kInvalidValue;
  if (alignment > kGranularity) return CuResult::kNotSupported;
  // More than needed, so that an aligned range of the size lies in it.
  void* space = ::mmap(nullptr, size + kGranularity, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return CuResult::kOutOfMemory;
  const auto start = reinterpret_cast<CuAddress>(space);
  *address = (start + kGranularity - 1) / kGranularity * kGranularity;
  const std::size_t before = *address - start;
  if (before != 0) ::munmap(space, before);
  if (before != kGranularity) ::munmap(PointerTo(*address + size), kGranularity - before);
  machine.reservations[*address] = size;
  return CuResult::kSuccess;
}

CuResult cuMemAddressFree(CuAddress address, std::size_t size) {
  HR_DOUBLE_ENTER();
  const auto found = machine.reservations.find(address);
  if (found == machine.reservations.end() || found->second != size || Touches(address, size)) {
    return CuResult::kInvalidValue;
  }
  machine.reservations.erase(found);
  ::munmap(PointerTo(address), size);
  return CuResult::kSuccess;
}

CuResult cuMemMap(CuAddress address, std::size_t size, std::size_t offset, CuMemory memory,
                  CuFlags flags) {
  HR_DOUBLE_ENTER();
  auto found = machine.handles.find(memory);
  if (found == machine.handles.end()) return CuResult::kInvalidValue;
  const DeviceLock device(lock, found->second.memory->ordinal, DeviceLock::Takes::kItsTime);
  found = machine.handles.find(memory);
  if (found == machine.handles.end() || flags != 0 || offset != 0) return CuResult::kInvalidValue;
  if (!IsWhole(size) || address % kGranularity != 0) return CuResult::kInvalidValue;
  if (size > found->second.memory->size) return CuResult::kInvalidValue;
  if (!IsReserved(address, size) || Touches(address, size)) return CuResult::kInvalidValue;
  if (const Team* const team = found->second.memory->team.get(); team != nullptr) {
    if (team->devices.size() != team->devices_count) return CuResult::kNotPermitted;
  } else if (::mmap(PointerTo(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
                    found->second.memory->fd.get(), 0) == MAP_FAILED) {
    return CuResult::kOutOfMemory;
  }
  Place place;
  place.size = size;
  place.memory = found->second.memory;
  place.number = ++machine.places_made;
  machine.places[address] = std::move(place);
  return CuResult::kSuccess;
}

CuResult cuMemUnmap(CuAddress address, std::size_t size) {
  HR_DOUBLE_ENTER();
  auto mappings = MappingsIn(address, size);
  if (mappings.empty()) return CuResult::kInvalidValue;
  const DeviceLock device(lock, mappings.front()->second.memory->ordinal,
                          DeviceLock::Takes::kItsTime);
  mappings = MappingsIn(address, size);
  if (mappings.empty()) return CuResult::kInvalidValue;
  if (!SetAside(address, size)) return CuResult::kOperatingSystem;
  for (const auto& mapping : mappings) machine.places.erase(mapping);
  return CuResult::kSuccess;
}

CuResult cuMemSetAccess(CuAddress address, std::size_t size, const CuAccessDescription* access,
                        std::size_t count) {
  HR_DOUBLE_ENTER();
  auto mappings = MappingsIn(address, size);
  if (mappings.empty() || access == nullptr || count == 0) return CuResult::kInvalidValue;
  const DeviceLock device(lock, mappings.front()->second.memory->ordinal,
                          DeviceLock::Takes::kItsTime);
  mappings = MappingsIn(address, size);
  if (mappings.empty()) return CuResult::kInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& location = access[i].location;
    if (location.type != CuLocationType::kDevice) return CuResult::kInvalidValue;
    if (!IsDevice(location.id)) return CuResult::kInvalidDevice;
    for (const auto& mapping : mappings) {
      const Memory& memory = *mapping->second.memory;
      const bool reaches = memory.team ? memory.team->devices.contains(location.id)
                                       : Reaches(location.id, memory.ordinal);
      if (!reaches) return CuResult::kInvalidDevice;
    }
  }
  for (const auto& mapping : mappings) {
    Place& place = mapping->second;
    for (std::size_t i = 0; i < count; ++i) {
      place.access[static_cast<std::size_t>(access[i].location.id)] = access[i].flags;
    }
    if (place.memory->team) continue;  // not for the host
    const auto most = *std::ranges::max_element(place.access);
    const int protection = most == CuAccess::kReadWrite ? PROT_READ | PROT_WRITE
                           : most == CuAccess::kRead    ? PROT_READ
                                                        : PROT_NONE;
    if (::mprotect(PointerTo(mapping->first), place.size, protection) != 0) {
      return CuResult::kOperatingSystem;
    }
  }
  return CuResult::kSuccess;
}

}  // namespace headrace::transport
