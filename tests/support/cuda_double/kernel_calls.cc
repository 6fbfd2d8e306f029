// Modules, whose kernels are host code that the test registered by name (CUDA Driver API, Module
// Management, Execution Control).
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "tests/support/cuda_double/machine.h"

namespace headrace::cuda_double {
namespace {

constexpr unsigned kThreadsMax = 1024;  // of a block

// What nvcc makes: a fatbin or the wrapper around it, a cubin, PTX.
bool IsImage(const void* image) {
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  if (magic == 0xba55ed50 || magic == 0x466243b1 || magic == 0x464c457f) return true;
  const std::string_view text(static_cast<const char*>(image), 8);
  return text.starts_with("//") || text.starts_with(".version");
}

// Puts the kernel into its stream; `launched` is its end.
CuResult Launch(Lock& lock, const CudaDoubleLaunchConfig& config, CuFunction function,
                void** parameters, void** extra, Point& launched) {
  Machine& machine = TheMachine();
  std::shared_ptr<StreamState> found;
  if (const CuResult result = FindStream(config.stream, found); result != CuResult::kSuccess)
    return result;
  const CuResult breaking = machine.breaking;
  const DeviceLock device(lock, found->ordinal, DeviceLock::Takes::kNoTime);
  machine.breaking = breaking;  // of this call, not of those that went ahead meanwhile
  const auto entry = machine.functions.find(function);
  if (entry == machine.functions.end()) return CuResult::kInvalidHandle;
  if (machine.modules[entry->second.module] != found->ordinal) return CuResult::kInvalidHandle;
  const Kernel& kernel = entry->second.kernel;
  const std::uint64_t threads = std::uint64_t{config.block[0]} * config.block[1] * config.block[2];
  const std::uint64_t blocks = std::uint64_t{config.grid[0]} * config.grid[1] * config.grid[2];
  if (extra != nullptr || threads == 0 || threads > kThreadsMax) return CuResult::kInvalidValue;
  if (blocks == 0) return CuResult::kInvalidValue;
  if (parameters == nullptr && !kernel.parameter_sizes.empty()) return CuResult::kInvalidValue;
  // Parameters are read now; the caller's may be gone when the stream comes to the kernel.
  std::vector<std::vector<std::byte>> copies;
  for (std::size_t i = 0; i < kernel.parameter_sizes.size(); ++i) {
    const auto* bytes = static_cast<const std::byte*>(parameters[i]);
    copies.emplace_back(bytes, bytes + kernel.parameter_sizes[i]);
  }
  CudaDoubleLaunch launch{found->ordinal,
                          {config.grid[0], config.grid[1], config.grid[2]},
                          {config.block[0], config.block[1], config.block[2]},
                          config.shared_size,
                          nullptr};
  const auto run = [body = kernel.body, launch, copies]() mutable {
    std::vector<void*> pointers;
    for (auto& copy : copies) pointers.push_back(copy.data());
    launch.parameters = pointers.data();
    body(&launch);
    const Lock after(TheMachine().mutex);
    return TheMachine().devices[static_cast<std::size_t>(launch.device)].sticky;
  };
  const auto all = static_cast<std::uint64_t>(machine.settings.multiprocessors) * kThreadsResident;
  launched = Post(found, run, {.after = {}, .threads = std::min(all, blocks * threads)});
  return CuResult::kSuccess;
}

}  // namespace
}  // namespace headrace::cuda_double

namespace headrace::transport {
using namespace headrace::cuda_double;  // NOLINT(google-build-using-namespace)

CuResult cuModuleLoadData(CuModule* module, const void* image) {
  HR_DOUBLE_ENTER();
  int ordinal = 0;
  if (const CuResult result = CurrentOrdinal(ordinal); result != CuResult::kSuccess) return result;
  if (module == nullptr || image == nullptr) return CuResult::kInvalidValue;
  if (!IsImage(image)) return CuResult::kInvalidImage;
  *module = machine.NewToken<CuModule>();
  machine.modules[*module] = ordinal;
  return CuResult::kSuccess;
}

CuResult cuModuleUnload(CuModule module) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  const auto found = machine.modules.find(module);
  // Handles that are none are invalid values here, as the page lists them (CUDA Driver API, Module
  // Management).
  if (found == machine.modules.end()) return CuResult::kInvalidValue;
  machine.modules.erase(found);
  std::erase_if(machine.functions,
                [module](const auto& entry) { return entry.second.module == module; });
  return CuResult::kSuccess;
}

CuResult cuModuleGetFunction(CuFunction* function, CuModule module, const char* name) {
  HR_DOUBLE_ENTER_IN_CONTEXT();
  if (function == nullptr || name == nullptr) return CuResult::kInvalidValue;
  if (!machine.modules.contains(module)) return CuResult::kInvalidValue;
  const auto kernel = machine.kernels.find(name);
  if (kernel == machine.kernels.end()) return CuResult::kNotFound;
  *function = machine.NewToken<CuFunction>();
  machine.functions[*function] = {module, kernel->second};
  return CuResult::kSuccess;
}

CuResult cuLaunchKernel(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_size,
                        CuStream stream, void** parameters, void** extra) {
  HR_DOUBLE_ENTER();
  const CudaDoubleLaunchConfig config{.grid = {grid_x, grid_y, grid_z},
                                      .block = {block_x, block_y, block_z},
                                      .shared_size = shared_size,
                                      .stream = stream,
                                      .attributes = nullptr,
                                      .attributes_count = 0};
  Point launched;
  return Launch(lock, config, function, parameters, extra, launched);
}

// Not among what the project declares of the driver.
extern "C" __attribute__((visibility("default"))) CuResult cuLaunchKernelEx(
    const CudaDoubleLaunchConfig* config, CuFunction function, void** parameters, void** extra) {
  HR_DOUBLE_ENTER();
  if (config == nullptr || config->attributes_count > 1) return CuResult::kInvalidValue;
  const CudaDoubleLaunchAttribute* const completion =
      config->attributes_count == 1 ? config->attributes : nullptr;
  if (completion != nullptr) {
    if (completion->id != CudaDoubleLaunchAttribute::kLaunchCompletionEvent) {
      return CuResult::kNotSupported;
    }
    if (!machine.events.contains(completion->event)) return CuResult::kInvalidHandle;
  }
  Point launched;
  const CuResult result = Launch(lock, *config, function, parameters, extra, launched);
  if (result != CuResult::kSuccess || completion == nullptr) return result;
  const auto event = machine.events.find(completion->event);
  if (event == machine.events.end()) return CuResult::kInvalidHandle;
  // "Nominally, the event is triggered once all blocks of the kernel have begun execution" (CUDA
  // Driver API, Data types, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT).
  launched.at_begin = true;
  event->second.recorded = launched;
  return CuResult::kSuccess;
}

}  // namespace headrace::transport
