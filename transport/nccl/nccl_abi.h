// The part of NCCL's interface that we use, in our own declarations, so that everything builds and
// is tested where no NCCL is. Names are ours, sizes, offsets and numbers NCCL's: where nccl.h is
// present, tests/unit/transport/nccl/nccl_abi_test.cc holds every one against it.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "transport/memory/cuda_abi.h"

namespace headrace::transport {

struct NcclCommRecord;
using NcclComm = NcclCommRecord*;

// Names a set of ranks that belong together; made by one of them, used for one set only.
struct NcclId {
  std::array<char, 128> bytes{};
  friend bool operator==(const NcclId&, const NcclId&) = default;
};
static_assert(sizeof(NcclId) == 128);

enum class NcclResult : std::uint32_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};

enum class NcclType : std::uint32_t {
  kUInt8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

// A plain number: reductions that are made at run time have numbers from 5 on.
using NcclReduction = std::uint32_t;
inline constexpr NcclReduction kNcclSum = 0;
inline constexpr NcclReduction kNcclProduct = 1;
inline constexpr NcclReduction kNcclMax = 2;
inline constexpr NcclReduction kNcclMin = 3;
inline constexpr NcclReduction kNcclAverage = 4;
inline constexpr NcclReduction kNcclOwnReductionsFirst = 5;

inline constexpr std::uint32_t kNcclScalarNow = 1;  // the scalar is read during the call
inline constexpr int kNcclUnset = INT_MIN;

// As NCCL 2.18 has it. Later versions append fields, and read the size to know which are there.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  std::uint32_t magic = 0xcafebeef;
  std::uint32_t version = 21800;
  int blocking = 0;  // calls return at once, and ncclCommGetAsyncError tells how they end
  int cga_cluster_size = kNcclUnset;
  int ctas_min = kNcclUnset;
  int ctas_max = kNcclUnset;
  const char* net_name = nullptr;
  int split_share = kNcclUnset;
};
static_assert(sizeof(NcclConfig) == 48);
static_assert(offsetof(NcclConfig, blocking) == 16);
static_assert(offsetof(NcclConfig, ctas_max) == 28);
static_assert(offsetof(NcclConfig, net_name) == 32);
static_assert(offsetof(NcclConfig, split_share) == 40);

// One of each symbol that we resolve and that returns a result: our member, the symbol, parameters.
#define HR_NCCL_FUNCTIONS(X)                                                             \
  X(get_version, ncclGetVersion, (int*))                                                 \
  X(get_unique_id, ncclGetUniqueId, (NcclId*))                                           \
  X(init_rank, ncclCommInitRankConfig, (NcclComm*, int, NcclId, int, NcclConfig*))       \
  X(finalize, ncclCommFinalize, (NcclComm))                                              \
  X(destroy, ncclCommDestroy, (NcclComm))                                                \
  X(abort, ncclCommAbort, (NcclComm))                                                    \
  X(get_async_error, ncclCommGetAsyncError, (NcclComm, NcclResult*))                     \
  X(group_start, ncclGroupStart, ())                                                     \
  X(group_end, ncclGroupEnd, ())                                                         \
  X(make_scaled_sum, ncclRedOpCreatePreMulSum,                                           \
    (NcclReduction*, void*, NcclType, std::uint32_t, NcclComm))                          \
  X(drop_reduction, ncclRedOpDestroy, (NcclReduction, NcclComm))                         \
  X(all_reduce, ncclAllReduce,                                                           \
    (const void*, void*, std::size_t, NcclType, NcclReduction, NcclComm, CuStream))      \
  X(reduce, ncclReduce,                                                                  \
    (const void*, void*, std::size_t, NcclType, NcclReduction, int, NcclComm, CuStream)) \
  X(broadcast, ncclBroadcast,                                                            \
    (const void*, void*, std::size_t, NcclType, int, NcclComm, CuStream))                \
  X(reduce_scatter, ncclReduceScatter,                                                   \
    (const void*, void*, std::size_t, NcclType, NcclReduction, NcclComm, CuStream))      \
  X(all_gather, ncclAllGather, (const void*, void*, std::size_t, NcclType, NcclComm, CuStream))

// And those that return words.
#define HR_NCCL_TEXTS(X)                                \
  X(get_error_string, ncclGetErrorString, (NcclResult)) \
  X(get_last_error, ncclGetLastError, (NcclComm))

// The functions of an open library, none of them null.
struct NcclFunctions {
#define HR_NCCL_MEMBER(member, symbol, parameters) NcclResult(*member) parameters = nullptr;
  HR_NCCL_FUNCTIONS(HR_NCCL_MEMBER)
#undef HR_NCCL_MEMBER
#define HR_NCCL_MEMBER(member, symbol, parameters) const char*(*member)parameters = nullptr;
  HR_NCCL_TEXTS(HR_NCCL_MEMBER)
#undef HR_NCCL_MEMBER
};

}  // namespace headrace::transport
