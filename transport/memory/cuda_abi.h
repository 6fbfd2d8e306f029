// The part of CUDA's driver interface that we use, in our own declarations, so that everything
// builds and is tested where no toolkit is. Names are ours, sizes, offsets and numbers the
// driver's: where cuda.h is present, tests/unit/transport/memory/cuda_abi_test.cc holds every one
// against it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace headrace::transport {

using CuDevice = int;                  // ordinal among the GPUs that this process sees
using CuAddress = unsigned long long;  // NOLINT(google-runtime-int): CUdeviceptr
using CuMemory = unsigned long long;   // NOLINT(google-runtime-int): handle of cuMemCreate
using CuFlags = unsigned long long;    // NOLINT(google-runtime-int)

struct CuContextRecord;
struct CuStreamRecord;
struct CuEventRecord;
struct CuModuleRecord;
struct CuFunctionRecord;
using CuContext = CuContextRecord*;
using CuStream = CuStreamRecord*;  // nullptr: the legacy default stream
using CuEvent = CuEventRecord*;
using CuModule = CuModuleRecord*;
using CuFunction = CuFunctionRecord*;
using CuHostCall = void (*)(void*);

enum class CuResult : std::uint32_t {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kStubLibrary = 34,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kMapFailed = 205,
  kAlreadyMapped = 208,
  kNoBinaryForGpu = 209,
  kNotMapped = 211,
  kEccUncorrectable = 214,
  kPeerAccessUnsupported = 217,
  kNvlinkUncorrectable = 220,
  kContained = 226,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kPeerAccessAlreadyEnabled = 704,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidProgramCounter = 718,
  kLaunchFailed = 719,
  kTensorMemoryLeak = 721,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemNotReady = 802,
  kSystemDriverMismatch = 803,
  kMpsConnectionFailed = 805,
  kMpsRpcFailure = 806,
  kMpsServerNotReady = 807,
  kMpsClientTerminated = 810,
  kExternalDevice = 911,
  kUnknown = 999,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
};

enum class CuDeviceAttribute : std::uint32_t {
  kMultiprocessorCount = 16,
  kAsyncEngineCount = 40,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kHostRegisterSupported = 99,
  kVirtualMemorySupported = 102,
  kPosixFdSupported = 103,
  kRdmaWithVmmSupported = 110,
  kCanUse64BitStreamMemOps = 122,
  kMulticastSupported = 132,
  kMpsEnabled = 133,
};

enum class CuPointerAttribute : std::uint32_t {
  kMemoryType = 2,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kIsLegacyIpcCapable = 10,
  kAllowedHandleTypes = 14,
  kAccessFlags = 16,  // of the GPU of the current context, as CuAccess
  kMappingSize = 18,
  kMappingBase = 19,
};

inline constexpr std::uint32_t kCuMemoryTypeHost = 1;
inline constexpr std::uint32_t kCuMemoryTypeDevice = 2;

enum class CuHandleType : std::uint32_t { kNone = 0, kPosixFd = 1 };
enum class CuGranularity : std::uint32_t { kMinimum = 0, kRecommended = 1 };
enum class CuAccess : std::uint32_t { kNone = 0, kRead = 1, kReadWrite = 3 };
enum class CuLocationType : std::uint32_t { kInvalid = 0, kDevice = 1, kOnHost = 2 };

inline constexpr std::uint32_t kCuAllocationPinned = 1;    // the only allocation type
inline constexpr unsigned kCuIpcLazyEnablePeerAccess = 1;  // cuIpcOpenMemHandle
inline constexpr unsigned kCuHostRegisterPortable = 1;     // for all contexts
inline constexpr unsigned kCuHostRegisterDeviceMap = 2;    // with an address for the device
inline constexpr unsigned kCuStreamDefault = 0;            // ordered with the default stream
inline constexpr unsigned kCuStreamNonBlocking = 1;        // not so
inline constexpr unsigned kCuEventDefault = 0;
inline constexpr unsigned kCuEventDisableTiming = 2;
inline constexpr unsigned kCuWaitGreaterOrEqual = 0;  // cyclic: (int64)(word - value) >= 0
inline constexpr unsigned kCuWriteDefault = 0;        // after a system-wide fence

