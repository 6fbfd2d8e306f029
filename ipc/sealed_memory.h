// Memory that two processes share and neither can take away from the other: a memfd sealed against
// shrinking, growing and new seals. The receiver verifies before it maps; an unsealed file could be
// truncated under a mapping, and every later access would be a SIGBUS.
#pragma once

#include <cstddef>
#include <string>

#include "ipc/base/fd.h"
#include "ipc/base/result.h"

namespace headrace::ipc {

inline constexpr std::size_t kPageSize = 4096;
inline constexpr std::size_t kSegmentSizeMax = std::size_t{1} << 46;  // 64 TiB: catches nonsense

struct SealedMemory {
  UniqueFd fd;
  Mapping mapping;
};

// Creates, sizes, seals and maps `size` bytes (a positive multiple of the page size). `name` shows
// in /proc/PID/maps.
Result<SealedMemory> CreateSealedMemory(const std::string& name, std::size_t size);

// Checks that `fd` is a memfd of exactly `size` bytes with the seals above and without a seal that
// forbids writing. Errors name what is wrong and what the sender must do.
Status VerifySealedMemory(int fd, std::size_t size);

// Checks that every page of the memfd has been allocated, by fallocate or by a write to it. Pages
// that are not are charged to whoever touches them first, and that shall not be the receiver. What
// the sender does afterwards this does not see: no seal keeps it from punching holes.
Status CheckPopulated(int fd, std::size_t size);

// Allocates every page of memory of one's own; an error says that there is not enough.
Status Populate(SealedMemory& memory);

// Verifies, then maps for reading and writing; `stagger` as for Mapping::Map.
Result<Mapping> MapSealedMemory(int fd, std::size_t size, std::size_t stagger = 0);

}  // namespace headrace::ipc
