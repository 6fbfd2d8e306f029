#include "ipc/base/fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "ipc/base/check.h"

namespace headrace {

// Populating in steps keeps each system call short, so that a signal or an exit is not held up.
constexpr std::size_t kPopulateStep = std::size_t{64} << 20;
constexpr std::size_t kPage = 4096;  // the smallest there is

void FdTraits::Release(Value fd) { ::close(fd); }

Result<Mapping> Mapping::Anonymous(std::size_t size) {
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return SystemError("mmap " + std::to_string(size) + " bytes", errno);
  return Mapping({static_cast<std::byte*>(address), size});
}

Result<Mapping> Mapping::Map(int fd, std::size_t size, bool writable, std::size_t stagger) {
  const auto failed = [size] {
    return SystemError("mmap " + std::to_string(size) + " bytes", errno);
  };
  HR_CHECK(stagger <= kStaggerMax && stagger % kPage == 0 && size <= SIZE_MAX - kStaggerMax,
           stagger, size);
  std::byte* reserved = nullptr;
  if (stagger != 0) {
    // Reserved whole, so that the mapping can be put inside it without meeting anyone else's.
    void* space =
        ::mmap(nullptr, size + kStaggerMax, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return failed();
    reserved = static_cast<std::byte*>(space);
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const int flags = MAP_SHARED | (reserved != nullptr ? MAP_FIXED : 0);
  void* address =
      ::mmap(reserved != nullptr ? reserved + stagger : nullptr, size, protection, flags, fd, 0);
  if (address == MAP_FAILED) {
    const Error error = failed();
    if (reserved != nullptr) ::munmap(reserved, size + kStaggerMax);
    return error;
  }
  if (reserved != nullptr) {
    ::munmap(reserved, stagger);
    if (stagger < kStaggerMax) ::munmap(reserved + stagger + size, kStaggerMax - stagger);
  }
  return Mapping({static_cast<std::byte*>(address), size});
}

Result<Mapping> Mapping::Again(std::span<std::byte> memory) {
  // The kernel would map another part of memory that begins within a page.
  HR_CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % kPage == 0, memory.size());
  // An old size of 0 asks for a second mapping of the same pages, which only shared ones have.
  void* address = ::mremap(memory.data(), 0, memory.size(), MREMAP_MAYMOVE);
  if (address == MAP_FAILED) {
    return SystemError("mremap " + std::to_string(memory.size()) + " bytes", errno);
  }
  return Mapping({static_cast<std::byte*>(address), memory.size()});
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

void Mapping::Populate() {
  for (std::size_t offset = 0; offset < bytes_.size(); offset += kPopulateStep) {
    const std::size_t step = std::min(kPopulateStep, bytes_.size() - offset);
    if (::madvise(bytes_.data() + offset, step, MADV_POPULATE_WRITE) != 0) return;
  }
}

void Mapping::FillPageTables(std::size_t offset, std::size_t size) {
  HR_CHECK(offset <= bytes_.size() && size <= bytes_.size() - offset, offset, size, bytes_.size());
  // By reading, since the kernel then maps the neighbours of a page with it, which costs a third.
  [[maybe_unused]] const int filled = ::madvise(bytes_.data() + offset, size, MADV_POPULATE_READ);
}

void Mapping::UnmapEnd(std::size_t size) {
  HR_CHECK(size % kPage == 0, size, bytes_.size());
  const std::size_t rest = bytes_.size() - std::min(size, bytes_.size());
  if (rest == 0) return Unmap();
  HR_CHECK(rest % kPage == 0, rest, size);  // else the kernel would unmap nothing
  ::munmap(bytes_.data() + rest, bytes_.size() - rest);
  bytes_ = bytes_.first(rest);
}

void Mapping::Unmap() {
  if (bytes_.data() != nullptr) ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

Result<UniqueFd> Duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy) return SystemError("fcntl F_DUPFD_CLOEXEC", errno);
  return copy;
}

}  // namespace headrace