struct CuUuid {
  std::array<unsigned char, 16> bytes;
};
static_assert(sizeof(CuUuid) == 16);

struct CuIpcHandle {
  std::array<unsigned char, 64> bytes;
};
static_assert(sizeof(CuIpcHandle) == 64);

struct CuLocation {
  CuLocationType type = CuLocationType::kInvalid;
  int id = 0;
};
static_assert(sizeof(CuLocation) == 8);

struct CuAllocationProperties {
  std::uint32_t type = kCuAllocationPinned;
  CuHandleType handle_types = CuHandleType::kNone;
  CuLocation location;
  void* win32_metadata = nullptr;
  std::uint8_t compression = 0;
  std::uint8_t gpu_direct_rdma_capable = 0;
  std::uint16_t usage = 0;
  std::array<std::uint8_t, 4> reserved{};
};
static_assert(sizeof(CuAllocationProperties) == 32);
static_assert(offsetof(CuAllocationProperties, gpu_direct_rdma_capable) == 25);

struct CuAccessDescription {
  CuLocation location;
  CuAccess flags = CuAccess::kNone;
};
static_assert(sizeof(CuAccessDescription) == 12);

// CUmulticastObjectProp.
struct CuMulticastProperties {
  std::uint32_t devices_count = 0;
  std::size_t size = 0;
  CuFlags handle_types = 0;
  CuFlags flags = 0;
};
static_assert(sizeof(CuMulticastProperties) == 32);

