// Multicast: memory of several GPUs behind one address (CUDA Driver API, Multicast Object
// Management), which no host can touch: only kernels that ask what is bound there can
// (multicast.h).
#include <algorithm>

#include "tests/support/cuda_double/machine.h"
#include "tests/support/cuda_double/multicast.h"

namespace headrace::cuda_double {
namespace {

// The multicast object of a handle; null where it has none.
Team* TeamOf(CuMemory object) {
  Machine& machine = TheMachine();
  const auto found = machine.handles.find(object);
  return found == machine.handles.end() ? nullptr : found->second.memory->team.get();
}

bool FitsWithin(std::size_t offset, std::size_t size, std::size_t of) {
  return offset <= of && size <= of - offset;
}

}  // namespace

std::vector<std::byte*> BoundAt(CuDevice device, const std::byte* address, std::size_t size) {
  Machine& machine = TheMachine();
  const Lock lock(machine.mutex);
  const auto at = reinterpret_cast<CuAddress>(address);
  const auto place = PlaceAt(at);
  std::vector<std::byte*> found;
  if (place == machine.places.end() || place->second.memory->team == nullptr) return found;
  const auto index = static_cast<std::size_t>(device);
  const std::size_t offset = at - place->first;
  if (place->second.access[index] != CuAccess::kReadWrite) return found;
  const Team& team = *place->second.memory->team;
  for (const Team::Bound& bound : team.bounds) {
    if (offset < bound.offset || !FitsWithin(offset - bound.offset, size, bound.size)) continue;
    found.push_back(bound.mapped.data() + (offset - bound.offset));
  }
  // What some GPU of the team has bound nothing to is no memory.
  if (found.size() != team.devices.size()) found.clear();
  return found;
}

}  // namespace headrace::cuda_double

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

CuResult cuMulticastGetGranularity(std::size_t* granularity,
                                   const CuMulticastProperties* properties, CuGranularity) {
  HR_DOUBLE_ENTER();
  if (granularity == nullptr || properties == nullptr) return CuResult::kInvalidValue;
  *granularity = kGranularity;
  return CuResult::kSuccess;
}

CuResult cuMulticastCreate(CuMemory* object, const CuMulticastProperties* properties) {
  HR_DOUBLE_ENTER();
  if (machine.settings.multicast_count == 0) return CuResult::kNotSupported;
  if (object == nullptr || properties == nullptr || properties->devices_count < 2 ||
      properties->flags != 0 || properties->handle_types != 0 || properties->size == 0 ||
      properties->size % kGranularity != 0) {
    return CuResult::kInvalidValue;
  }
  auto memory = std::make_shared<Memory>();
  memory->size = properties->size;
  memory->team = std::make_unique<Team>();
  memory->team->devices_count = properties->devices_count;
  *object = ++machine.serial;
  machine.handles[*object] = {std::move(memory), 1};
  return CuResult::kSuccess;
}

CuResult cuMulticastAddDevice(CuMemory object, CuDevice device) {
  HR_DOUBLE_ENTER();
  Team* const team = TeamOf(object);
  if (team == nullptr) return CuResult::kInvalidValue;
  if (!IsDevice(device)) return CuResult::kInvalidDevice;
  const int number = machine.settings.visible[static_cast<std::size_t>(device)];
  if (number >= machine.settings.multicast_count) return CuResult::kNotSupported;
  if (team->devices.size() == team->devices_count || team->devices.contains(device)) {
    return CuResult::kInvalidValue;
  }
  team->devices.insert(device);
  return CuResult::kSuccess;
}

CuResult cuMulticastBindAddr(CuMemory object, std::size_t offset, CuAddress address,
                             std::size_t size, CuFlags flags) {
  HR_DOUBLE_ENTER();
  Team* const team = TeamOf(object);
  if (team == nullptr || flags != 0 || size == 0) return CuResult::kInvalidValue;
  if (offset % kGranularity != 0 || address % kGranularity != 0 || size % kGranularity != 0) {
    return CuResult::kInvalidValue;
  }
  if (!FitsWithin(offset, size, machine.handles[object].memory->size))
    return CuResult::kInvalidValue;
  // A real driver holds the caller until all GPUs of the team are there, or refuses.
  if (team->devices.size() != team->devices_count) return CuResult::kNotPermitted;
  const auto place = PlaceAt(address);
  if (place == machine.places.end() || place->second.kind != PlaceKind::kVirtual) {
    return CuResult::kInvalidValue;
  }
  const Memory& memory = *place->second.memory;
  if (!team->devices.contains(memory.ordinal)) return CuResult::kInvalidDevice;
  if (address != place->first || size > place->second.size) return CuResult::kInvalidValue;
  for (const Team::Bound& bound : team->bounds) {
    const bool apart = bound.offset + bound.size <= offset || offset + size <= bound.offset;
    if (bound.device == memory.ordinal && !apart) return CuResult::kInvalidValue;
  }
  auto mapped = Mapping::Map(memory.fd.get(), size, true);
  if (!mapped) return CuResult::kOutOfMemory;
  team->bounds.push_back({memory.ordinal, offset, size, place->second.memory, std::move(*mapped)});
  return CuResult::kSuccess;
}

CuResult cuMulticastUnbind(CuMemory object, CuDevice device, std::size_t offset, std::size_t size) {
  HR_DOUBLE_ENTER();
  Team* const team = TeamOf(object);
  if (team == nullptr) return CuResult::kInvalidValue;
  // "The mcOffset and the size must match the corresponding values specified during the bind call.
  // Any other values may result in undefined behavior" (CUDA Driver API, Multicast Object
  // Management, cuMulticastUnbind).
  const auto gone = std::erase_if(team->bounds, [&](const Team::Bound& bound) {
    return bound.device == device && bound.offset == offset && bound.size == size;
  });
  return gone != 0 ? CuResult::kSuccess : CuResult::kInvalidValue;
}

}  // namespace headrace::transport
