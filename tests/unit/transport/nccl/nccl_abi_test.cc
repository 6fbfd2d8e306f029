// Our declarations of NCCL against nccl.h, where it is. What differs does not compile.
#include "transport/nccl/nccl_abi.h"

#include <gtest/gtest.h>
#include <nccl.h>

#include <type_traits>

namespace headrace::transport {
namespace {

template <typename Ours, auto kTheirs>
constexpr bool Same(Ours ours) {
  return static_cast<std::uint64_t>(ours) == static_cast<std::uint64_t>(kTheirs);
}

#define HR_SAME(ours, theirs) static_assert(Same<decltype(ours), theirs>(ours))

HR_SAME(NcclResult::kSuccess, ncclSuccess);
HR_SAME(NcclResult::kUnhandledCudaError, ncclUnhandledCudaError);
HR_SAME(NcclResult::kSystemError, ncclSystemError);
HR_SAME(NcclResult::kInternalError, ncclInternalError);
HR_SAME(NcclResult::kInvalidArgument, ncclInvalidArgument);
HR_SAME(NcclResult::kInvalidUsage, ncclInvalidUsage);
HR_SAME(NcclResult::kRemoteError, ncclRemoteError);
HR_SAME(NcclResult::kInProgress, ncclInProgress);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 32, 0)
HR_SAME(NcclResult::kTimeout, ncclTimeout);
#endif

HR_SAME(NcclType::kUInt8, ncclUint8);
HR_SAME(NcclType::kInt32, ncclInt32);
HR_SAME(NcclType::kInt64, ncclInt64);
HR_SAME(NcclType::kFloat16, ncclFloat16);
HR_SAME(NcclType::kFloat32, ncclFloat32);
HR_SAME(NcclType::kFloat64, ncclFloat64);
HR_SAME(NcclType::kBFloat16, ncclBfloat16);

HR_SAME(kNcclSum, ncclSum);
HR_SAME(kNcclProduct, ncclProd);
HR_SAME(kNcclMax, ncclMax);
HR_SAME(kNcclMin, ncclMin);
HR_SAME(kNcclAverage, ncclAvg);
HR_SAME(kNcclOwnReductionsFirst, ncclNumOps);
HR_SAME(kNcclScalarNow, ncclScalarHostImmediate);
static_assert(kNcclUnset == NCCL_CONFIG_UNDEF_INT);

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(sizeof(NcclResult) == sizeof(ncclResult_t));
static_assert(sizeof(NcclType) == sizeof(ncclDataType_t));
static_assert(sizeof(NcclReduction) == sizeof(ncclRedOp_t));

// Later versions append fields; those that we know stay where they are.
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
#define HR_SAME_FIELD(ours, theirs)                                            \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs)); \
  static_assert(sizeof(NcclConfig::ours) == sizeof(ncclConfig_t::theirs))
HR_SAME_FIELD(size, size);
HR_SAME_FIELD(magic, magic);
HR_SAME_FIELD(version, version);
HR_SAME_FIELD(blocking, blocking);
HR_SAME_FIELD(cga_cluster_size, cgaClusterSize);
HR_SAME_FIELD(ctas_min, minCTAs);
HR_SAME_FIELD(ctas_max, maxCTAs);
HR_SAME_FIELD(net_name, netName);
HR_SAME_FIELD(split_share, splitShare);

// Whether a parameter of ours is passed as theirs is.
template <typename Ours, typename Theirs>
constexpr bool kPassedAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> ==
                                          std::is_pointer_v<Theirs>&& std::is_class_v<Ours> ==
                                          std::is_class_v<Theirs>;

template <typename Ours, typename Theirs>
struct CalledAlike : std::false_type {};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct CalledAlike<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<kPassedAlike<OurResult, TheirResult> &&
                         (kPassedAlike<Ours, Theirs> && ...)> {
};

#define HR_CALLED_ALIKE(member, symbol, parameters) \
  static_assert(CalledAlike<decltype(NcclFunctions::member), decltype(&::symbol)>::value, #symbol);
HR_NCCL_FUNCTIONS(HR_CALLED_ALIKE)
HR_NCCL_TEXTS(HR_CALLED_ALIKE)

TEST(NcclAbi, BeginsItsConfigAsTheHeaderDoes) {
  const NcclConfig ours;
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_LE(ours.version, theirs.version);
  EXPECT_EQ(ours.ctas_max, theirs.maxCTAs);
  EXPECT_EQ(ours.net_name, theirs.netName);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
}

}  // namespace
}  // namespace headrace::transport