// One of each symbol that we resolve: our member, the name in cuda.h, the symbol of the library
// (cuda.h maps the one to the other; the version at its end is part of the interface), parameters.
// Functions are looked up by symbol, so streams passed as nullptr are the legacy default stream.
#define HR_CUDA_FUNCTIONS(X)                                                                     \
  X(driver_get_version, cuDriverGetVersion, cuDriverGetVersion, (int*))                          \
  X(init, cuInit, cuInit, (unsigned))                                                            \
  X(get_error_name, cuGetErrorName, cuGetErrorName, (CuResult, const char**))                    \
  X(get_error_string, cuGetErrorString, cuGetErrorString, (CuResult, const char**))              \
  X(device_get_count, cuDeviceGetCount, cuDeviceGetCount, (int*))                                \
  X(device_get, cuDeviceGet, cuDeviceGet, (CuDevice*, int))                                      \
  X(device_get_name, cuDeviceGetName, cuDeviceGetName, (char*, int, CuDevice))                   \
  X(device_get_uuid, cuDeviceGetUuid, cuDeviceGetUuid_v2, (CuUuid*, CuDevice))                   \
  X(device_total_mem, cuDeviceTotalMem, cuDeviceTotalMem_v2, (std::size_t*, CuDevice))           \
  X(device_get_attribute, cuDeviceGetAttribute, cuDeviceGetAttribute,                            \
    (int*, CuDeviceAttribute, CuDevice))                                                         \
  X(device_can_access_peer, cuDeviceCanAccessPeer, cuDeviceCanAccessPeer,                        \
    (int*, CuDevice, CuDevice))                                                                  \
  X(primary_retain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CuContext*, CuDevice))  \
  X(primary_release, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CuDevice))        \
  X(primary_get_state, cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState,                   \
    (CuDevice, unsigned*, int*))                                                                 \
  X(ctx_push, cuCtxPushCurrent, cuCtxPushCurrent_v2, (CuContext))                                \
  X(ctx_pop, cuCtxPopCurrent, cuCtxPopCurrent_v2, (CuContext*))                                  \
  X(ctx_get_current, cuCtxGetCurrent, cuCtxGetCurrent, (CuContext*))                             \
  X(ctx_synchronize, cuCtxSynchronize, cuCtxSynchronize, ())                                     \
  X(ctx_enable_peer_access, cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, (CuContext, unsigned)) \
  X(mem_get_info, cuMemGetInfo, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                   \
  X(mem_alloc, cuMemAlloc, cuMemAlloc_v2, (CuAddress*, std::size_t))                             \
  X(mem_free, cuMemFree, cuMemFree_v2, (CuAddress))                                              \
  X(mem_get_address_range, cuMemGetAddressRange, cuMemGetAddressRange_v2,                        \
    (CuAddress*, std::size_t*, CuAddress))                                                       \
  X(mem_get_granularity, cuMemGetAllocationGranularity, cuMemGetAllocationGranularity,           \
    (std::size_t*, const CuAllocationProperties*, CuGranularity))                                \
  X(mem_create, cuMemCreate, cuMemCreate,                                                        \
    (CuMemory*, std::size_t, const CuAllocationProperties*, CuFlags))                            \
  X(mem_get_properties, cuMemGetAllocationPropertiesFromHandle,                                  \
    cuMemGetAllocationPropertiesFromHandle, (CuAllocationProperties*, CuMemory))                 \
  X(mem_release, cuMemRelease, cuMemRelease, (CuMemory))                                         \
  X(mem_retain, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (CuMemory*, void*))    \
  X(mem_address_reserve, cuMemAddressReserve, cuMemAddressReserve,                               \
    (CuAddress*, std::size_t, std::size_t, CuAddress, CuFlags))                                  \
  X(mem_address_free, cuMemAddressFree, cuMemAddressFree, (CuAddress, std::size_t))              \
  X(mem_map, cuMemMap, cuMemMap, (CuAddress, std::size_t, std::size_t, CuMemory, CuFlags))       \
  X(mem_unmap, cuMemUnmap, cuMemUnmap, (CuAddress, std::size_t))                                 \
  X(mem_set_access, cuMemSetAccess, cuMemSetAccess,                                              \
    (CuAddress, std::size_t, const CuAccessDescription*, std::size_t))                           \
  X(mem_export, cuMemExportToShareableHandle, cuMemExportToShareableHandle,                      \
    (void*, CuMemory, CuHandleType, CuFlags))                                                    \
  X(mem_import, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle,                  \
    (CuMemory*, void*, CuHandleType))                                                            \
  X(pointer_get_attribute, cuPointerGetAttribute, cuPointerGetAttribute,                         \
    (void*, CuPointerAttribute, CuAddress))                                                      \
  X(ipc_get_mem_handle, cuIpcGetMemHandle, cuIpcGetMemHandle, (CuIpcHandle*, CuAddress))         \
  X(ipc_open_mem_handle, cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2,                              \
    (CuAddress*, CuIpcHandle, unsigned))                                                         \
  X(ipc_close_mem_handle, cuIpcCloseMemHandle, cuIpcCloseMemHandle, (CuAddress))                 \
  X(mem_host_register, cuMemHostRegister, cuMemHostRegister_v2, (void*, std::size_t, unsigned))  \
  X(mem_host_unregister, cuMemHostUnregister, cuMemHostUnregister, (void*))                      \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,        \
    (CuAddress*, void*, unsigned))                                                               \
  X(memcpy_to_device, cuMemcpyHtoD, cuMemcpyHtoD_v2, (CuAddress, const void*, std::size_t))      \
  X(memcpy_to_host, cuMemcpyDtoH, cuMemcpyDtoH_v2, (void*, CuAddress, std::size_t))              \
  X(memcpy_async, cuMemcpyAsync, cuMemcpyAsync, (CuAddress, CuAddress, std::size_t, CuStream))   \
  X(memset_async, cuMemsetD8Async, cuMemsetD8Async,                                              \
    (CuAddress, unsigned char, std::size_t, CuStream))                                           \
  X(stream_create, cuStreamCreateWithPriority, cuStreamCreateWithPriority,                       \
    (CuStream*, unsigned, int))                                                                  \
  X(stream_destroy, cuStreamDestroy, cuStreamDestroy_v2, (CuStream))                             \
  X(stream_is_capturing, cuStreamIsCapturing, cuStreamIsCapturing, (CuStream, std::uint32_t*))   \
  X(stream_query, cuStreamQuery, cuStreamQuery, (CuStream))                                      \
  X(stream_synchronize, cuStreamSynchronize, cuStreamSynchronize, (CuStream))                    \
  X(stream_wait_event, cuStreamWaitEvent, cuStreamWaitEvent, (CuStream, CuEvent, unsigned))      \
  X(stream_write_value, cuStreamWriteValue64, cuStreamWriteValue64_v2,                           \
    (CuStream, CuAddress, std::uint64_t, unsigned))                                              \
  X(stream_wait_value, cuStreamWaitValue64, cuStreamWaitValue64_v2,                              \
    (CuStream, CuAddress, std::uint64_t, unsigned))                                              \
  X(launch_host_call, cuLaunchHostFunc, cuLaunchHostFunc, (CuStream, CuHostCall, void*))         \
  X(event_create, cuEventCreate, cuEventCreate, (CuEvent*, unsigned))                            \
  X(event_destroy, cuEventDestroy, cuEventDestroy_v2, (CuEvent))                                 \
  X(event_record, cuEventRecord, cuEventRecord, (CuEvent, CuStream))                             \
  X(event_query, cuEventQuery, cuEventQuery, (CuEvent))                                          \
  X(event_synchronize, cuEventSynchronize, cuEventSynchronize, (CuEvent))                        \
  X(module_load_data, cuModuleLoadData, cuModuleLoadData, (CuModule*, const void*))              \
  X(module_unload, cuModuleUnload, cuModuleUnload, (CuModule))                                   \
  X(module_get_function, cuModuleGetFunction, cuModuleGetFunction,                               \
    (CuFunction*, CuModule, const char*))                                                        \
  X(launch_kernel, cuLaunchKernel, cuLaunchKernel,                                               \
    (CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, \
     void**, void**))

