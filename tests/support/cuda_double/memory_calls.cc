// Memory of cuMemAlloc, pinned host memory, and what the driver knows of an address (CUDA Driver
// API, Memory Management, Unified Addressing).
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

std::size_t InPages(std::size_t size) { return (size + kPageSize - 1) / kPageSize * kPageSize; }

// Memory of cuMemAlloc comes in blocks of 2 MiB, which small allocations share, and a CUDA IPC
// handle shares all of the block: allocations "may be sub-allocated from a larger block of memory",
// and "CUDA IPC APIs will share the entire underlying memory block", hence the advice "to only
// share allocations with a 2MiB aligned size" (CUDA Programming Guide, on the IPC API).
CuResult TakeBlock(int ordinal, std::size_t size, Place& place) {
  constexpr std::size_t kAligned = 512;
  const std::size_t wanted = (size + kAligned - 1) / kAligned * kAligned;
  Device& device = TheMachine().devices[static_cast<std::size_t>(ordinal)];
  const bool is_small = wanted <= kGranularity / 2;
  if (auto open = device.open_block.lock(); is_small && open != nullptr) {
    if (wanted <= open->size - open->used) place.memory = std::move(open);
  }
  if (place.memory == nullptr) {
    const std::size_t whole = (wanted + kGranularity - 1) / kGranularity * kGranularity;
    const CuResult result = Allocate(ordinal, whole, CuHandleType::kNone, place.memory);
    if (result != CuResult::kSuccess) return result;
    auto mapped = Mapping::Map(place.memory->fd.get(), whole, true);
    if (!mapped) return CuResult::kOutOfMemory;
    place.memory->block = std::move(*mapped);
    if (is_small) device.open_block = place.memory;
  }
  place.offset = place.memory->used;
  place.memory->used += wanted;
  return CuResult::kSuccess;
}

template <typename Value>
CuResult Answer(void* data, Value value) {
  *static_cast<Value*>(data) = value;
  return CuResult::kSuccess;
}

// What the GPU of the current context may do there.
CuAccess AccessTo(CuAddress address) {
  int ordinal = 0;
  if (CurrentOrdinal(ordinal) != CuResult::kSuccess) return CuAccess::kNone;
  if (MayTouch(ordinal, address, 1, true)) return CuAccess::kReadWrite;
  return MayTouch(ordinal, address, 1, false) ? CuAccess::kRead : CuAccess::kNone;
}

CuResult AnswerOfPlace(void* data, CuPointerAttribute attribute, CuAddress start,
                       const Place& place) {
  const bool is_virtual = place.kind == PlaceKind::kVirtual;
  switch (attribute) {
    case CuPointerAttribute::kMemoryType:
      return Answer(data, kCuMemoryTypeDevice);
    case CuPointerAttribute::kBufferId:
      return Answer(data, place.number);
    case CuPointerAttribute::kIsManaged:
      return Answer(data, std::uint32_t{0});
    case CuPointerAttribute::kDeviceOrdinal:
      return Answer(data, place.memory->ordinal);
    case CuPointerAttribute::kIsLegacyIpcCapable:
      return Answer(data, place.kind == PlaceKind::kPlain);
    case CuPointerAttribute::kAllowedHandleTypes:
      return Answer(
          data,
          std::uint64_t{is_virtual ? static_cast<std::uint32_t>(place.memory->handle_types) : 0});
    case CuPointerAttribute::kAccessFlags:
      return Answer(data, static_cast<std::uint32_t>(AccessTo(start)));
    case CuPointerAttribute::kMappingSize:
      return Answer(data, place.size);
    case CuPointerAttribute::kMappingBase:
      return Answer(data, start);
  }
  return CuResult::kInvalidValue;
}

}  // namespace
}  // namespace headrace::cuda_double

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

CuResult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  *total = machine.settings.memory_size;
  *free = *total - std::min<std::uint64_t>(*total, BytesHeld(ordinal));
  return CuResult::kSuccess;
}

CuResult cuMemAlloc_v2(CuAddress* address, std::size_t size) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  if (address == nullptr || size == 0) return CuResult::kInvalidValue;
  const DeviceLock device(lock, ordinal, DeviceLock::Takes::kItsTime);
  Place place;
  place.kind = PlaceKind::kPlain;
  place.size = size;
  const CuResult result = TakeBlock(ordinal, size, place);
  if (result != CuResult::kSuccess) return result;
  *address = reinterpret_cast<CuAddress>(place.memory->block.data() + place.offset);
  place.number = ++machine.places_made;
  machine.places[*address] = std::move(place);
  return CuResult::kSuccess;
}

