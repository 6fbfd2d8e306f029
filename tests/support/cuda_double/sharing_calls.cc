// Memory of other processes: descriptors, which any process may be given (CUDA Driver API, Virtual
// Memory Management), and legacy handles (Memory Management), which name the exporter's pid and
// fail where that is the importer's own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <string>

#include "ipc/base/fd.h"
#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

constexpr std::uint64_t kLegacyMagic = 0x4c44'4255'4f44'5543;

// The 64 bytes. The memory is found as a descriptor of the exporting process, so a handle ends with
// the allocation and with the process, as it does in a driver.
struct LegacyBytes {
  std::uint64_t magic = kLegacyMagic;
  std::int64_t shown_pid = 0;
  std::int64_t pid = 0;
  std::int64_t fd = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::uint64_t offset = 0;  // in the block, all of which is shared
  std::array<std::uint64_t, 1> zeros{};
};
static_assert(sizeof(LegacyBytes) == sizeof(CuIpcHandle));

std::uint64_t InodeOf(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

// The memory that a handle names, from its exporter; null when it is gone.
std::shared_ptr<Memory> FetchLegacy(const LegacyBytes& bytes) {
  const std::string path = "/proc/" + std::to_string(bytes.pid) + "/fd/" + std::to_string(bytes.fd);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd || InodeOf(fd.get()) != bytes.inode) return nullptr;
  return MemoryOf(std::move(fd));
}

}  // namespace
}  // namespace headrace::cuda_double

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

CuResult cuMemExportToShareableHandle(void* exported, CuMemory memory, CuHandleType type,
                                      CuFlags flags) {
  HR_DOUBLE_ENTER();
  const auto found = machine.handles.find(memory);
  if (exported == nullptr || flags != 0 || found == machine.handles.end()) {
    return CuResult::kInvalidValue;
  }
  if (type != CuHandleType::kPosixFd || found->second.memory->handle_types != type) {
    return CuResult::kInvalidValue;
  }
  auto fd = Duplicate(found->second.memory->fd.get());
  if (!fd) return CuResult::kOperatingSystem;
  *static_cast<int*>(exported) = fd->release();
  return CuResult::kSuccess;
}

CuResult cuMemImportFromShareableHandle(CuMemory* memory, void* handle, CuHandleType type) {
  HR_DOUBLE_ENTER();
  if (memory == nullptr || type != CuHandleType::kPosixFd) return CuResult::kInvalidValue;
  auto fd = Duplicate(static_cast<int>(reinterpret_cast<std::intptr_t>(handle)));
  if (!fd) return CuResult::kInvalidValue;
  auto imported = MemoryOf(std::move(*fd));
  if (!imported || imported->size % kGranularity != 0) return CuResult::kInvalidValue;
  *memory = ++machine.serial;
  machine.handles[*memory] = {std::move(imported), 1};
  return CuResult::kSuccess;
}

CuResult cuIpcGetMemHandle(CuIpcHandle* handle, CuAddress address) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  // "Base pointer to previously allocated device memory" (CUDA Driver API, Memory Management,
  // cuIpcGetMemHandle).
  const auto place = machine.places.find(address);
  if (handle == nullptr || place == machine.places.end() ||
      place->second.kind != PlaceKind::kPlain) {
    return CuResult::kInvalidValue;
  }
  LegacyBytes bytes;
  bytes.shown_pid = machine.settings.pid;
  bytes.pid = ::getpid();
  bytes.fd = place->second.memory->fd.get();
  bytes.inode = InodeOf(place->second.memory->fd.get());
  bytes.size = place->second.size;
  bytes.offset = place->second.offset;
  *handle = std::bit_cast<CuIpcHandle>(bytes);
  return CuResult::kSuccess;
}

CuResult cuIpcOpenMemHandle_v2(CuAddress* address, CuIpcHandle handle, unsigned flags) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  const auto bytes = std::bit_cast<LegacyBytes>(handle);
  if (address == nullptr || flags != kCuIpcLazyEnablePeerAccess) return CuResult::kInvalidValue;
  if (bytes.magic != kLegacyMagic) return CuResult::kInvalidValue;
  // Assumed, as it was reported of drivers: they tell their own handles by the pid alone, also
  // across pid namespaces. The page has only that this error exists.
  if (bytes.shown_pid == machine.settings.pid) return CuResult::kInvalidContext;
  const DeviceLock device(lock, ordinal, DeviceLock::Takes::kItsTime);
  for (auto& [start, place] : machine.places) {
    if (place.kind != PlaceKind::kLegacy || place.file != bytes.inode) continue;
    ++place.opens;
    *address = start + bytes.offset;
    return CuResult::kSuccess;
  }
  auto memory = FetchLegacy(bytes);
  if (!memory) return CuResult::kInvalidHandle;
  // What is not listed is not returned (CUDA Driver API, Memory Management, cuIpcOpenMemHandle).
  if (!Reaches(ordinal, memory->ordinal)) return CuResult::kMapFailed;
  if (bytes.offset >= memory->size) return CuResult::kInvalidHandle;
  void* mapped =
      ::mmap(nullptr, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd.get(), 0);
  if (mapped == MAP_FAILED) return CuResult::kMapFailed;
  if (memory->ordinal != ordinal) {
    machine.devices[static_cast<std::size_t>(ordinal)].peers.insert(memory->ordinal);
  }
  Place place;
  place.kind = PlaceKind::kLegacy;
  place.size = memory->size;
  place.memory = std::move(memory);
  place.opens = 1;
  place.file = bytes.inode;
  const auto start = reinterpret_cast<CuAddress>(mapped);
  place.number = ++machine.places_made;
  machine.places[start] = std::move(place);
  *address = start + bytes.offset;
  return CuResult::kSuccess;
}

CuResult cuIpcCloseMemHandle(CuAddress address) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  const DeviceLock device(lock, ordinal, DeviceLock::Takes::kItsTime);
  const auto is_open = [&](const auto& place) {
    return place != machine.places.end() && place->second.kind == PlaceKind::kLegacy;
  };
  if (!is_open(PlaceAt(address))) return CuResult::kInvalidValue;
  // What uses the memory ends first, as with cuMemFree: so did an H200 (tests/gpu/driver_probe).
  const CuResult result = WaitForDevice(lock, ordinal);
  const auto place = PlaceAt(address);
  if (!is_open(place)) return CuResult::kInvalidValue;
  if (--place->second.opens != 0) return result;
  ::munmap(reinterpret_cast<void*>(place->first), place->second.memory->size);
  machine.places.erase(place);
  return result;
}

}  // namespace headrace::transport
