// The library, the GPUs, and their primary contexts (CUDA Driver API, Initialization, Version,
// Device, Primary Context and Context Management, Peer Context Memory Access, Error Handling).
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

void ReadFailures(const char* variable, std::vector<Failure>& failures) {
  const char* text = std::getenv(variable);
  std::istringstream in(text != nullptr ? text : "");
  for (std::string entry; std::getline(in, entry, ',');) {
    std::istringstream fields(entry);
    std::string function;
    std::string nth;
    std::string result;
    if (std::getline(fields, function, ':') && std::getline(fields, nth, ':') &&
        std::getline(fields, result)) {
      failures.push_back({function, std::stoull(nth), static_cast<CuResult>(std::stoul(result))});
    }
  }
}

// What goes when the last use of a context goes: it "is automatically reset once the last reference
// to it is released" (CUDA Driver API, Primary Context Management, cuDevicePrimaryCtxRelease), and
// with it all that lives in it.
void DestroyContext(Machine& machine, int ordinal) {
  Device& device = machine.devices[static_cast<std::size_t>(ordinal)];
  const auto lose = [&](auto& table, auto is_here) {
    machine.lost_with_context += std::erase_if(table, is_here);
  };
  const auto abandon = [](StreamState& stream) { stream.closed = stream.abandoned = true; };
  for (const auto& started : device.started) {
    if (const auto stream = started.lock()) abandon(*stream);
  }
  device.started.clear();
  device.default_stream = nullptr;
  lose(machine.streams, [&](const auto& entry) { return entry.second->ordinal == ordinal; });
  lose(machine.events, [&](const auto& entry) { return entry.second.ordinal == ordinal; });
  lose(machine.modules, [&](const auto& entry) { return entry.second == ordinal; });
  lose(machine.host_ranges, [&](const auto& entry) { return entry.second.ordinal == ordinal; });
  std::erase_if(machine.functions,
                [&](const auto& entry) { return !machine.modules.contains(entry.second.module); });
  device.context = nullptr;
  device.sticky = CuResult::kSuccess;
  device.peers.clear();
  for (auto& queue : device.queues) queue.clear();
  device.resident = 0;
  machine.changed.notify_all();
}

struct Word {
  CuResult result;
  const char* name;
  const char* meaning;
};
constexpr Word kWords[] = {
    {CuResult::kSuccess, "CUDA_SUCCESS", "no error"},
    {CuResult::kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CuResult::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CuResult::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CuResult::kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CuResult::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CuResult::kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CuResult::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CuResult::kMapFailed, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CuResult::kPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CuResult::kOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CuResult::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CuResult::kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CuResult::kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CuResult::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CuResult::kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CuResult::kPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CuResult::kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CuResult::kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CuResult::kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CuResult::kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CuResult::kSystemNotReady, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
};

const Word* FindWord(CuResult result) {
  const auto* found = std::ranges::find(kWords, result, &Word::result);
  return found == std::end(kWords) ? nullptr : found;
}

int Attribute(const Settings& settings, CuDeviceAttribute attribute) {
  switch (attribute) {
    case CuDeviceAttribute::kMultiprocessorCount:
      return settings.multiprocessors;
    case CuDeviceAttribute::kAsyncEngineCount:
      return 2;
    case CuDeviceAttribute::kComputeCapabilityMajor:
      return 9;
    case CuDeviceAttribute::kHostRegisterSupported:
      return settings.Lacks("host_register") ? 0 : 1;
    case CuDeviceAttribute::kVirtualMemorySupported:
      return settings.Lacks("virtual_memory") ? 0 : 1;
    case CuDeviceAttribute::kPosixFdSupported:
      return settings.Lacks("posix_fds") ? 0 : 1;
    case CuDeviceAttribute::kCanUse64BitStreamMemOps:
      return settings.Lacks("stream_words") ? 0 : 1;
    case CuDeviceAttribute::kComputeCapabilityMinor:
    case CuDeviceAttribute::kRdmaWithVmmSupported:
    case CuDeviceAttribute::kMulticastSupported:  // of each GPU its own
    case CuDeviceAttribute::kMpsEnabled:
      return 0;
  }
  return -1;
}

}  // namespace
}  // namespace headrace::cuda_double

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

CuResult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CuResult::kInvalidValue;
  *version = ReadSettings().version;  // before cuInit, as the driver tells it
  return CuResult::kSuccess;
}

CuResult cuInit(unsigned flags) {
  Machine& machine = TheMachine();
  // A child of a process that used the driver. Assumed: no page has what a driver answers there.
  if (machine.pid != 0 && machine.pid != ::getpid()) return CuResult::kNotInitialized;
  const Lock lock(machine.mutex);
  if (flags != 0) return CuResult::kInvalidValue;
  if (machine.pid != 0) return CuResult::kSuccess;
  machine.settings = ReadSettings();
  if (machine.settings.visible.empty()) return CuResult::kNoDevice;
  for (Device& device : machine.devices) device = {};
  ReadFailures("HEADRACE_CUDA_DOUBLE_FAIL", machine.failures);
  ReadFailures("HEADRACE_CUDA_DOUBLE_BREAK", machine.breaks);
  machine.delays.seed(machine.settings.seed);
  machine.pid = ::getpid();
  return CuResult::kSuccess;
}

CuResult cuGetErrorName(CuResult result, const char** name) {
  const Word* word = FindWord(result);
  *name = word != nullptr ? word->name : nullptr;
  return word != nullptr ? CuResult::kSuccess : CuResult::kInvalidValue;
}

