#include "service/dispatch/job/scratch.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ipc/base/check.h"

namespace headrace::service {

Scratch::Place Scratch::Allocate(std::uint64_t bytes, std::uint64_t least_bytes) {
  for (Pool& pool : pools_) {
    if (pool.place_bytes < bytes || pool.free.empty()) continue;
    const std::uint64_t offset = pool.free.back();
    pool.free.pop_back();
    std::byte* const on_host = pool.memory.on_host();
    return {pool.memory.on_gpus() + offset, on_host == nullptr ? nullptr : on_host + offset};
  }
  if (bytes > asked_bytes_) {
    asked_bytes_ = std::bit_ceil(std::max({bytes, least_bytes, std::uint64_t{1}}));
    request_ = {asked_bytes_, std::clamp(kBytesMax / asked_bytes_, kPlacesMin, kPlacesMax)};
  }
  return {};
}

void Scratch::Free(const std::byte* on_gpus) {
  for (Pool& pool : pools_) {
    const std::byte* const begin = pool.memory.on_gpus();
    if (on_gpus < begin || on_gpus >= begin + pool.memory.size()) continue;
    const auto offset = static_cast<std::uint64_t>(on_gpus - begin);
    HR_CHECK(offset % pool.place_bytes == 0, offset, pool.place_bytes);
    HR_CHECK(pool.free.size() < pool.memory.size() / pool.place_bytes, pool.free.size());
    pool.free.push_back(static_cast<std::uint64_t>(on_gpus - begin));
    return;
  }
  HR_CHECK(false, pools_.size());
}

Scratch::Request Scratch::TakeScratchRequest() { return std::exchange(request_, Request{}); }

void Scratch::Add(std::uint64_t place_bytes, ScratchMemory memory) {
  HR_CHECK(place_bytes > 0 && memory.size() >= place_bytes, place_bytes, memory.size());
  Pool pool{.place_bytes = place_bytes, .memory = std::move(memory), .free = {}};
  for (std::uint64_t end = pool.memory.size() / place_bytes; end > 0; --end) {
    pool.free.push_back((end - 1) * place_bytes);
  }
  pools_.push_back(std::move(pool));
}

std::vector<ScratchMemory> Scratch::PopAll() {
  std::vector<ScratchMemory> all;
  for (const Pool& pool : pools_) {
    HR_CHECK(pool.free.size() == pool.memory.size() / pool.place_bytes, pool.free.size());
  }
  for (Pool& pool : pools_) all.push_back(std::move(pool.memory));
  pools_.clear();
  return all;
}

}  // namespace headrace::service
