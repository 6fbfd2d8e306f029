#include "client/lib/fork_guard.h"

#include <sys/mman.h>

#include <cerrno>

#include "ipc/sealed_memory.h"

namespace headrace::client {

void GuardPageTraits::Release(Value page) { ::munmap(page, ipc::kPageSize); }

Result<ForkGuard> ForkGuard::Create() {
  void* page =
      ::mmap(nullptr, ipc::kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return SystemError("mmap a page", errno);
  ForkGuard guard(page);
  if (::madvise(page, ipc::kPageSize, MADV_WIPEONFORK) != 0) {
    return SystemError("madvise MADV_WIPEONFORK", errno);
  }
  *static_cast<int*>(page) = 1;
  return guard;
}

}  // namespace headrace::client
