#include "transport/nccl/nccl_library.h"

#include <fmt/format.h>

#include "ipc/base/check.h"

namespace headrace::transport {
namespace {

constexpr std::string_view kRemedy =
    "install NCCL for CUDA 12 or later (package libnccl2, or Python's nvidia-nccl-cu12 or -cu13 "
    "and "
    "nccl_library = .../site-packages/nvidia/nccl/lib/libnccl.so.2), or set gpu_lane = nvlink and "
    "gpu_network = staged";

}  // namespace

// From 2.9 on the minor number has two digits.
std::string NcclVersionText(int version) {
  if (version < 10000) {
    return fmt::format("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100);
  }
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

Code CodeOf(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return Code::kOk;
    case NcclResult::kSystemError:
      return Code::kUnavailable;
    case NcclResult::kInvalidArgument:
    case NcclResult::kInvalidUsage:
      return Code::kInvalidArgument;
    case NcclResult::kRemoteError:
      return Code::kPeerLost;
    case NcclResult::kInProgress:
      return Code::kBusy;
    case NcclResult::kTimeout:
      return Code::kTimeout;
    default:
      return Code::kInternal;
  }
}

Result<std::unique_ptr<NcclLibrary>> NcclLibrary::Open(const std::string& library) {
  auto opened = OpenedLibrary::Open(library);
  if (!opened) {
    return Error(opened.error().code(),
                 fmt::format("open NCCL: {}; {}", opened.error().text(), kRemedy));
  }
  std::unique_ptr<NcclLibrary> nccl(new NcclLibrary(std::move(*opened)));
  if (auto done = nccl->CheckVersion(); !done) return done.error();
  if (auto done = nccl->Resolve(); !done) return done.error();
  return nccl;
}

Status NcclLibrary::CheckVersion() {
  // Asked before the rest is resolved: an old library lacks symbols, and its age is the better
  // cause.
  const std::string& library = library_.path();
  void* symbol = library_.Find("ncclGetVersion");
  if (symbol == nullptr) {
    return Error(Code::kVersionMismatch,
                 fmt::format("{} is not NCCL: {}; {}", library, LoaderError(), kRemedy));
  }
  const auto get_version = reinterpret_cast<decltype(functions_.get_version)>(symbol);
  if (const NcclResult result = get_version(&version_); result != NcclResult::kSuccess) {
    return Error(Code::kUnavailable, fmt::format("{} reports no version (NCCL error {})", library,
                                                 static_cast<unsigned>(result)));
  }
  if (version_ < kNcclVersionMin) {
    return Error(Code::kVersionMismatch,
                 fmt::format("{} is NCCL {}, {} or later is needed: {}", library,
                             NcclVersionText(version_), NcclVersionText(kNcclVersionMin), kRemedy));
  }
  return {};
}

Status NcclLibrary::Resolve() {
#define HR_NCCL_FIND(member, symbol, parameters) \
  functions_.member = reinterpret_cast<decltype(functions_.member)>(library_.Find(#symbol));
  HR_NCCL_FUNCTIONS(HR_NCCL_FIND)
  HR_NCCL_TEXTS(HR_NCCL_FIND)
#undef HR_NCCL_FIND
  if (library_.missing() == nullptr) return {};
  return Error(Code::kVersionMismatch,
               fmt::format("{} says that it is NCCL {} and has no {}: {}", library_.path(),
                           NcclVersionText(version_), library_.missing(), kRemedy));
}

Error NcclLibrary::Failed(NcclResult result, std::string_view doing, NcclComm comm) const {
  const char* meaning = functions_.get_error_string(result);
  const char* last = functions_.get_last_error(comm);
  std::string text = fmt::format("{}: NCCL says {}", doing,
                                 meaning != nullptr ? meaning : "nothing that it has words for");
  if (last != nullptr && *last != '\0') text += fmt::format(" ({})", last);
  return Error(CodeOf(result), std::move(text));
}

Status NcclLibrary::Check(NcclResult result, std::string_view doing, NcclComm comm) const {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return {};
  return Failed(result, doing, comm);
}

NcclType NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return NcclType::kFloat32;
    case DType::kFloat64:
      return NcclType::kFloat64;
    case DType::kFloat16:
      return NcclType::kFloat16;
    case DType::kBFloat16:
      return NcclType::kBFloat16;
    case DType::kInt32:
      return NcclType::kInt32;
    case DType::kInt64:
      return NcclType::kInt64;
    case DType::kUInt8:
      return NcclType::kUInt8;
  }
  HR_CHECK(false, static_cast<unsigned>(dtype));
  return {};
}

NcclReduction NcclReductionOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMin:
      return kNcclMin;
    case Reduction::kMax:
      return kNcclMax;
    case Reduction::kProduct:
      return kNcclProduct;
    case Reduction::kSum:
    case Reduction::kAverage:
      break;
  }
  return kNcclSum;
}

}  // namespace headrace::transport