CuResult cuMemFree_v2(CuAddress address) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  auto place = machine.places.find(address);
  if (place == machine.places.end() || place->second.kind != PlaceKind::kPlain) {
    return CuResult::kInvalidValue;
  }
  // What uses the memory ends first ("this API may perform implicit synchronization": CUDA Driver
  // API, Memory Management, cuMemFree), and meanwhile nobody launches.
  const DeviceLock device(lock, place->second.memory->ordinal, DeviceLock::Takes::kItsTime);
  place = machine.places.find(address);
  if (place == machine.places.end()) return CuResult::kInvalidValue;
  const CuResult result = WaitForDevice(lock, place->second.memory->ordinal);
  place = machine.places.find(address);
  if (place == machine.places.end()) return CuResult::kInvalidValue;
  machine.places.erase(place);
  return result;
}

CuResult cuMemGetAddressRange_v2(CuAddress* base, std::size_t* size, CuAddress address) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  const auto place = PlaceAt(address);
  if (place == machine.places.end()) return CuResult::kNotFound;
  if (base != nullptr) *base = place->first;
  if (size != nullptr) *size = place->second.size;
  return CuResult::kSuccess;
}

CuResult cuPointerGetAttribute(void* data, CuPointerAttribute attribute, CuAddress address) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  if (data == nullptr) return CuResult::kInvalidValue;
  const auto place = PlaceAt(address);
  if (place != machine.places.end()) {
    return AnswerOfPlace(data, attribute, place->first, place->second);
  }
  if (!IsPinned(address, 1)) return CuResult::kInvalidValue;
  if (attribute == CuPointerAttribute::kMemoryType) return Answer(data, kCuMemoryTypeHost);
  if (attribute == CuPointerAttribute::kIsManaged) return Answer(data, std::uint32_t{0});
  return CuResult::kInvalidValue;
}

CuResult cuMemHostRegister_v2(void* memory, std::size_t size, unsigned flags) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  if (machine.settings.Lacks("host_register")) return CuResult::kNotSupported;
  if (SpoilCaptures(machine)) return CuResult::kStreamCaptureUnsupported;
  const auto address = reinterpret_cast<CuAddress>(memory);
  if (memory == nullptr || size == 0 || flags > 3) return CuResult::kInvalidValue;
  const auto next = machine.host_ranges.lower_bound(address);
  const bool meets_next = next != machine.host_ranges.end() && next->first < address + size;
  if (IsPinned(address, 1) || meets_next) return CuResult::kHostMemoryAlreadyRegistered;
  const DeviceLock device(lock, ordinal, DeviceLock::Takes::kItsTime);
  // Pinning faults every page in, for writing; memory that is not there cannot be pinned. A kernel
  // that does not know how (EINVAL) leaves it at that.
  const CuAddress first = address / kPageSize * kPageSize;
  if (::madvise(reinterpret_cast<void*>(first), InPages(address + size - first),
                MADV_POPULATE_WRITE) != 0 &&
      errno != EINVAL) {
    return CuResult::kInvalidValue;
  }
  machine.host_ranges[address] = {size, ordinal};
  return CuResult::kSuccess;
}

CuResult cuMemHostUnregister(void* memory) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  const auto address = reinterpret_cast<CuAddress>(memory);
  const auto range = machine.host_ranges.find(address);
  if (range == machine.host_ranges.end()) return CuResult::kHostMemoryNotRegistered;
  // What uses the memory ends first, as with cuMemFree: so did an H200 (tests/gpu/driver_probe).
  const int ordinal = range->second.ordinal;
  const DeviceLock device(lock, ordinal, DeviceLock::Takes::kItsTime);
  const CuResult result = WaitForDevice(lock, ordinal);
  return machine.host_ranges.erase(address) != 0 ? result : CuResult::kHostMemoryNotRegistered;
}

CuResult cuMemHostGetDevicePointer_v2(CuAddress* address, void* memory, unsigned flags) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  *address = reinterpret_cast<CuAddress>(memory);
  return flags == 0 && IsPinned(*address, 1) ? CuResult::kSuccess : CuResult::kInvalidValue;
}

}  // namespace headrace::transport
