#include "client/cli/ctl/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ipc/base/unique_handle.h"

namespace headrace::ctl {
namespace {

struct LibraryTraits {
  using Value = void*;
  static Value None() { return nullptr; }
  static void Release(Value library) { ::dlclose(library); }
};
using OpenedLibrary = UniqueHandle<LibraryTraits>;

OpenedLibrary OpenLibrary(const char* name, std::string& error) {
  OpenedLibrary library(::dlopen(name, RTLD_NOW | RTLD_LOCAL));
  // The loader's words tell a library that is not there from one that lacks another.
  if (!library) error = ::dlerror();
  return library;
}

// A function of the library; the caller knows its type from the vendor's documents.
template <typename Function>
Function* Find(const OpenedLibrary& library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library.get(), name));
}

Library FindUcx() {
  Library ucx;
  const OpenedLibrary library = OpenLibrary("libucp.so.0", ucx.error);
  if (!library) return ucx;
  ucx.is_found = true;
  auto* get_version = Find<void(unsigned*, unsigned*, unsigned*)>(library, "ucp_get_version");
  if (get_version == nullptr) return ucx;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  get_version(&major, &minor, &release);
  ucx.version = fmt::format("{}.{}.{}", major, minor, release);
  return ucx;
}

Library FindNccl() {
  Library nccl;
  const OpenedLibrary library = OpenLibrary("libnccl.so.2", nccl.error);
  if (!library) return nccl;
  nccl.is_found = true;
  auto* get_version = Find<int(int*)>(library, "ncclGetVersion");
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return nccl;
  // 2.9 and later: 10000 * major + 100 * minor + patch; before: 1000 * major.
  const int unit = version >= 10000 ? 10000 : 1000;
  nccl.version = fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
  return nccl;
}

// The devices' names. None of these calls makes a context: nothing is left on a device.
void FindDevices(const OpenedLibrary& cuda, Libraries& libraries) {
  auto* get_count = Find<int(int*)>(cuda, "cuDeviceGetCount");
  auto* get_device = Find<int(int*, int)>(cuda, "cuDeviceGet");
  auto* get_name = Find<int(char*, int, int)>(cuda, "cuDeviceGetName");
  int count = 0;
  if (get_count == nullptr || get_device == nullptr || get_name == nullptr) return;
  if (get_count(&count) != 0) return;
  constexpr int kDevicesMax = 64;
  for (int index = 0; index < std::min(count, kDevicesMax); ++index) {
    int device = 0;
    std::array<char, 128> name{};
    const bool is_known = get_device(&device, index) == 0 &&
                          get_name(name.data(), static_cast<int>(name.size()) - 1, device) == 0;
    libraries.gpus.push_back(is_known ? name.data() : "a device without a name");
  }
}

void FindCuda(Libraries& libraries) {
  std::string error;
  const OpenedLibrary cuda = OpenLibrary("libcuda.so.1", error);
  if (!cuda) {
    libraries.cuda_error = error;
    return;
  }
  // CUresult is an int, 0 is success.
  auto* initialise = Find<int(unsigned)>(cuda, "cuInit");
  auto* get_version = Find<int(int*)>(cuda, "cuDriverGetVersion");
  int version = 0;
  if (initialise == nullptr || get_version == nullptr) {
    libraries.cuda_error = "libcuda.so.1 lacks cuInit or cuDriverGetVersion";
  } else if (const int result = initialise(0); result != 0) {
    libraries.cuda_error = fmt::format("cuInit gives CUresult {}", result);
  } else if (get_version(&version) == 0) {
    libraries.cuda_driver_version = version;
    FindDevices(cuda, libraries);
  } else {
    libraries.cuda_error = "cuDriverGetVersion failed";
  }
}

}  // namespace

Libraries FindLibraries() {
  Libraries libraries;
  libraries.ucx = FindUcx();
  libraries.nccl = FindNccl();
  FindCuda(libraries);
  return libraries;
}

}  // namespace headrace::ctl
