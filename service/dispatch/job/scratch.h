// Memory through which the blocks of one job and traffic class pass on their way from GPUs to other
// nodes: pinned host memory, or memory of one GPU. Its places have one size; blocks of a later plan
// may need larger ones. Sizes double, so that all of them together are at most twice the largest.
//
// Dispatch's thread, which neither makes nor frees any of it: mapping does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "service/session/scratch_memory.h"

namespace headrace::service {

class Scratch {
 public:
  // Blocks that may be under way at a time, and what their places take together, unless two are
  // more.
  static constexpr std::uint64_t kPlacesMax = 8;
  static constexpr std::uint64_t kPlacesMin = 2;
  static constexpr std::uint64_t kBytesMax = std::uint64_t{256} << 20;

  struct Place {
    std::byte* on_gpus = nullptr;
    std::byte* on_host = nullptr;  // null: it is a GPU's memory
  };
  // Room for `bytes`, in a place of `least_bytes` or more; null while there is none.
  Place Allocate(std::uint64_t bytes, std::uint64_t least_bytes);
  // A place is known by where GPUs find it.
  void Free(const std::byte* on_gpus);

  // What an Allocate found missing: memory of that many places of that size is to be made and
  // added. Nothing, once it was asked for.
  struct Request {
    std::uint64_t place_bytes = 0;  // 0: none
    std::uint64_t places_count = 0;
  };
  Request TakeScratchRequest();
  bool was_asked() const { return asked_bytes_ > 0; }
  void Add(std::uint64_t place_bytes, ScratchMemory memory);
  // All of it, for whoever frees it; nothing is in use.
  std::vector<ScratchMemory> PopAll();

 private:
  struct Pool {
    std::uint64_t place_bytes = 0;
    ScratchMemory memory;
    std::vector<std::uint64_t> free;  // places, by their offsets
  };

  std::vector<Pool> pools_;  // growing places
  std::uint64_t asked_bytes_ = 0;
  Request request_;
};

}  // namespace headrace::service