// The functions of an open library, none of them null.
struct CudaFunctions {
#define HR_CUDA_MEMBER(member, name, symbol, parameters) CuResult(*member) parameters = nullptr;
  HR_CUDA_FUNCTIONS(HR_CUDA_MEMBER)
#undef HR_CUDA_MEMBER
};

// The same of functions that drivers for CUDA 12.0 do not have.
#define HR_CUDA_MULTICAST_FUNCTIONS(X)                                                            \
  X(create, cuMulticastCreate, cuMulticastCreate, (CuMemory*, const CuMulticastProperties*))      \
  X(add_device, cuMulticastAddDevice, cuMulticastAddDevice, (CuMemory, CuDevice))                 \
  X(bind_address, cuMulticastBindAddr, cuMulticastBindAddr,                                       \
    (CuMemory, std::size_t, CuAddress, std::size_t, CuFlags))                                     \
  X(unbind, cuMulticastUnbind, cuMulticastUnbind, (CuMemory, CuDevice, std::size_t, std::size_t)) \
  X(get_granularity, cuMulticastGetGranularity, cuMulticastGetGranularity,                        \
    (std::size_t*, const CuMulticastProperties*, CuGranularity))

struct CudaMulticast {
#define HR_CUDA_MEMBER(member, name, symbol, parameters) CuResult(*member) parameters = nullptr;
  HR_CUDA_MULTICAST_FUNCTIONS(HR_CUDA_MEMBER)
#undef HR_CUDA_MEMBER
};

}  // namespace headrace::transport
