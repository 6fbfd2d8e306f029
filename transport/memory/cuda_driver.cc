#include "transport/memory/cuda_driver.h"

#include <fmt/format.h>

namespace headrace::transport {

std::string CudaVersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

bool BreaksContext(CuResult result) {
  switch (result) {
    case CuResult::kEccUncorrectable:
    case CuResult::kNvlinkUncorrectable:
    case CuResult::kContained:
    case CuResult::kIllegalAddress:
    case CuResult::kLaunchTimeout:
    case CuResult::kContextIsDestroyed:
    case CuResult::kAssert:
    case CuResult::kHardwareStackError:
    case CuResult::kIllegalInstruction:
    case CuResult::kMisalignedAddress:
    case CuResult::kInvalidAddressSpace:
    case CuResult::kInvalidProgramCounter:
    case CuResult::kLaunchFailed:
    case CuResult::kTensorMemoryLeak:
    case CuResult::kMpsRpcFailure:
    case CuResult::kMpsClientTerminated:
    case CuResult::kExternalDevice:
      return true;
    default:
      return false;
  }
}

Code CodeOf(CuResult result) {
  // Another process can do it: whoever asked may come back once there is one.
  if (BreaksContext(result)) return Code::kUnavailable;
  switch (result) {
    case CuResult::kSuccess:
      return Code::kOk;
    case CuResult::kInvalidValue:
    case CuResult::kInvalidDevice:
    case CuResult::kInvalidHandle:
    case CuResult::kInvalidImage:
    case CuResult::kNoBinaryForGpu:
      return Code::kInvalidArgument;
    case CuResult::kOutOfMemory:
      return Code::kExhausted;
    case CuResult::kNotReady:
      return Code::kBusy;
    case CuResult::kNotFound:
      return Code::kNotFound;
    case CuResult::kNotPermitted:
      return Code::kPermissionDenied;
    case CuResult::kSystemDriverMismatch:
    case CuResult::kStubLibrary:
      return Code::kVersionMismatch;
    case CuResult::kNoDevice:
    case CuResult::kDeviceUnavailable:
    case CuResult::kNotSupported:
    case CuResult::kPeerAccessUnsupported:
    case CuResult::kSystemNotReady:
    case CuResult::kMpsConnectionFailed:
    case CuResult::kMpsServerNotReady:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

Result<std::unique_ptr<CudaDriver>> CudaDriver::Open(const std::string& library) {
  auto opened = OpenedLibrary::Open(library);
  if (!opened) {
    return Error(opened.error().code(),
                 fmt::format("open CUDA's driver: {}; install NVIDIA's driver, or start the "
                             "container with NVIDIA's runtime",
                             opened.error().text()));
  }
  std::unique_ptr<CudaDriver> driver(new CudaDriver(std::move(*opened)));
  if (auto done = driver->CheckVersion(); !done) return done.error();
  if (auto done = driver->Resolve(); !done) return done.error();
  if (auto done = driver->Start(); !done) return done.error().Within("start CUDA's driver");
  return driver;
}

Status CudaDriver::CheckVersion() {
  // Asked before the rest is resolved: an old driver lacks symbols, and its age is the better
  // cause.
  const std::string& library = library_.path();
  void* symbol = library_.Find("cuDriverGetVersion");
  if (symbol == nullptr) {
    return Error(Code::kVersionMismatch,
                 fmt::format("{} is not CUDA's driver: {}", library, LoaderError()));
  }
  const auto get_version = reinterpret_cast<decltype(functions_.driver_get_version)>(symbol);
  const CuResult result = get_version(&version_);
  if (result == CuResult::kStubLibrary) {
    return Error(Code::kVersionMismatch,
                 fmt::format("{} is the CUDA toolkit's stub, for linking only: take its folder out "
                             "of LD_LIBRARY_PATH",
                             library));
  }
  if (result != CuResult::kSuccess) {
    return Error(Code::kUnavailable, fmt::format("{} reports no version (CUDA error {})", library,
                                                 static_cast<unsigned>(result)));
  }
  if (version_ < kCudaVersionMin) {
    return Error(Code::kVersionMismatch,
                 fmt::format("{} is a driver for CUDA {}, {} or later is needed: install NVIDIA's "
                             "driver 525 or later",
                             library, CudaVersionText(version_), CudaVersionText(kCudaVersionMin)));
  }
  return {};
}

Status CudaDriver::Resolve() {
#define HR_CUDA_FIND(member, name, symbol, parameters) \
  functions_.member = reinterpret_cast<decltype(functions_.member)>(library_.Find(#symbol));
  HR_CUDA_FUNCTIONS(HR_CUDA_FIND)
#undef HR_CUDA_FIND
  if (library_.missing() == nullptr) {
    CudaMulticast multicast;
#define HR_CUDA_FIND(member, name, symbol, parameters) \
  multicast.member = reinterpret_cast<decltype(multicast.member)>(library_.Find(#symbol));
    HR_CUDA_MULTICAST_FUNCTIONS(HR_CUDA_FIND)
#undef HR_CUDA_FIND
    if (library_.missing() == nullptr) multicast_ = multicast;
    return {};
  }
  return Error(
      Code::kVersionMismatch,
      fmt::format("{} says that it is a driver for CUDA {} and has no {}: install NVIDIA's "
                  "driver anew",
                  library_.path(), CudaVersionText(version_), library_.missing()));
}

Status CudaDriver::Start() {
  const auto no_device = [] {
    return Error(Code::kUnavailable,
                 "cuInit finds no GPU: check nvidia-smi, CUDA_VISIBLE_DEVICES, and that the "
                 "container was given one");
  };
  const CuResult started = functions_.init(0);
  if (started == CuResult::kNoDevice) return no_device();
  if (started != CuResult::kSuccess) return Failed(started, "cuInit");
  if (auto done = Check(functions_.device_get_count(&devices_count_), "count GPUs"); !done) {
    return done;
  }
  if (devices_count_ == 0) return no_device();
  return {};
}

Error CudaDriver::Failed(CuResult result, std::string_view doing) const {
  const char* name = nullptr;
  const char* meaning = nullptr;
  std::string text;
  if (functions_.get_error_name(result, &name) != CuResult::kSuccess || name == nullptr) {
    text = fmt::format("{}: CUDA error {}", doing, static_cast<unsigned>(result));
  } else {
    if (functions_.get_error_string(result, &meaning) != CuResult::kSuccess || meaning == nullptr) {
      meaning = "no description";
    }
    text = fmt::format("{}: {} ({})", doing, name, meaning);
  }
  NoteBroken(result, text);
  return Error(CodeOf(result), std::move(text));
}

void CudaDriver::NoteBroken(CuResult result, const std::string& cause) const {
  if (!BreaksContext(result) || !on_broken_ || broken_reported_.exchange(true)) return;
  if (!on_broken_(cause)) broken_reported_ = false;
}

Status CudaDriver::Check(CuResult result, std::string_view doing) const {
  if (result == CuResult::kSuccess) return {};
  return Failed(result, doing);
}

void CudaDriver::NoteRelease(CuResult result) const {
  if (result == CuResult::kSuccess) return;
  ++releases_failed_;
  // What was released says nothing of what broke the context, but may be the first to meet it.
  if (BreaksContext(result)) (void)Failed(result, "release what CUDA made");
}

}  // namespace headrace::transport