CuResult cuGetErrorString(CuResult result, const char** meaning) {
  const Word* word = FindWord(result);
  *meaning = word != nullptr ? word->meaning : nullptr;
  return word != nullptr ? CuResult::kSuccess : CuResult::kInvalidValue;
}

CuResult cuDeviceGetCount(int* count) {
  HR_DOUBLE_ENTER();
  *count = static_cast<int>(machine.settings.visible.size());
  return CuResult::kSuccess;
}

CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(ordinal)) return CuResult::kInvalidDevice;
  *device = ordinal;
  return CuResult::kSuccess;
}

CuResult cuDeviceGetName(char* name, int size, CuDevice device) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(device)) return CuResult::kInvalidDevice;
  if (size <= 0) return CuResult::kInvalidValue;
  std::strncpy(name, "Double of a GPU", static_cast<std::size_t>(size) - 1);
  name[size - 1] = '\0';
  return CuResult::kSuccess;
}

CuResult cuDeviceGetUuid_v2(CuUuid* uuid, CuDevice device) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(device)) return CuResult::kInvalidDevice;
  uuid->bytes = {0xd0, 0xb1, 0xe0};
  uuid->bytes[14] = static_cast<unsigned char>(std::hash<std::string>()(machine.settings.machine));
  const int number = machine.settings.visible[static_cast<std::size_t>(device)];
  uuid->bytes[15] = static_cast<unsigned char>(number);
  return CuResult::kSuccess;
}

CuResult cuDeviceTotalMem_v2(std::size_t* size, CuDevice device) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(device)) return CuResult::kInvalidDevice;
  *size = machine.settings.memory_size;
  return CuResult::kSuccess;
}

CuResult cuDeviceGetAttribute(int* value, CuDeviceAttribute attribute, CuDevice device) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(device)) return CuResult::kInvalidDevice;
  if (attribute == CuDeviceAttribute::kMulticastSupported) {
    const int number = machine.settings.visible[static_cast<std::size_t>(device)];
    *value = number < machine.settings.multicast_count ? 1 : 0;
    return CuResult::kSuccess;
  }
  *value = Attribute(machine.settings, attribute);
  return *value < 0 ? CuResult::kInvalidValue : CuResult::kSuccess;
}

CuResult cuDeviceCanAccessPeer(int* can, CuDevice device, CuDevice peer) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(device) || !IsDevice(peer)) return CuResult::kInvalidDevice;
  *can = device != peer && Reaches(device, peer) ? 1 : 0;
  return CuResult::kSuccess;
}

CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(device)) return CuResult::kInvalidDevice;
  Device& of = machine.devices[static_cast<std::size_t>(device)];
  if (of.uses++ == 0) {
    of.context = machine.NewToken<CuContext>();
    of.default_stream = StartStream(device, true);
  }
  *context = of.context;
  return CuResult::kSuccess;
}

CuResult cuDevicePrimaryCtxRelease_v2(CuDevice device) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(device)) return CuResult::kInvalidDevice;
  Device& of = machine.devices[static_cast<std::size_t>(device)];
  if (of.uses == 0) return CuResult::kInvalidContext;
  if (--of.uses == 0) DestroyContext(machine, device);
  return CuResult::kSuccess;
}

CuResult cuDevicePrimaryCtxGetState(CuDevice device, unsigned* flags, int* active) {
  HR_DOUBLE_ENTER();
  if (!IsDevice(device)) return CuResult::kInvalidDevice;
  if (flags == nullptr || active == nullptr) return CuResult::kInvalidValue;
  *flags = 0;
  *active = machine.devices[static_cast<std::size_t>(device)].uses != 0 ? 1 : 0;
  return CuResult::kSuccess;
}

CuResult cuCtxPushCurrent_v2(CuContext context) {
  HR_DOUBLE_ENTER();
  const auto known = std::ranges::find(machine.devices, context, &Device::context);
  if (context == nullptr || known == machine.devices.end()) return CuResult::kInvalidContext;
  ContextStack().push_back(context);
  return CuResult::kSuccess;
}

CuResult cuCtxPopCurrent_v2(CuContext* context) {
  HR_DOUBLE_ENTER();
  if (ContextStack().empty()) return CuResult::kInvalidContext;
  if (context != nullptr) *context = ContextStack().back();
  ContextStack().pop_back();
  return CuResult::kSuccess;
}

CuResult cuCtxGetCurrent(CuContext* context) {
  HR_DOUBLE_ENTER();
  *context = ContextStack().empty() ? nullptr : ContextStack().back();
  return CuResult::kSuccess;
}

CuResult cuCtxSynchronize() {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  return WaitForDevice(lock, ordinal);
}

CuResult cuCtxEnablePeerAccess(CuContext context, unsigned flags) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  const auto peer = std::ranges::find(machine.devices, context, &Device::context);
  if (flags != 0) return CuResult::kInvalidValue;
  if (context == nullptr || peer == machine.devices.end()) return CuResult::kInvalidContext;
  const int number = static_cast<int>(peer - machine.devices.begin());
  if (number == ordinal || !Reaches(ordinal, number)) return CuResult::kPeerAccessUnsupported;
  const bool fresh = machine.devices[static_cast<std::size_t>(ordinal)].peers.insert(number).second;
  return fresh ? CuResult::kSuccess : CuResult::kPeerAccessAlreadyEnabled;
}

}  // namespace headrace::transport
