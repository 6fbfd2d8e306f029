// Copies and fills. Host memory that is not pinned is read before an asynchronous call returns, or
// written before it, as the driver has it; all else happens when the stream comes to it. Also of a
// synchronous call from such memory to a GPU: once the bytes are in the driver's own memory it
// returns, "but the DMA to final destination may not have completed" (CUDA Driver API, API
// synchronization behavior). With a seed the second half of that way always takes its time.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

bool IsDeviceAddress(CuAddress address) { return PlaceAt(address) != TheMachine().places.end(); }

// A GPU may touch it, or it is host memory that the driver copies through its own.
bool MayCopy(int ordinal, CuAddress address, std::size_t size, bool writes) {
  return IsDeviceAddress(address) ? MayTouch(ordinal, address, size, writes) : address != 0;
}

enum class Waits : std::uint8_t { kNo, kYes };

constexpr std::chrono::microseconds kLate(200);

// Copies when the stream comes to it, if the memory is still there.
CuResult CopyNow(int ordinal, CuAddress target, CuAddress source, std::size_t size,
                 bool pageable_source, bool pageable_target) {
  {
    const Lock lock(TheMachine().mutex);
    if (!pageable_source && !MayTouch(ordinal, source, size, false)) {
      return CuResult::kIllegalAddress;
    }
    if (!pageable_target && !MayTouch(ordinal, target, size, true)) {
      return CuResult::kIllegalAddress;
    }
  }
  std::memmove(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), size);
  return CuResult::kSuccess;
}

CuResult PostCopy(Lock& lock, CuStream stream, CuAddress target, CuAddress source, std::size_t size,
                  Waits waits) {
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found); result != CuResult::kSuccess)
    return result;
  const int ordinal = found->ordinal;
  if (!MayCopy(ordinal, source, size, false) || !MayCopy(ordinal, target, size, true)) {
    return CuResult::kInvalidValue;
  }
  const bool pageable_source = !IsDeviceAddress(source) && !IsPinned(source, size);
  const bool pageable_target = !IsDeviceAddress(target) && !IsPinned(target, size);
  std::shared_ptr<std::vector<std::byte>> staged;  // owner: the operation
  if (pageable_source) {
    const auto* bytes = reinterpret_cast<const std::byte*>(source);
    staged = std::make_shared<std::vector<std::byte>>(bytes, bytes + size);
    source = reinterpret_cast<CuAddress>(staged->data());
  }
  if (waits == Waits::kYes && pageable_source) {
    const CuResult before = WaitFor(lock, {found, found->posted});
    if (before != CuResult::kSuccess) return before;
  }
  const bool is_late = pageable_source && TheMachine().settings.seed != 0;
  const Point point = Post(found, [=] {
    const auto keeps = staged;
    if (is_late) std::this_thread::sleep_for(kLate);
    return CopyNow(ordinal, target, source, size, pageable_source, pageable_target);
  });
  const bool is_over_when_staged = pageable_source && !pageable_target;
  if (pageable_target || (waits == Waits::kYes && !is_over_when_staged)) {
    return WaitFor(lock, point);
  }
  return CuResult::kSuccess;
}

}  // namespace
}  // namespace headrace::cuda_double

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

CuResult cuMemcpyHtoD_v2(CuAddress target, const void* source, std::size_t size) {
  HR_DOUBLE_ENTER();
  if (!IsDeviceAddress(target) || source == nullptr) return CuResult::kInvalidValue;
  return PostCopy(lock, nullptr, target, reinterpret_cast<CuAddress>(source), size, Waits::kYes);
}

CuResult cuMemcpyDtoH_v2(void* target, CuAddress source, std::size_t size) {
  HR_DOUBLE_ENTER();
  if (!IsDeviceAddress(source) || target == nullptr) return CuResult::kInvalidValue;
  return PostCopy(lock, nullptr, reinterpret_cast<CuAddress>(target), source, size, Waits::kYes);
}

CuResult cuMemcpyAsync(CuAddress target, CuAddress source, std::size_t size, CuStream stream) {
  HR_DOUBLE_ENTER();
  return PostCopy(lock, stream, target, source, size, Waits::kNo);
}

CuResult cuMemsetD8Async(CuAddress target, unsigned char value, std::size_t size, CuStream stream) {
  HR_DOUBLE_ENTER();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(stream, found); result != CuResult::kSuccess)
    return result;
  const int ordinal = found->ordinal;
  if (!MayTouch(ordinal, target, size, true)) return CuResult::kInvalidValue;
  Post(found, [=] {
    {
      const Lock still_there(TheMachine().mutex);
      if (!MayTouch(ordinal, target, size, true)) return CuResult::kIllegalAddress;
    }
    std::memset(reinterpret_cast<void*>(target), value, size);
    return CuResult::kSuccess;
  });
  return CuResult::kSuccess;
}

}  // namespace headrace::transport
