// Our declarations of CUDA's driver against cuda.h, where the toolkit is. What differs does not
// compile.
#include "transport/memory/cuda_abi.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <string_view>
#include <type_traits>

#include "tests/support/cuda_double/cuda_double.h"

namespace headrace::transport {
namespace {

template <typename Ours, auto kTheirs>
constexpr bool Same(Ours ours) {
  return static_cast<std::uint64_t>(ours) == static_cast<std::uint64_t>(kTheirs);
}

#define HR_SAME(ours, theirs) static_assert(Same<decltype(ours), theirs>(ours))

HR_SAME(CuResult::kSuccess, CUDA_SUCCESS);
HR_SAME(CuResult::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
HR_SAME(CuResult::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
HR_SAME(CuResult::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
HR_SAME(CuResult::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
HR_SAME(CuResult::kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
HR_SAME(CuResult::kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
HR_SAME(CuResult::kNoDevice, CUDA_ERROR_NO_DEVICE);
HR_SAME(CuResult::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
HR_SAME(CuResult::kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
HR_SAME(CuResult::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
HR_SAME(CuResult::kMapFailed, CUDA_ERROR_MAP_FAILED);
HR_SAME(CuResult::kAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED);
HR_SAME(CuResult::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
HR_SAME(CuResult::kNotMapped, CUDA_ERROR_NOT_MAPPED);
HR_SAME(CuResult::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
HR_SAME(CuResult::kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
HR_SAME(CuResult::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
HR_SAME(CuResult::kNotFound, CUDA_ERROR_NOT_FOUND);
HR_SAME(CuResult::kNotReady, CUDA_ERROR_NOT_READY);
HR_SAME(CuResult::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
HR_SAME(CuResult::kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
HR_SAME(CuResult::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
HR_SAME(CuResult::kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
HR_SAME(CuResult::kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
HR_SAME(CuResult::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
HR_SAME(CuResult::kContained, CUDA_ERROR_CONTAINED);
HR_SAME(CuResult::kTensorMemoryLeak, CUDA_ERROR_TENSOR_MEMORY_LEAK);
HR_SAME(CuResult::kMpsRpcFailure, CUDA_ERROR_MPS_RPC_FAILURE);
HR_SAME(CuResult::kMpsClientTerminated, CUDA_ERROR_MPS_CLIENT_TERMINATED);
HR_SAME(CuResult::kExternalDevice, CUDA_ERROR_EXTERNAL_DEVICE);
HR_SAME(CuResult::kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
HR_SAME(CuResult::kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
HR_SAME(CuResult::kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
HR_SAME(CuResult::kAssert, CUDA_ERROR_ASSERT);
HR_SAME(CuResult::kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
HR_SAME(CuResult::kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
HR_SAME(CuResult::kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
HR_SAME(CuResult::kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
HR_SAME(CuResult::kInvalidProgramCounter, CUDA_ERROR_INVALID_PC);
HR_SAME(CuResult::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
HR_SAME(CuResult::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
HR_SAME(CuResult::kSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY);
HR_SAME(CuResult::kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
HR_SAME(CuResult::kMpsConnectionFailed, CUDA_ERROR_MPS_CONNECTION_FAILED);
HR_SAME(CuResult::kMpsServerNotReady, CUDA_ERROR_MPS_SERVER_NOT_READY);
HR_SAME(CuResult::kUnknown, CUDA_ERROR_UNKNOWN);

HR_SAME(CuDeviceAttribute::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
HR_SAME(CuDeviceAttribute::kAsyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
HR_SAME(CuDeviceAttribute::kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
HR_SAME(CuDeviceAttribute::kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
HR_SAME(CuDeviceAttribute::kHostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
HR_SAME(CuDeviceAttribute::kVirtualMemorySupported,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
HR_SAME(CuDeviceAttribute::kPosixFdSupported,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
HR_SAME(CuDeviceAttribute::kRdmaWithVmmSupported,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
HR_SAME(CuDeviceAttribute::kCanUse64BitStreamMemOps,
        CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
HR_SAME(CuDeviceAttribute::kMulticastSupported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
HR_SAME(CuDeviceAttribute::kMpsEnabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);

HR_SAME(CuPointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
HR_SAME(CuPointerAttribute::kIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
HR_SAME(CuPointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
HR_SAME(CuPointerAttribute::kIsLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
HR_SAME(CuPointerAttribute::kAllowedHandleTypes, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
HR_SAME(CuPointerAttribute::kMappingSize, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
HR_SAME(CuPointerAttribute::kAccessFlags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS);
HR_SAME(CuPointerAttribute::kMappingBase, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
HR_SAME(kCuMemoryTypeHost, CU_MEMORYTYPE_HOST);
HR_SAME(kCuMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);

HR_SAME(CuHandleType::kNone, CU_MEM_HANDLE_TYPE_NONE);
HR_SAME(CuHandleType::kPosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
HR_SAME(CuGranularity::kMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
HR_SAME(CuGranularity::kRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
HR_SAME(CuAccess::kNone, CU_MEM_ACCESS_FLAGS_PROT_NONE);
HR_SAME(CuAccess::kRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
HR_SAME(CuAccess::kReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
HR_SAME(CuLocationType::kDevice, CU_MEM_LOCATION_TYPE_DEVICE);
HR_SAME(CuLocationType::kOnHost, CU_MEM_LOCATION_TYPE_HOST);
HR_SAME(kCuAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
HR_SAME(kCuIpcLazyEnablePeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
HR_SAME(kCuHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
HR_SAME(kCuHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
HR_SAME(kCuStreamDefault, CU_STREAM_DEFAULT);
HR_SAME(kCuStreamNonBlocking, CU_STREAM_NON_BLOCKING);
HR_SAME(kCuEventDefault, CU_EVENT_DEFAULT);
HR_SAME(kCuEventDisableTiming, CU_EVENT_DISABLE_TIMING);
HR_SAME(kCuWaitGreaterOrEqual, CU_STREAM_WAIT_VALUE_GEQ);
HR_SAME(kCuWriteDefault, CU_STREAM_WRITE_VALUE_DEFAULT);

#define HR_SAME_PLACE(ours, our_member, theirs, their_member)                   \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) && \
                sizeof(ours::our_member) == sizeof(theirs::their_member))

static_assert(sizeof(CuUuid) == sizeof(CUuuid));
static_assert(sizeof(CuIpcHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(CuLocation) == sizeof(CUmemLocation));
HR_SAME_PLACE(CuLocation, type, CUmemLocation, type);
HR_SAME_PLACE(CuLocation, id, CUmemLocation, id);
static_assert(sizeof(CuAccessDescription) == sizeof(CUmemAccessDesc));
HR_SAME_PLACE(CuAccessDescription, location, CUmemAccessDesc, location);
HR_SAME_PLACE(CuAccessDescription, flags, CUmemAccessDesc, flags);
static_assert(sizeof(CuAllocationProperties) == sizeof(CUmemAllocationProp));
HR_SAME_PLACE(CuAllocationProperties, type, CUmemAllocationProp, type);
HR_SAME_PLACE(CuAllocationProperties, handle_types, CUmemAllocationProp, requestedHandleTypes);
HR_SAME_PLACE(CuAllocationProperties, location, CUmemAllocationProp, location);
HR_SAME_PLACE(CuAllocationProperties, win32_metadata, CUmemAllocationProp, win32HandleMetaData);
HR_SAME_PLACE(CuAllocationProperties, compression, CUmemAllocationProp, allocFlags.compressionType);
HR_SAME_PLACE(CuAllocationProperties, gpu_direct_rdma_capable, CUmemAllocationProp,
              allocFlags.gpuDirectRDMACapable);
HR_SAME_PLACE(CuAllocationProperties, usage, CUmemAllocationProp, allocFlags.usage);
static_assert(sizeof(CuMulticastProperties) == sizeof(CUmulticastObjectProp));
HR_SAME_PLACE(CuMulticastProperties, devices_count, CUmulticastObjectProp, numDevices);
HR_SAME_PLACE(CuMulticastProperties, size, CUmulticastObjectProp, size);
HR_SAME_PLACE(CuMulticastProperties, handle_types, CUmulticastObjectProp, handleTypes);
HR_SAME_PLACE(CuMulticastProperties, flags, CUmulticastObjectProp, flags);
HR_SAME(CuGranularity::kMinimum, CU_MULTICAST_GRANULARITY_MINIMUM);
HR_SAME_PLACE(CuAllocationProperties, reserved, CUmemAllocationProp, allocFlags.reserved);
#if CUDA_VERSION >= 12030
// What only the doubles use.
HR_SAME(CudaDoubleLaunchAttribute::kLaunchCompletionEvent,
        CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
static_assert(sizeof(CudaDoubleLaunchAttribute) == sizeof(CUlaunchAttribute));
HR_SAME_PLACE(CudaDoubleLaunchAttribute, event, CUlaunchAttribute,
              value.launchCompletionEvent.event);
HR_SAME_PLACE(CudaDoubleLaunchAttribute, flags, CUlaunchAttribute,
              value.launchCompletionEvent.flags);
static_assert(sizeof(CudaDoubleLaunchConfig) == sizeof(CUlaunchConfig));
HR_SAME_PLACE(CudaDoubleLaunchConfig, shared_size, CUlaunchConfig, sharedMemBytes);
HR_SAME_PLACE(CudaDoubleLaunchConfig, stream, CUlaunchConfig, hStream);
HR_SAME_PLACE(CudaDoubleLaunchConfig, attributes, CUlaunchConfig, attrs);
HR_SAME_PLACE(CudaDoubleLaunchConfig, attributes_count, CUlaunchConfig, numAttrs);
#endif

// Parameters are the same to a caller when they are passed alike: as pointers, integers of one
// size, or bytes of one size in memory.
template <typename Ours, typename Theirs>
constexpr bool kPassedAlike =
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    sizeof(Ours) == sizeof(Theirs) && std::is_class_v<Ours> == std::is_class_v<Theirs>;

template <typename Ours, typename Theirs>
struct CalledAlike : std::false_type {};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct CalledAlike<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<kPassedAlike<OurResult, TheirResult> &&
                         (kPassedAlike<Ours, Theirs> && ...)> {
};

// A name of cuda.h is a macro for the symbol of the current version of its function.
#define HR_CUDA_ALIKE(member, name, symbol, parameters) \
  static_assert(CalledAlike<decltype(CudaFunctions::member), decltype(&name)>::value, #symbol);
HR_CUDA_FUNCTIONS(HR_CUDA_ALIKE)

#define HR_CUDA_MULTICAST_ALIKE(member, name, symbol, parameters) \
  static_assert(CalledAlike<decltype(CudaMulticast::member), decltype(&name)>::value, #symbol);
HR_CUDA_MULTICAST_FUNCTIONS(HR_CUDA_MULTICAST_ALIKE)

// `#symbol` is what we look up; `name` is expanded by cuda.h on its way into HR_TEXT.
#define HR_TEXT(symbol) #symbol
#define HR_CUDA_VERSION(member, name, symbol, parameters) \
  static_assert(std::string_view(#symbol) == HR_TEXT(name));
HR_CUDA_FUNCTIONS(HR_CUDA_VERSION)
HR_CUDA_MULTICAST_FUNCTIONS(HR_CUDA_VERSION)

TEST(CudaAbi, IsWhatTheHeaderOfTheToolkitSays) {
  RecordProperty("cuda_version", CUDA_VERSION);
  EXPECT_GE(CUDA_VERSION, 12000) << "an older header says nothing about the driver we need";
}

}  // namespace
}  // namespace headrace::transport
