#include "ipc/sealed_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "ipc/base/check.h"

namespace headrace::ipc {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// What fstatfs says of a memfd made of ordinary pages (TMPFS_MAGIC of linux/magic.h).
constexpr long kOrdinaryPages = 0x01021994;

// The unit of stat's st_blocks.
constexpr std::uint64_t kStatBlock = 512;
constexpr std::size_t kAllocationStep = std::size_t{4} << 20;

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

Status CheckSize(std::size_t size) {
  if (size == 0 || size % kPageSize != 0 || size > kSegmentSizeMax) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("shared memory of {} bytes: the size must be a positive multiple of {} "
                    "and at most {}",
                    size, kPageSize, kSegmentSizeMax));
  }
  return {};
}

}  // namespace

Result<SealedMemory> CreateSealedMemory(const std::string& name, std::size_t size) {
  if (Status status = CheckSize(size); !status) return status.error();
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return SystemError("memfd_create " + name, errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return SystemError(fmt::format("ftruncate memfd {} to {} bytes", name, size), errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return SystemError("seal memfd " + name, errno);
  }
  Result<Mapping> mapping = Mapping::Map(fd.get(), size, true);
  if (!mapping) return mapping.error().Within("memfd " + name);
  return SealedMemory{std::move(fd), std::move(mapping).value()};
}

Status VerifySealedMemory(int fd, std::size_t size) {
  if (Status status = CheckSize(size); !status) return status;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    return Error(Code::kInvalidArgument,
                 "the descriptor is not a memfd: create it with memfd_create(MFD_ALLOW_SEALING)");
  }
  if ((seals & kSeals) != kSeals) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the memfd has seals {:#x}, of {:#x} (shrink, grow, seal) some are "
                             "missing: seal it with F_ADD_SEALS before handing it over",
                             seals, kSeals));
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return Error(Code::kInvalidArgument,
                 "the memfd is sealed against writing, but results are written into it: leave out "
                 "F_SEAL_WRITE and F_SEAL_FUTURE_WRITE");
  }
  // A file of huge pages can have holes punched into it in spite of these seals, and an access to a
  // hole while no huge page is free is a SIGBUS.
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0) return SystemError("fstatfs of a memfd", errno);
  if (system.f_type != kOrdinaryPages) {
    return Error(Code::kInvalidArgument,
                 "the memfd is made of huge pages: create it without MFD_HUGETLB");
  }
  struct stat state {};
  if (::fstat(fd, &state) != 0) return SystemError("fstat of a memfd", errno);
  if (static_cast<std::size_t>(state.st_size) != size) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the memfd holds {} bytes, {} were announced: size it with ftruncate "
                             "before sealing",
                             state.st_size, size));
  }
  return {};
}

Status CheckPopulated(int fd, std::size_t size) {
  struct stat state {};
  if (::fstat(fd, &state) != 0) return SystemError("fstat of a memfd", errno);
  // Pages that are swapped out count as well.
  const std::uint64_t allocated = static_cast<std::uint64_t>(state.st_blocks) * kStatBlock;
  if (allocated >= size) return {};
  return Error(
      Code::kInvalidArgument,
      fmt::format("of the memfd's {} bytes {} are not allocated: allocate all of them with "
                  "fallocate(2), or write to each page, before handing it over",
                  size, size - allocated));
}

Status Populate(SealedMemory& memory) {
  HR_CHECK(memory.fd && memory.mapping, memory.fd.get());
  memory.mapping.Populate();
  const std::size_t size = memory.mapping.size();
  if (CheckPopulated(memory.fd.get(), size)) return {};
  // An old kernel, or not enough memory; this says which. In steps, as a signal undoes a whole one.
  for (std::size_t offset = 0; offset < size;) {
    const std::size_t step = std::min(kAllocationStep, size - offset);
    if (::fallocate(memory.fd.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(step)) ==
        0) {
      offset += step;
    } else if (errno != EINTR) {
      return SystemError(fmt::format("allocate {} bytes of shared memory", size), errno);
    }
  }
  return {};
}

Result<Mapping> MapSealedMemory(int fd, std::size_t size, std::size_t stagger) {
  if (Status status = VerifySealedMemory(fd, size); !status) return status.error();
  return Mapping::Map(fd, size, true, stagger);
}

}  // namespace headrace::ipc
