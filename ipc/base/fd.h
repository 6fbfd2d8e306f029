// File descriptors and memory mappings with one owner each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "ipc/base/result.h"
#include "ipc/base/unique_handle.h"

namespace headrace {

struct FdTraits {
  using Value = int;
  static Value None() { return -1; }
  static void Release(Value fd);
};
using UniqueFd = UniqueHandle<FdTraits>;

inline constexpr std::size_t kStaggerMax = std::size_t{4} << 20;

// A mapping of shared memory; page aligned; unmapped on destruction.
class [[nodiscard]] Mapping {
 public:
  Mapping() = default;
  // Maps `size` bytes of `fd` from its start, shared. The fd may be closed afterwards. With a
  // `stagger`, a multiple of the page size up to kStaggerMax, mappings that follow each other do
  // not lie at distances of their size: the kernel leaves kStaggerMax bytes of address space more,
  // and the mapping begins `stagger` bytes into them.
  static Result<Mapping> Map(int fd, std::size_t size, bool writable, std::size_t stagger = 0);

  // A second mapping of shared memory that is mapped here, at another address and with a life of
  // its own. `memory` is whole pages of a Map.
  static Result<Mapping> Again(std::span<std::byte> memory);

  // Private memory of zeros, which costs nothing where it is not touched.
  static Result<Mapping> Anonymous(std::size_t size);

  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { Unmap(); }

  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  explicit operator bool() const { return bytes_.data() != nullptr; }

  // Leaves the memory mapped until the process ends, for those who may still reach for it.
  void Abandon() { bytes_ = {}; }

  // Faults every page in now, writable, and allocates those that are not there yet: for whoever
  // made the memory, and pays for it. Best effort: an old kernel without MADV_POPULATE_WRITE pays
  // at first touch instead.
  void Populate();

  // Fills the page tables of `size` bytes from `offset` on, both whole pages: for memory whose
  // pages are there. Of shared memory they can be written to as well, without another fault. Best
  // effort, as above.
  void FillPageTables(std::size_t offset, std::size_t size);

  // Unmaps the last `size` bytes, whole pages and at most all.
  void UnmapEnd(std::size_t size);

 private:
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  void Unmap();

  std::span<std::byte> bytes_;
};

// A second descriptor for the same open file, close-on-exec.
Result<UniqueFd> Duplicate(int fd);

}  // namespace headrace
