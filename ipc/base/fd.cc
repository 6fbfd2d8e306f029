#include "ipc/base/fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace headrace {

// Populating in steps keeps each system call short, so that a signal or an exit is not held up.
constexpr std::size_t kPopulateStep = std::size_t{64} << 20;

void FdTraits::Release(Value fd) { ::close(fd); }

Result<Mapping> Mapping::Map(int fd, std::size_t size, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = ::mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    return SystemError("mmap " + std::to_string(size) + " bytes", errno);
  }
  return Mapping({static_cast<std::byte*>(address), size});
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
