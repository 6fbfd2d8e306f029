#include "transport/memory/cuda_handles.h"

#include <fmt/format.h>

namespace headrace::transport {
namespace {

// Runs `make(thing&)` with the context current and owns what it made.
template <typename Handle, typename Thing, typename Make>
Result<Handle> MakeIn(const PrimaryContext& context, std::string_view doing, Make make) {
  const CudaDriver& driver = *context.get().driver;
  const CurrentContext current(driver, context.get().context);
  if (current.result() != CuResult::kSuccess) return driver.Failed(current.result(), doing);
  InContext<Thing> value{&driver, context.get().context, {}};
  if (const CuResult made = make(driver.call(), value.thing); made != CuResult::kSuccess) {
    return driver.Failed(made, doing);
  }
  return Handle(value);
}

}  // namespace

CurrentContext::~CurrentContext() {
  if (result_ != CuResult::kSuccess) return;
  CuContext popped = nullptr;
  driver_.NoteRelease(driver_.call().ctx_pop(&popped));
}

void PrimaryContextTraits::Release(const Value& value) {
  value.driver->NoteRelease(value.driver->call().primary_release(value.device));
}

void VmmMemoryTraits::Release(const Value& value) {
  value.driver->NoteRelease(value.driver->call().mem_release(value.memory));
}

void ReservationTraits::Release(const Value& value) {
  value.driver->NoteRelease(value.driver->call().mem_address_free(value.address, value.size));
}

void VmmMappingTraits::Release(const Value& value) {
  value.driver->NoteRelease(value.driver->call().mem_unmap(value.address, value.size));
}

Result<PrimaryContext> RetainPrimaryContext(const CudaDriver& driver, CuDevice device) {
  PrimaryContextTraits::Value value{&driver, device, nullptr};
  const CuResult result = driver.call().primary_retain(&value.context, device);
  if (result != CuResult::kSuccess) {
    return driver.Failed(result, fmt::format("make a context on GPU {}", device));
  }
  return PrimaryContext(value);
}

Result<Reservation> ReserveAddresses(const CudaDriver& driver, std::size_t size) {
  AddressRange range{&driver, 0, size};
  const CuResult result = driver.call().mem_address_reserve(&range.address, size, 0, 0, 0);
  if (result != CuResult::kSuccess) {
    return driver.Failed(result, fmt::format("reserve {} bytes of GPU addresses", size));
  }
  return Reservation(range);
}

Result<VmmMapping> MapMemory(const VmmMemory& memory, CuAddress address, std::size_t size) {
  const CudaDriver& driver = *memory.get().driver;
  const CuResult result = driver.call().mem_map(address, size, 0, memory.get().memory, 0);
  if (result != CuResult::kSuccess) {
    return driver.Failed(result, fmt::format("map {} bytes of GPU memory", size));
  }
  return VmmMapping(AddressRange{&driver, address, size});
}

Result<LegacyMapping> OpenLegacyHandle(const PrimaryContext& context, const CuIpcHandle& handle) {
  return MakeIn<LegacyMapping, CuAddress>(
      context, "open a CUDA IPC handle", [&](const CudaFunctions& call, CuAddress& made) {
        return call.ipc_open_mem_handle(&made, handle, kCuIpcLazyEnablePeerAccess);
      });
}

Result<HostRegistration> RegisterHostMemory(const PrimaryContext& context, void* memory,
                                            std::size_t size) {
  return MakeIn<HostRegistration, void*>(
      context, "pin host memory for the GPU", [&](const CudaFunctions& call, void*& made) {
        made = memory;
        return call.mem_host_register(memory, size,
                                      kCuHostRegisterPortable | kCuHostRegisterDeviceMap);
      });
}

Result<CudaStream> CreateStream(const PrimaryContext& context, unsigned flags, int priority) {
  return MakeIn<CudaStream, CuStream>(context, "create a stream",
                                      [&](const CudaFunctions& call, CuStream& made) {
                                        return call.stream_create(&made, flags, priority);
                                      });
}

Result<CudaEvent> CreateEvent(const PrimaryContext& context) {
  return MakeIn<CudaEvent, CuEvent>(context, "create an event",
                                    [](const CudaFunctions& call, CuEvent& made) {
                                      return call.event_create(&made, kCuEventDisableTiming);
                                    });
}

Result<CudaModule> LoadModule(const PrimaryContext& context, const void* image) {
  return MakeIn<CudaModule, CuModule>(context, "load kernels",
                                      [image](const CudaFunctions& call, CuModule& made) {
                                        return call.module_load_data(&made, image);
                                      });
}

Result<CuFunction> FindKernel(const CudaModule& module, const char* name) {
  const CudaDriver& driver = *module.get().driver;
  CuFunction function = nullptr;
  const CurrentContext current(driver, module.get().context);
  const CuResult result =
      current.result() == CuResult::kSuccess
          ? driver.call().module_get_function(&function, module.get().thing, name)
          : current.result();
  if (result != CuResult::kSuccess) {
    return driver.Failed(result, fmt::format("find the kernel {}", name));
  }
  return function;
}

}  // namespace headrace::transport
